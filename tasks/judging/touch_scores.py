"""Scores of the chance that a price is touched (`cpbmodels.data.extremes`), against the random walk's.

The levels are prices that, by the walk, are touched within each step with a chance of 50, 25, 10 and 5 %, up and down:
the walk with EWMA volatility, and a table of its own from the training span. The Brier score is (chance - outcome)^2
(Brier, "Verification of forecasts expressed in terms of probability", Monthly Weather Review 78, 1950).
"""

import numpy as np

from cpbmodels.data import extremes
from cpbmodels.data.prediction import Prediction
from cpbmodels.data.series import Series
from tasks.judging.baselines import ScaledTable
from tasks.judging.scores import Array

CHANCES = (0.5, 0.25, 0.1, 0.05)
BRIER, STATED = "touch_brier", "touch_stated"

MAX_WALK_ORIGINS = 4_000
"""Training windows of the walk's table, evenly spread, as many as of a model's."""


def touch_scores(series: Series, prediction: Prediction, walk: ScaledTable) -> dict[str, Array]:
    """Return Brier scores and stated chances of forecasts; nothing of a model without a table of extremes.

    Each step's chance is read from its own row of the table, of the walk as well. What a forecast states is the largest
    chance of the steps up to it, seldom more, and then by less than .001 (on 20 coins).

    Args:
        walk: the reference, fitted on the training origins.

    Returns:
        `touch_brier`, `reference_touch_brier`: [N, H], means over levels and sides. `touch_stated`: [1, 100, 3], for
        stated chances from 0, 1, … 99 %: how many there were, their sum, and how many prices were touched.
    """
    # a forecast that is not finite is refused by `judge_member`
    if prediction.extremes is None or not np.isfinite(prediction.quantiles).all():
        return {}
    horizon = prediction.quantiles.shape[1]
    # The walk's own table is fitted like a model's: as many windows, of the same span.
    learned = series.origins("train", 1, horizon)
    learned = learned[:: len(learned) // MAX_WALK_ORIGINS + 1]
    table = extremes.fit(
        extremes.reached(series, learned, horizon), extremes.width(walk.quantiles(series, learned))
    )
    # Levels are in units of the walk's width, chances of the model in units of its own: the same price in both.
    width, walk_width = map(
        extremes.width, (prediction.quantiles, walk.quantiles(series, prediction.origins))
    )
    reached = extremes.reached(series, prediction.origins, horizon)
    scores = {name: np.zeros(width.shape) for name in (BRIER, f"reference_{BRIER}")}
    stated = np.zeros((100, 3))
    for side in range(len(extremes.SIDES)):
        for chance in CHANCES:
            # The same prices for both, chosen by the walk: a model that chose its own levels could choose easy ones.
            level = table.reach(side, chance) * walk_width
            touched = reached[side] >= level
            model_chance = prediction.extremes.touched(side, level / width)
            scores[BRIER] += (model_chance - touched) ** 2 / (2 * len(CHANCES))
            scores[f"reference_{BRIER}"] += (chance - touched) ** 2 / (2 * len(CHANCES))
            place = np.minimum(model_chance * 100, 99).astype(np.int64).ravel()
            sums = [
                np.bincount(place, weights, 100) for weights in (None, model_chance.ravel(), touched.ravel())
            ]
            stated += np.stack(sums, axis=1)
    return {**scores, STATED: stated[None]}


def deciles(stated: Array) -> Array:
    """Return [10, 2]: mean stated chance and share touched in ten groups of about as many forecasts (or fewer groups).

    Args:
        stated: [100, 3], as in `touch_scores`.
    """
    counts = stated[:, 0]
    # The group by the middle of each bin's ranks: a bin is never divided, so groups are about equal, and a model
    # that always states the same chance has one group.
    group = (10 * (np.cumsum(counts) - counts / 2) / counts.sum()).astype(np.int64)
    sums = np.stack([np.bincount(group, column) for column in stated.T], axis=1)
    return sums[sums[:, 0] > 0, 1:] / sums[sums[:, 0] > 0, :1]
