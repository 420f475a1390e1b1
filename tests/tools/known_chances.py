"""Markets whose extremes are known, for the tests of chances: candles with wicks, and forecasts with a table."""

from dataclasses import replace

import numpy as np

from cpbmodels.data import extremes
from cpbmodels.data.prediction import Prediction
from tasks.judging import baselines
from tasks.judging.chance_scores import chance_scores
from tasks.judging.member import judge_member
from tests.tools.known_markets import H
from tests.tools.known_markets import market as known_market


def market(rows=3000, **options):
    """The known market with wicks: without, many candles do not leave the last close."""
    series = known_market(rows, **options)
    prices, wicks = series.prices.copy(), np.random.default_rng(9).normal(0, 0.003, (2, rows))
    prices[:, 1] *= np.exp(np.abs(wicks[0]))
    prices[:, 2] *= np.exp(-np.abs(wicks[1]))
    return replace(series, prices=prices)


def walk_of(series):
    return baselines.ewma_walk(series, series.origins("train", 1, H), H)


def forecasts(series, spread=1.0, table=None):
    """The walk's own forecasts over the test span, stretched, with its own table unless another is given."""
    walk, learned, test = walk_of(series), series.origins("train", 1, H), series.origins("test", 1, H)
    if table is None:
        widths = extremes.width(walk.quantiles(series, learned))
        table = extremes.fit(extremes.reached(series, learned, H), widths)
    return Prediction(test, walk.quantiles(series, test) * spread, extremes=table)


def judged(series, prediction, architecture="x"):
    walk = walk_of(series)
    other = walk.quantiles(series, prediction.origins)
    chances = chance_scores(series, prediction, walk)
    return judge_member(series, prediction, other, architecture=architecture, chances=chances)
