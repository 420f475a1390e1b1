"""Scores of what forecasts say of prices (`cpbmodels.data.chances`), against the random walk with EWMA volatility.

The Brier score of a chance is (chance - outcome)^2 (Brier, "Verification of forecasts expressed in terms of
probability", Monthly Weather Review 78, 1950). The prices are chosen by the walk: a model that chose its own could
choose easy ones. The walk has a table of extremes of its own, from the training span.

touch: is a price touched within each step, to which the walk gives 50, 25, 10 and 5 %, up and down?
first: is a target reached before a stop within the last step, at the distances of `PAIRS`, long and short?
above: does the close of each step lie above the walk's deciles?
"""

import numpy as np
from numpy.typing import NDArray

from cpbmodels.data import extremes
from cpbmodels.data.chances import Chances
from cpbmodels.data.extremes import SIDES, Extremes
from cpbmodels.data.prediction import Prediction
from cpbmodels.data.series import Series
from schemas.chances import OUTCOMES
from tasks.judging.baselines import ScaledTable
from tasks.judging.scores import LEVELS, Array, realised

CHANCES = (0.5, 0.25, 0.1, 0.05)
PAIRS = ((1, 1), (1.5, 0.75), (2, 1), (3, 1), (1, 2), (0.75, 0.75), (2, 2))
"""Distances of target and stop from the last close, as log-returns in units of the walk's median scale at the last step
over the training span."""
DECILES = np.arange(1, len(LEVELS), 2)
"""Places of 10, 20, … 90 % among the levels."""

MAX_WALK_ORIGINS = 4_000
"""Training windows of the walk's table, evenly spread, as many as of a model's."""

_Events = tuple[Array, Array, NDArray[np.bool_]]
"""Chances [P, N, H] at each price by the model and by the walk (which broadcast), and what came."""


