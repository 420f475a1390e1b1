"""Candles on the device, once: one flat [rows, columns] tensor. A window is the row of its last context candle.

That row is called the window's origin: everything at or before it is known, the horizon comes after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cpbmodels.arch.options import Preset
from cpbmodels.arch.task import Task
from cpbmodels.data import MAX_STILL_SHARE, RETURNS
from cpbmodels.data.columns import SCALED
from cpbmodels.data.series import Series
from cpbmodels.errors import ModelError

SCOPES = ("per-series", "universal", "both")
ALL_SYMBOLS = "ALL"  # symbol of a member that learns every series of its timeframe


def bank_columns(options: Preset) -> tuple[str, ...]:
    """Columns of the bank: the four returns (targets need them), the model's other inputs, the calendar codes."""
    others = tuple(name for name in options.features if name not in RETURNS)
    return (*RETURNS, *others, *((options.calendar,) if options.calendar else ()))


@dataclass(frozen=True)
class Bank:
    """`rows` [R, columns] and inverse volatility [R] of all series, one after another."""

    rows: Tensor
    inverse_sigma: Tensor
    # first row of each series; series with the same candles (seeds, folds) share rows
    starts: tuple[int, ...]

    @classmethod
    def build(cls, series: list[Series], options: Preset, device: torch.device, dtype: torch.dtype) -> Bank:
        """Copy all candles, once each; a NaN of a warm-up row becomes 0, no valid origin reaches it."""
        names = bank_columns(options)
        arrays = [(id(s.features), id(s.volatility)) for s in series]  # equal where only the spans differ
        total = sum(map(len, dict(zip(arrays, series, strict=True)).values()))
        rows = torch.empty(total, len(names), device=device, dtype=dtype)
        inverse_sigma = torch.empty(total, device=device, dtype=dtype)
        starts: dict[tuple[int, int], int] = {}
        end = 0
        for key, candles in zip(arrays, series, strict=True):
            if key in starts:
                continue
            starts[key], end = end, end + len(candles)
            columns = np.nan_to_num(candles.columns(names), posinf=0.0, neginf=0.0)
            rows[starts[key] : end] = torch.from_numpy(columns).to(dtype)
            # An unknown volatility, of warm-up rows alone, makes a factor of 0 instead of NaN.
            sigma = np.where(np.isfinite(candles.volatility), candles.volatility, np.inf)
            inverse_sigma[starts[key] : end] = torch.from_numpy(1 / sigma).to(dtype)
        return cls(rows, inverse_sigma, tuple(starts[key] for key in arrays))


@dataclass(frozen=True)
class Scaling:
    """Mean and inverse standard deviation [K, columns] of the inputs, from each member's training rows only."""

    mean: Tensor
    inverse: Tensor

    def rows(self, count: int) -> Scaling:
        """The first `count` members."""
        return Scaling(self.mean[:count], self.inverse[:count])


