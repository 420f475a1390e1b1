"""Run one measurement in a fresh process, so that its peak memory is its own."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from cpbmodels.device.monitor import rss_peak_mb as peak_mb

__all__ = ["isolated", "peak_mb"]


def isolated(measure: Callable[..., Any], *arguments: Any) -> Any:
    """`measure(*arguments)` in a new process; `measure` is a function at the top of a module."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()