def chance_scores(series: Series, prediction: Prediction, walk: ScaledTable) -> dict[str, Array]:
    """Return Brier scores and stated chances of forecasts.

    Without a table of extremes it is `above` alone, and with a table that does not know what is reached first `touch`
    besides. Each step's chance is read from its own row of the table, of the walk as well. What a forecast states is
    the largest chance of the steps up to it, seldom more: on 20 coins by less than .001 of a touch, and by more than
    that in .3 % of the targets before a stop.

    Args:
        walk: the reference, fitted on the training origins.

    Returns:
        `NAME_brier`, `reference_NAME_brier`: [N, H], means over prices; [N, 1] of what is reached first within the last
        step. `NAME_stated`: [1, H, 100, 3], for stated chances from 0, 1, … 99 %: how many there were, their sum, and
        how many came true.
    """
    # a forecast that is not finite is refused by `judge_member`
    if not np.isfinite(prediction.quantiles).all():
        return {}
    reference = walk.quantiles(series, prediction.origins)
    scores = _scores("above", _closes(series, prediction, reference))
    table = prediction.extremes
    if table is None:
        return scores
    horizon = prediction.quantiles.shape[1]
    # The walk's own table is fitted like a model's: as many windows, of the same span.
    trained = series.origins("train", 1, horizon)
    learned = trained[:: len(trained) // MAX_WALK_ORIGINS + 1]
    before = extremes.reached(series, learned, horizon)
    widths = extremes.width(walk.quantiles(series, learned))
    levels = extremes.levels(before, widths)
    reached = extremes.reached(series, prediction.origins, horizon)
    width, walk_width = extremes.width(prediction.quantiles), extremes.width(reference)
    scores |= _scores("touch", _touches(table, Extremes(levels), width, walk_width, reached))
    if table.first is None:
        return scores
    # The last step's table alone: those of all steps would take five times as long.
    last = Extremes(levels[:, -1:], extremes.shares(before, widths[:, -1], levels[:, -1])[:, None])
    own = Extremes(table.distance[:, -1:], table.first[:, -1:])
    model, of_walk = (
        Chances(of, np.exp(quantiles[:, -1:]), np.ones(len(quantiles)))
        for of, quantiles in ((own, prediction.quantiles), (last, reference))
    )
    unit = max(float(np.median(walk.scale(series, trained, horizon)[:, -1])), extremes.TINY)
    stated, by_walk, came = _outcomes(model, of_walk, reached, unit)
    scores |= _scores("first", (stated[..., :1], by_walk[..., :1], came[..., :1]))
    return scores | {
        f"{of}{OUTCOMES}_brier": ((chances - came) ** 2).sum(axis=-1, keepdims=True).mean(axis=0)
        for of, chances in (("", stated), ("reference_", by_walk))
    }


def deciles(stated: Array) -> Array:
    """Return [10, 2]: mean stated chance and share that came, in ten groups of about as many forecasts (or fewer).

    Args:
        stated: [100, 3], of a step or of several together, as in `chance_scores`.
    """
    counts = stated[:, 0]
    # The group by the middle of each bin's ranks: a bin is never divided, so groups are about equal, and a model
    # that always states the same chance has one group.
    group = (10 * (np.cumsum(counts) - counts / 2) / counts.sum()).astype(np.int64)
    sums = np.stack([np.bincount(group, column) for column in stated.T], axis=1)
    return sums[sums[:, 0] > 0, 1:] / sums[sums[:, 0] > 0, :1]


def _scores(name: str, events: _Events) -> dict[str, Array]:
    chances, by_walk, came = events
    return {
        f"{name}_brier": ((chances - came) ** 2).mean(axis=0),
        f"reference_{name}_brier": ((by_walk - came) ** 2).mean(axis=0),
        f"{name}_stated": _stated(chances, came)[None],
    }


def _stated(chances: Array, came: NDArray[np.bool_]) -> Array:
    """Return the counts [H, 100, 3] of chances [P, N, H]."""
    steps = chances.shape[-1]
    bins = (np.minimum(chances * 100, 99).astype(np.int64) + 100 * np.arange(steps)).ravel()
    weights = (np.ones(len(bins)), chances.ravel(), came.ravel())
    sums: Array = np.stack([np.bincount(bins, of, 100 * steps) for of in weights], axis=1)
    return sums.reshape(steps, 100, 3)


def _closes(series: Series, prediction: Prediction, reference: Array) -> _Events:
    shape = prediction.quantiles.shape[:2]
    levels = np.moveaxis(reference[..., DECILES], -1, 0)
    # Each step has a price of its own, so each is a forecast by itself.
    close = np.exp(prediction.quantiles.reshape(-1, 1, len(LEVELS)))
    of_steps = Chances(None, close, np.ones(len(close)))
    chances = np.stack([of_steps.above(np.exp(level.ravel())).reshape(shape) for level in levels])
    # Of levels at one price, as where a coin stands still, the walk means the last: no close above it has gone.
    last = np.stack([(reference <= level[..., None]).sum(axis=-1) - 1 for level in levels])
    return chances, 1 - LEVELS[last], realised(series, prediction.origins, shape[1]) > levels


def _touches(model: Extremes, walk: Extremes, width: Array, walk_width: Array, reached: Array) -> _Events:
    sides, by_walk = np.repeat(range(len(SIDES)), len(CHANCES)), np.tile(CHANCES, len(SIDES))
    # In units of the walk's width, chances of the model in units of its own: the same price in both.
    levels = np.stack([walk.reach(*of) * walk_width for of in zip(sides, by_walk, strict=True)])
    chances = np.stack(
        [model.touched(side, level / width) for side, level in zip(sides, levels, strict=True)]
    )
    # The close is touched, also where the walk knows no other price, as of a coin that stands still.
    stated = [np.where(levels > 0, of, 1) for of in (chances, by_walk[:, None, None])]
    return stated[0], stated[1], reached[sides] >= levels


def _outcomes(model: Chances, walk: Chances, reached: Array, unit: float) -> _Events:
    """Return chances [P, N, 3] of target first, stop first and neither, and which of them came."""
    far, near = unit * np.repeat(PAIRS, 2, axis=0).T
    sign = np.tile((1, -1), len(PAIRS))  # long, short
    target, stop = sign * far, -sign * near
    up, down = np.maximum(target, stop), -np.minimum(target, stop)
    prices = np.exp([target, stop])[..., None]
    firsts = [of.first(*prices)[..., 0, :] for of in (model, walk)]
    stated, by_walk = (np.append(first, 1 - first.sum(axis=-1, keepdims=True), axis=-1) for first in firsts)
    # The candle, from 0, that reaches a price first; where none does, the number of candles.
    sides = np.ascontiguousarray(np.moveaxis(reached, -1, 1))
    by_up, by_down = (
        (side < away[:, None, None]).sum(axis=1) for side, away in zip(sides, (up, down), strict=True)
    )
    # A candle that reaches both counts for the stop.
    won = np.where(sign[:, None] > 0, by_up < by_down, by_down < by_up)
    decided = np.minimum(by_up, by_down) < reached.shape[-1]
    return stated, by_walk, np.stack([won, decided & ~won, ~decided], axis=-1)
