"""The table of a model's extremes: how far prices go up and down, and which of two prices is reached first.

The extreme at step h is the running maximum of the highs over steps 1 .. h (up), or of the falls to the lows (down), as
a log-return from the last close; the width is q90 - q10 of the model's own forecast of the close at step h. Extremes
depend on the width alone, so that one table serves all coins of a model. Both sides are counted in the same windows, so
that how they depend on each other is in the table: a market that has risen has seldom fallen first.

Arrays: widths float64 [..., H], in log-return; distances [..., H] in widths of the same step. Between two quantiles the
logarithm of the chance is linear in the distance. Beyond the last it falls as a power of the distance does that passes
through the 90 and the 99 % quantile, down to 1e-8.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cpbmodels.data.series import Series

SIDES = ("up", "down")

DISTANCE, FIRST, TOUCH = "extremes.distance", "extremes.first", "touch.table"
"""Names among the tensors of a model's folder: the two of a table, and the only one of a table of before, which has
99 levels in float32 and does not know which of two prices is reached first."""
TENSORS = (DISTANCE, FIRST, TOUCH)

CHANCES = np.array([98, 94, 88, 81, 73, 65, 57, 50, 42, 34, 25, 18, 13, 10, 7, 5, 2.5, 1]) / 100
"""Chances of going beyond the quantiles of `Extremes.distance`. 18 of them and the origin are a grid of 19 x 19, which
fills 22 kB at ten steps; those of the stops that are usual (25, 10, 5, 1 %) are exact."""
CHANCES_OF_BEFORE = 1 - np.arange(1, 100) / 100

TINY = 1e-12
"""Least width, in log-return: that of a price which never moves."""
MAX_RATIO = 1e4
"""Largest extreme in a table, in widths: that of a coin which hardly ever moves and then leaps."""
MAX_GROWTH = 10.0
"""Largest growth of the distance while the chance falls to a tenth. Beyond it the extremes would have no mean."""

_TAIL = np.arange(1, 7)


def reached(series: Series, origins: np.ndarray, horizon: int) -> np.ndarray:
    """Running extremes [2, N, H] after each origin: log(highest high / last close), log(last close / lowest low)."""
    rows = origins[:, None] + np.arange(1, horizon + 1)
    moves = np.log(series.prices[rows, 1:3] / series.prices[origins, 3][:, None, None])
    # Running: the extreme of h steps contains that of every shorter horizon.
    return np.maximum.accumulate(np.stack([moves[..., 0], -moves[..., 1]]), axis=-1)


def width(quantiles: np.ndarray) -> np.ndarray:
    """Return q90 - q10 [..., H] of quantiles [..., H, 19] of the log-return."""
    return np.maximum(quantiles[..., 17] - quantiles[..., 1], TINY)


@dataclass(frozen=True)
class Extremes:
    """The extremes of a model's windows, in widths of its forecasts.

    distance: [2, H, L], up and down: quantiles of extreme / width, the chances beyond which are `chances`; float16 with
        L = 18, or float32 with L = 99 in a model of before.
    first: float16 [3, H, 19, 19], by the distances up (third axis) and down (last axis), the origin before the 18: of
        the windows that reach up, the share that does so before down; of those that reach down, the share that does so
        before up; of those that reach up, the share that reaches down within the same candle as the first. None in a
        model of before.
    """

    distance: np.ndarray
    first: np.ndarray | None = None

    @property
    def chances(self) -> np.ndarray:
        """Chances [L] of an extreme beyond the distances."""
        return CHANCES if self.distance.shape[-1] == len(CHANCES) else CHANCES_OF_BEFORE

    def tensors(self) -> dict[str, np.ndarray]:
        """The arrays by their names in a model's folder."""
        return {TOUCH: self.distance} if self.first is None else {DISTANCE: self.distance, FIRST: self.first}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, np.ndarray]) -> "Extremes | None":
        """The table among a model's tensors, if there is one; its values are not checked."""
        if DISTANCE in tensors and FIRST in tensors:
            return cls(tensors[DISTANCE], tensors[FIRST])
        return cls(tensors[TOUCH]) if TOUCH in tensors else None

    def touched(self, side: int, distance: np.ndarray) -> np.ndarray:
        """The share [..., H] of extremes on a side (0 up, 1 down) beyond distances [..., H]."""
        return np.exp(_by_step(distance, self._nodes(side), self._log_chances()))

    def reach(self, side: int, chance: float) -> np.ndarray:
        """The distance [H] that this share of extremes on a side goes beyond: the inverse of `touched`."""
        rising = -self._log_chances()
        return np.array([np.interp(-np.log(chance), rising, row) for row in self._nodes(side)])

    def decided(self, up: np.ndarray, down: np.ndarray) -> tuple[np.ndarray, ...]:
        """The shares [..., H] that reach up first, down first, both within the candle that reaches the first; and, of
        `touched`, up, down.

        Args:
            up, down: distances [..., H] of two prices.
        """
        assert self.first is not None
        grid = np.asarray(self.first, dtype=np.float64)
        steps = np.arange(grid.shape[1])
        places, shares = [], []
        for side, distance in enumerate((up, down)):
            nodes = self._nodes(side)[:, : grid.shape[2]]
            # Beyond the last level the shares stay what they are there.
            at = _by_step(distance, nodes, np.arange(nodes.shape[1]))
            places.append(np.minimum(at.astype(np.int64), nodes.shape[1] - 2))
            shares.append(at - places[-1])
        (i, j), (a, b) = places, shares
        between = (
            (1 - a) * (1 - b) * grid[:, steps, i, j]
            + a * (1 - b) * grid[:, steps, i + 1, j]
            + (1 - a) * b * grid[:, steps, i, j + 1]
            + a * b * grid[:, steps, i + 1, j + 1]
        )
        above, below = self.touched(0, up), self.touched(1, down)
        return above * between[0], below * between[1], above * between[2], above, below

    def _log_chances(self) -> np.ndarray:
        """Logarithms [1 + L + 6] of the chances 1, `chances`, and of six that are tenfold smaller each."""
        logs: np.ndarray = np.log(np.concatenate([[1.0], self.chances, self.chances[-1] * 0.1**_TAIL]))
        return logs

    def _nodes(self, side: int) -> np.ndarray:
        """The distances [H, 1 + L + 6] of `_log_chances`."""
        levels = np.asarray(self.distance[side], dtype=np.float64)
        # While the chance falls from 10 to 1 %, and to a tenth from there on: the tail goes on at that rate, as a
        # power law's.
        tenth = levels[:, np.argmin(np.abs(self.chances - 0.1))]
        growth = np.clip(levels[:, -1] / np.maximum(tenth, TINY), 1, MAX_GROWTH)
        tail = levels[:, -1:] * growth[:, None] ** _TAIL
        return np.concatenate([np.zeros((len(levels), 1)), levels, tail], axis=1)


