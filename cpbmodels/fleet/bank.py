"""Candles on the device, once: one flat [rows, columns] tensor. A window is the row of its last context candle.

That row is called the window's origin: everything at or before it is known, the horizon comes after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cpbmodels.arch.options import Preset
from cpbmodels.data.prices import RETURNS, SCALED
from cpbmodels.data.series import Series
from cpbmodels.errors import ModelError


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
        unique = {_identity(one): one for one in series}
        total = sum(len(one) for one in unique.values())
        rows = torch.empty(total, len(names), device=device, dtype=dtype)
        inverse_sigma, places, start = torch.empty(total, device=device, dtype=dtype), {}, 0
        for identity, one in unique.items():
            own = slice(start, start + len(one))
            rows[own] = torch.from_numpy(np.nan_to_num(one.columns(names), posinf=0.0, neginf=0.0)).to(dtype)
            sigma = np.where(np.isfinite(one.volatility), one.volatility, np.inf)
            inverse_sigma[own] = torch.from_numpy(1 / sigma).to(dtype)
            places[identity], start = start, own.stop
        return cls(rows, inverse_sigma, tuple(places[_identity(one)] for one in series))


def _identity(one: Series) -> tuple[int, int]:
    """Equal for series that hold the same arrays, regardless of their spans."""
    return id(one.features), id(one.volatility)


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
            inverse[index] = 1 / spread if spread > 1e-9 else 1.0
    return mean, inverse


@dataclass(frozen=True)
class Task:
    """What one member learns from: its seed, its series, and the origins of its windows as rows of the bank."""

    seed: int
    symbol: str
    timeframe: str
    members: tuple[int, ...]  # indices of the series it learns
    train: np.ndarray  # int64 rows of the bank
    validation: np.ndarray  # int64 rows of the bank
    mean: np.ndarray  # float64 [columns], with `inverse` the scaling of the bank's columns
    inverse: np.ndarray
    options: Preset  # of this member: members of a fleet may differ in those of `per_member.PER_MEMBER`
    index: int = 0  # its place among the members of the call


def make_task(
    bank: Bank,
    series: list[Series],
    indices: tuple[int, ...],
    seed: int,
    symbol: str,
    options: Preset,
) -> Task:
    """Windows and scaling of one member over its series; ModelError if there is nothing to learn from."""
    names = bank_columns(options)
    train, validation, rows = [], [], []
    for index in indices:
        one = series[index]
        own, after = split_origins(one, options)
        for span, origins in (("training", own), ("validation", after)):
            if one.is_frozen(origins):
                raise ModelError(f"{one.label}: its price never moves in its {span} span: leave it out.")
        train.append(own + bank.starts[index])
        validation.append(after + bank.starts[index])
        rows.append(one.columns(names)[own])
    origins = np.concatenate(train)
    label = " and ".join(series[index].label for index in indices[:3])
    if not len(origins):
        raise ModelError(
            f"{label}: no window of {options.context} + {options.horizon} candles fits into its training span; "
            "give it more history."
        )
    later = np.concatenate(validation)
    if not len(later):
        raise ModelError(
            f"{label}: no window of {options.context} + {options.horizon} candles fits into its validation span, "
            "without which training cannot decide when to stop; give it more history."
        )
    mean, inverse = fit_scaling(np.concatenate(rows), names)
    return Task(
        seed=seed,
        symbol=symbol,
        timeframe=series[indices[0]].timeframe,
        members=indices,
        train=origins,
        validation=evenly_spread(later, options.max_validation_windows),
        mean=mean,
        inverse=inverse,
        options=options,
    )


def split_origins(one: Series, options: Preset) -> tuple[np.ndarray, np.ndarray]:
    """Training origins (of the span's last `max_train_rows` rows), and validation origins whose context is later."""
    train = one.origins("train", options.context, options.horizon, options.stride)
    first, end = one.spans.get("train", (0, 0))
    if options.max_train_rows:
        first = max(first, end - options.max_train_rows)
        train = train[train - options.context + 1 >= first]
    validation = one.origins("validation", options.context, options.horizon, options.stride)
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
    if steps * batch >= n and steps == -(-n // batch):  # an epoch is one pass: the last batch may be short
        return task.train[_shuffled(task.seed, epoch, n)]
    position, missing, parts = epoch * steps * batch, steps * batch, []
    while missing > 0:
        number, inside = divmod(position, n)
        part = _shuffled(task.seed, number, n)[inside : inside + missing]
        parts.append(part)
        position, missing = position + len(part), missing - len(part)
    return task.train[np.concatenate(parts)]


def _shuffled(seed: int, number: int, n: int) -> np.ndarray:
    """A permutation of 0 .. n - 1 that belongs to this seed and this pass."""
    key = np.array([seed & (2**64 - 1), number + 1], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).permutation(n)


def steps_per_epoch(task: Task, options: Preset) -> int:
    """Steps of one epoch of this member: fixed, or one pass over its windows."""
    return options.steps_per_epoch or -(-len(task.train) // options.batch_size)