def fit_scaling(columns: np.ndarray, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and 1 / std [columns] of training rows [n, columns].

    (0, 1) for columns that models read divided by the origin's volatility, for hour codes, and for constants.
    """
    mean, inverse = np.zeros(len(names)), np.ones(len(names))
    for index, name in enumerate(names):
        if name not in SCALED and not name.startswith("hour_of_week"):
            values = columns[:, index]
            spread = float(values.std()) if len(values) else 0.0
            mean[index] = values.mean() if len(values) else 0.0
            # A constant column has no scale: 1 / spread would blow up its rounding.
            inverse[index] = 1 / spread if spread > 1e-9 else 1.0
    return mean, inverse


class MemberPlan(NamedTuple):
    """A member before its windows are known: the series it learns, by index, its seed and its symbol."""

    series: tuple[int, ...]
    seed: int
    symbol: str


def plan_members(series: list[Series], seeds: Sequence[int] | int | None, scope: str) -> list[MemberPlan]:
    """One member per series ("per-series"), one per timeframe and seed ("universal"), or both."""
    if scope not in SCOPES:
        raise ModelError(f"scope {scope!r} is unknown: choose one of {', '.join(SCOPES)}.")
    given = [0] if seeds is None else [seeds] if isinstance(seeds, int) else list(seeds)
    for seed in given:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**63:
            raise ModelError(f"seeds must be whole numbers from 0 to 2^63 - 1, not {seed!r}.")
    given, members = [int(seed) for seed in given], []
    if scope != "universal":
        of_series = given * len(series) if seeds is None or isinstance(seeds, int) else given
        if len(of_series) != len(series):
            raise ModelError(f"seeds needs one number per series: {len(series)}, not {len(given)}.")
        members += [MemberPlan((k,), seed, series[k].symbol) for k, seed in enumerate(of_series)]
    if scope != "per-series":
        if not given:
            raise ModelError("seeds must name at least one number.")
        for timeframe in dict.fromkeys(candles.timeframe for candles in series):
            learned = tuple(k for k, candles in enumerate(series) if candles.timeframe == timeframe)
            members += [MemberPlan(learned, seed, ALL_SYMBOLS) for seed in dict.fromkeys(given)]
    return members


def plan_tasks(
    bank: Bank, series: list[Series], members: Mapping[int, MemberPlan], options: Sequence[Preset]
) -> list[Task]:
    """A task for each of these members, which are rows of one fleet; keys are their places in the call.

    Members of the same series share its windows and its scaling: a search has many trials on few series.
    """
    windows: dict[tuple[int, ...], Task] = {}
    for index, member in members.items():
        if member.series not in windows:
            windows[member.series] = make_task(bank, series, member, options[index])
    return [
        replace(
            windows[member.series],
            seed=member.seed,
            symbol=member.symbol,
            options=options[index],
            index=index,
        )
        for index, member in members.items()
    ]


def make_task(bank: Bank, series: list[Series], member: MemberPlan, options: Preset) -> Task:
    """Windows and scaling of one member over its series; ModelError if there is nothing to learn from."""
    names = bank_columns(options)
    origins: dict[str, list[np.ndarray]] = {"training": [], "validation": []}
    rows = []
    for index in member.series:
        candles = series[index]
        split = split_origins(candles, options)
        for span, places in zip(origins, split, strict=True):
            if candles.is_frozen(places):
                raise ModelError(f"{candles.label}: its price never moves in its {span} span: leave it out.")
            origins[span].append(places + bank.starts[index])
        if (share := candles.still_share("train")) > MAX_STILL_SHARE:
            raise ModelError(
                f"{candles.label}: {share:.0%} of the candles in its training span stand still (open = high = low = "
                f"close, volume 0; {MAX_STILL_SHARE:.0%} may): leave it out, or remove the candles that were filled in."
            )
        rows.append(candles.columns(names)[split[0]])
    train, validation = (np.concatenate(parts) for parts in origins.values())
    for span, places in zip(origins, (train, validation), strict=True):
        if not len(places):
            label = " and ".join(series[index].label for index in member.series[:3])
            raise ModelError(
                f"{label}: no window of {options.context} + {options.horizon} candles fits into its {span} span; "
                "give it more history."
            )
    mean, inverse = fit_scaling(np.concatenate(rows), names)
    return Task(
        seed=member.seed,
        symbol=member.symbol,
        timeframe=series[member.series[0]].timeframe,
        series_indices=member.series,
        train=train,
        validation=evenly_spread(validation, options.max_validation_windows),
        mean=mean,
        inverse=inverse,
        options=options,
    )


def split_origins(series: Series, options: Preset) -> tuple[np.ndarray, np.ndarray]:
    """Training origins (of the span's last `max_train_rows` rows), and validation origins whose context begins
    after it.
    """
    train = series.origins("train", options.context, options.horizon, options.stride)
    first, end = series.spans.get("train", (0, 0))
    if options.max_train_rows:
        first = max(first, end - options.max_train_rows)
        # By a window's first candle: nothing older than the last `max_train_rows` rows is looked at.
        train = train[train - options.context + 1 >= first]
    validation = series.origins("validation", options.context, options.horizon, options.stride)
    return train, validation[validation - options.context + 1 >= end]


def evenly_spread(origins: np.ndarray, limit: int) -> np.ndarray:
    """At most `limit` of the origins, evenly spread over them."""
    if len(origins) <= limit:
        return origins
    return origins[np.linspace(0, len(origins) - 1, limit).astype(np.int64)]


def epoch_order(task: Task, epoch: int, steps: int, batch: int) -> np.ndarray:
    """Rows [<= steps x batch] this member visits in an epoch: its n windows shuffled, pass after pass.

    With a fixed number of steps an epoch may be part of a pass, or several. Position p, counted from the start of the
    training, lies in pass p // n, whose order is drawn from Philox(seed, pass): any epoch can be computed without the
    earlier epochs, and does not depend on other members.
    """
    n = len(task.train)
    first, count = epoch * steps * batch, steps * batch
    if steps == -(-n // batch):  # an epoch is one pass: the last batch may be short
        first, count = epoch * n, n
    passes = []
    for number in range(first // n, -(-(first + count) // n)):
        # From 1 on: the key (seed, 0) draws the initial weights (`Layout.initial`).
        key = np.array([task.seed & (2**64 - 1), number + 1], dtype=np.uint64)
        passes.append(np.random.Generator(np.random.Philox(key=key)).permutation(n))
    inside = first % n
    order: np.ndarray = task.train[np.concatenate(passes)[inside : inside + count]]
    return order


def steps_per_epoch(task: Task, options: Preset) -> int:
    """Steps of one epoch of this member: fixed, or one pass over its windows."""
    return options.steps_per_epoch or -(-len(task.train) // options.batch_size)
