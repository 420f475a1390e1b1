"""Before a training: on which device, in which precision, and which member learns from which series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from cpbmodels.arch import find
from cpbmodels.arch.options import Preset
from cpbmodels.arch.presets import preset as resolve
from cpbmodels.arch.torch_private import bf16_in_cpu_hardware
from cpbmodels.data.series import Series
from cpbmodels.errors import ModelError
from cpbmodels.fleet.bank import Bank, Task, make_task

SCOPES = ("per-series", "universal", "both")
ALL_SYMBOLS = "ALL"  # symbol of a member that learns every series of its timeframe


def pick_device(name: str) -> torch.device:
    """The torch device for "auto", "cpu", "cuda" or "cuda:1"; ModelError if there is no such device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")  # refused below, like every other device that is neither CPU nor CUDA
    if device.type not in ("cpu", "cuda"):
        raise ModelError(f"device {name!r} is unknown: choose auto, cpu or cuda.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModelError(
            f"device {name!r} is not available here (see `cpb doctor`): use device='cpu' or 'auto'."
        )
    return device


def windows_in_flight(context: int, device: torch.device) -> int:
    """How many windows validation and forecasts process at a time, over all members together.

    On a CPU their activations should stay in the cache: with 16,384 windows of 30 candles a transformer validated at
    two thirds of the speed and in five times the memory. On a GPU larger products are faster.
    """
    return 16_384 if device.type == "cuda" else min(max(32_768 // context, 256), 4_096)


def compute_dtype(
    options: Preset, architecture: str, device: torch.device, master: torch.dtype
) -> torch.dtype:
    """Dtype of the products: the master's, or bf16 / fp16 in mixed precision."""
    wanted = options.mixed_precision
    if wanted == "off" or master == torch.float64:
        return master
    if wanted in ("bf16", "fp16"):
        return torch.bfloat16 if wanted == "bf16" else torch.float16
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if find(architecture).spec.bf16_on_cpu and bf16_in_cpu_hardware() else master


@dataclass(frozen=True)
class Planned:
    """A planned member: the series it learns, by index, and its seed."""

    series: tuple[int, ...]
    seed: int
    symbol: str


def plan_members(series: list[Series], seeds: Sequence[int] | int | None, scope: str) -> list[Planned]:
    """One member per series ("per-series"), one per timeframe and seed ("universal"), or both."""
    if scope not in SCOPES:
        raise ModelError(f"scope {scope!r} is unknown: choose one of {', '.join(SCOPES)}.")
    given, members = _check_seeds(seeds), []
    if scope in ("per-series", "both"):
        own_seeds = given * len(series) if seeds is None or isinstance(seeds, int) else given
        if len(own_seeds) != len(series):
            raise ModelError(f"seeds needs one number per series: {len(series)}, not {len(given)}.")
        for index, seed in enumerate(own_seeds):
            members.append(Planned((index,), seed, series[index].symbol))
    if scope in ("universal", "both"):
        for timeframe in dict.fromkeys(one.timeframe for one in series):
            own = tuple(i for i, one in enumerate(series) if one.timeframe == timeframe)
            members += [Planned(own, seed, ALL_SYMBOLS) for seed in dict.fromkeys(given)]
    return members


def plan_tasks(
    bank: Bank, series: list[Series], members: dict[int, Planned], options: Sequence[Preset]
) -> list[Task]:
    """A task for each of these members, which are rows of one fleet; keys are their places in the call.

    Members of the same series share its windows and its scaling: a search has many trials on few series.
    """
    made: dict[tuple[int, ...], Task] = {}
    for index, one in members.items():
        if one.series not in made:
            made[one.series] = make_task(bank, series, one.series, one.seed, one.symbol, options[index])
    return [
        replace(made[one.series], seed=one.seed, symbol=one.symbol, options=options[index], index=index)
        for index, one in members.items()
    ]


def _check_seeds(seeds: Sequence[int] | int | None) -> list[int]:
    """The seeds as a list of whole numbers; 0 if none are given."""
    given = [0] if seeds is None else [seeds] if isinstance(seeds, int) else list(seeds)
    for seed in given:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**63:
            raise ModelError(f"seeds must be whole numbers from 0 to 2^63 - 1, not {seed!r}.")
    if not given:
        raise ModelError("seeds must name at least one number.")
    return [int(seed) for seed in given]


def why_not(one: Series, architecture: str = "har", preset: str = "default", **overrides: Any) -> str:
    """Why a series cannot be trained on with these options, or "": the reason to leave it out of a fleet.

    A series with a test span must also have an origin there, else its model could not be evaluated.
    """
    options = resolve(preset, architecture, **overrides)
    try:
        make_task(Bank.build([one], options, torch.device("cpu"), torch.float32), [one], (0,), 0, "", options)
    except ModelError as reason:
        return str(reason)
    first, end = one.spans.get("test", (0, 0))
    origins = one.origins("test", options.context, options.horizon)
    if one.is_frozen(origins):
        return f"{one.label}: its price never moves in its test span: leave it out."
    if first < end and not len(origins):
        return (
            f"{one.label}: no window of {options.context} + {options.horizon} candles fits into its test span; "
            "give it more history."
        )
    return ""