def fit(extremes: np.ndarray, widths: np.ndarray) -> Extremes:
    """The table of running extremes [2, N, H] in windows whose forecasts had widths [N, H], N > 0."""
    distance = levels(extremes, widths)
    steps = range(widths.shape[1])
    first = [shares(extremes[..., : step + 1], widths[:, step], distance[:, step]) for step in steps]
    return Extremes(distance, np.stack(first, axis=1))


def levels(extremes: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """`Extremes.distance` of running extremes [2, N, H] in windows whose forecasts had widths [N, H], N > 0."""
    ratios = np.clip(extremes / widths, 0, MAX_RATIO)
    # Rounded as it will be stored: a model forecasts alike before and after it is saved.
    return np.moveaxis(np.quantile(ratios, 1 - CHANCES, axis=1), 0, -1).astype(np.float16)


def shares(extremes: np.ndarray, widths: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """`Extremes.first` [3, 19, 19] of the last step: which of two prices was reached first.

    Args:
        extremes: running, [2, N, h] from the first step to that one.
        widths, distance: [N] of the forecasts at that step, and its levels [2, 18].
    """
    # Prices stand still while steps pass: a distance in widths of this step, for all steps until it.
    nodes = np.concatenate([np.zeros((2, 1)), distance.astype(np.float64)], axis=-1)
    prices = nodes[..., None] * widths
    # Windows last: sums and comparisons run along them, eight times as fast as across.
    extremes = np.ascontiguousarray(np.moveaxis(extremes, 1, -1))
    # The candle, from 0, that reaches a price first; where none does, the number of candles.
    candles = extremes.shape[1]
    reached_by = np.zeros(prices.shape, dtype=np.int16)
    for candle in range(candles):
        reached_by += extremes[:, candle, None] < prices
    up, down = reached_by[0][:, None], reached_by[1]
    by_up, by_down = ((found < candles).sum(axis=-1) for found in (up, down))
    counts = (
        ((up < down).sum(axis=-1, dtype=np.int32), by_up),
        ((down < up).sum(axis=-1, dtype=np.int32), by_down),
        (((up == down) & (up < candles)).sum(axis=-1, dtype=np.int32), by_up),
    )
    return np.stack([count / np.maximum(of, 1) for count, of in counts]).astype(np.float16)


def _by_step(at: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Values [..., H] at `at` [..., H] of each step's line through its row of x [H, L] and y [L]."""
    return np.stack([np.interp(at[..., step], row, y) for step, row in enumerate(x)], axis=-1)
