"""Calls side by side in threads, which one Ctrl-C ends within seconds."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

from tasks.storage.waiting import Interrupted, check_interrupted, let_ctrl_c_end_waits, stoppable

T = TypeVar("T")

STOP_S = 2.0
"""Seconds that interrupted calls get to end: longer than `tasks.training.runner.stop` needs, 3 s in all."""

_SLICE_S = 0.2
"""Longest single wait of the calling thread, so that it sees an interrupt whatever handles the signal."""


def usable_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_each(calls: Sequence[Callable[[], T]], workers: int) -> list[T | Exception]:
    """Call all in up to `workers` threads and return what each returned, or the error that ended it, in order.

    Each call sees a copy of the caller's context variables. Where the caller is interrupted (Ctrl-C, or a
    `run_each` around this one), calls that have not begun are dropped, running ones are asked to stop (see
    `tasks.storage.waiting`), and the interrupt goes on as soon as they have stopped, or after `STOP_S` seconds.
    """
    stop = threading.Event()
    futures: list[Future[T]] = []
    with thread_pool(min(workers, len(calls)), "call") as pool:
        try:
            futures.extend(pool.submit(copy_context().run, _stoppable, call, stop) for call in calls)
            _wait_for(futures, stop)
        except BaseException:
            _stop_all(pool, futures, stop)
            raise
        if stop.is_set():
            _stop_all(pool, futures, stop)
            raise _interrupt_of(futures)
    errors = [future.exception() for future in futures]
    return [
        error if isinstance(error, Exception) else future.result()
        for error, future in zip(errors, futures, strict=True)
    ]


@contextmanager
def thread_pool(workers: int, name: str, *, grace_s: float = 0.0) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads whose waits Ctrl-C ends.

    The end of the block drops calls that have not begun and waits for those that run.

    Args:
        grace_s: most seconds that an interrupt waits for running calls. 0 suits downloads, which can hang; files
            that are being written want a moment.
    """
    let_ctrl_c_end_waits()
    pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix=name)
    try:
        yield pool
    except BaseException as error:
        if isinstance(error, Exception):
            pool.shutdown(cancel_futures=True)
        else:
            _shut_down_within(pool, grace_s)
        raise
    pool.shutdown(cancel_futures=True)


def _shut_down_within(pool: ThreadPoolExecutor, seconds: float) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    closing = threading.Thread(target=pool.shutdown, daemon=True)
    closing.start()
    closing.join(seconds)


def _stoppable(call: Callable[[], T], stop: threading.Event) -> T:
    with stoppable(stop):
        try:
            check_interrupted()
            return call()
        except Exception:
            raise
        except BaseException:  # before this thread takes the next call
            stop.set()
            raise


def _wait_for(futures: Sequence[Future[T]], stop: threading.Event) -> None:
    """Wait until all have ended, or one of them was interrupted."""
    pending = set(futures)
    while pending and not stop.is_set():
        _, pending = wait(pending, timeout=_SLICE_S)
        check_interrupted()


def _stop_all(pool: ThreadPoolExecutor, futures: Sequence[Future[T]], stop: threading.Event) -> None:
    stop.set()
    pool.shutdown(wait=False, cancel_futures=True)
    wait(futures, STOP_S)


def _interrupt_of(futures: Sequence[Future[T]]) -> BaseException:
    """Return what interrupted one of the calls; the others stopped because they were asked to."""
    found = [future.exception() for future in futures if future.done() and not future.cancelled()]
    first = [error for error in found if error and not isinstance(error, Exception | Interrupted)]
    return first[0] if first else Interrupted("stopped because one of the calls was interrupted")
