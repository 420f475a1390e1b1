"""Scores of what forecasts say of prices (`cpbmodels.data.chances`), against the random walk with EWMA volatility.

The Brier score of a chance is (chance - outcome)^2 (Brier, "Verification of forecasts expressed in terms of
probability", Monthly Weather Review 78, 1950). The prices are chosen by the walk: a model that chose its own could
choose easy ones. The walk has a table of extremes of its own, from the training span.

touch: is a price touched within each step, to which the walk gives 50, 25, 10 and 5 %, up and down?
first: is a target reached before a stop within the last step, at the distances of `PAIRS`, long and short?
above: does the close of each step lie above the walk's deciles?
"""

from collections.abc import Iterable, Iterator

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
DECILES = range(1, len(LEVELS), 2)
"""Places of 10, 20, … 90 % among the levels."""

MAX_WALK_ORIGINS = 4_000
"""Training windows of the walk's table, evenly spread, as many as of a model's."""

_Event = tuple[Array, Array | float, NDArray[np.bool_]]
"""Chances [N, H] of the model and of the walk, and whether the event came."""


def chance_scores(series: Series, prediction: Prediction, walk: ScaledTable) -> dict[str, Array]:
    """Return Brier scores and stated chances of forecasts.

    Without a table of extremes it is `above` alone, and with a table that does not know what is reached first `touch`
    besides. Each step's chance is read from its own row of the table, of the walk as well. What a forecast states is
    the largest chance of the steps up to it, seldom more, and then by less than .001 (on 20 coins).

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
    if prediction.extremes is None:
        return scores
    horizon = prediction.quantiles.shape[1]
    # The walk's own table is fitted like a model's: as many windows, of the same span.
    trained = series.origins("train", 1, horizon)
    learned = trained[:: len(trained) // MAX_WALK_ORIGINS + 1]
    before, widths = (
        extremes.reached(series, learned, horizon),
        extremes.width(walk.quantiles(series, learned)),
    )
    levels = extremes.levels(before, widths)
    reached = extremes.reached(series, prediction.origins, horizon)
    touches = _touches(prediction, Extremes(levels), extremes.width(reference), reached)
    scores |= _scores("touch", touches)
    if prediction.extremes.first is None:
        return scores
    # The last step's table alone: those of all steps would take five times as long.
    last = Extremes(levels[:, -1:], extremes.shares(before, widths[:, -1], levels[:, -1])[:, None])
    own = Extremes(prediction.extremes.distance[:, -1:], prediction.extremes.first[:, -1:])
    model, of_walk = (
        Chances(table, np.exp(quantiles[:, -1:]), np.ones(len(quantiles)))
        for table, quantiles in ((own, prediction.quantiles), (last, reference))
    )
    unit = max(float(np.median(walk.scale(series, trained, horizon)[:, -1])), extremes.TINY)
    outcomes = list(_outcomes(model, of_walk, reached, unit))
    scores |= _scores("first", [(x[:, :1], y[:, :1], z[:, :1]) for x, y, z in outcomes])
    together = _scores(OUTCOMES, outcomes)
    names = [f"{of}{OUTCOMES}_brier" for of in ("", "reference_")]
    return scores | {name: together[name].sum(axis=1, keepdims=True) for name in names}


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


def _scores(name: str, events: Iterable[_Event]) -> dict[str, Array]:
    losses, reference_losses, stated = [], [], []
    for chances, of_walk, came in events:
        losses.append((chances - came) ** 2)
        reference_losses.append((of_walk - came) ** 2)
        stated.append(_stated(chances, came))
    return {
        f"{name}_brier": np.mean(losses, axis=0),
        f"reference_{name}_brier": np.mean(reference_losses, axis=0),
        f"{name}_stated": np.sum(stated, axis=0)[None],
    }


def _stated(chances: Array, came: NDArray[np.bool_]) -> Array:
    """Return the counts [H, 100, 3] of an event's chances [N, H]."""
    steps = chances.shape[1]
    bins = (np.minimum(chances * 100, 99).astype(np.int64) + 100 * np.arange(steps)).ravel()
    weights = (np.ones(len(bins)), chances.ravel(), came.ravel())
    sums: Array = np.stack([np.bincount(bins, of, 100 * steps) for of in weights], axis=1)
    return sums.reshape(steps, 100, 3)


def _closes(series: Series, prediction: Prediction, reference: Array) -> Iterator[_Event]:
    shape = prediction.quantiles.shape[:2]
    # Each step has a price of its own, so each is a forecast by itself.
    close = np.exp(prediction.quantiles.reshape(-1, 1, len(LEVELS)))
    chances, truth = Chances(None, close, np.ones(len(close))), realised(series, prediction.origins, shape[1])
    for place in DECILES:
        level = reference[..., place]
        yield chances.above(np.exp(level.ravel())).reshape(shape), 1 - LEVELS[place], truth > level


def _touches(
    prediction: Prediction, of_walk: Extremes, walk_width: Array, reached: Array
) -> Iterator[_Event]:
    assert prediction.extremes is not None
    width = extremes.width(prediction.quantiles)
    for side in range(len(SIDES)):
        for chance in CHANCES:
            # In units of the walk's width, chances of the model in units of its own: the same price in both.
            level = of_walk.reach(side, chance) * walk_width
            yield prediction.extremes.touched(side, level / width), chance, reached[side] >= level


def _outcomes(
    model: Chances, walk: Chances, reached: Array, unit: float
) -> Iterator[tuple[Array, Array, NDArray[np.bool_]]]:
    """Yield the chances [N, 3] of target first, stop first and neither, and which came."""
    candles = np.ascontiguousarray(np.moveaxis(reached, -1, 0))  # counted along origins, which is faster
    for far, near in PAIRS:
        for side, sign in enumerate((1, -1)):
            # The candle, from 0, that reaches each first; where none does, the number of candles.
            target = (candles[:, side] < far * unit).sum(axis=0)
            stop = (candles[:, 1 - side] < near * unit).sum(axis=0)
            # A candle that reaches both counts for the stop.
            won, lost = target < stop, (stop <= target) & (stop < len(candles))
            prices = np.exp(sign * far * unit), np.exp(-sign * near * unit)
            firsts = [of.first(*prices)[:, 0] for of in (model, walk)]
            stated, reference = (np.column_stack([first, 1 - first.sum(axis=-1)]) for first in firsts)
            yield stated, reference, np.column_stack([won, lost, ~(won | lost)])
