"""How much skill a test span holds at all: `python -m research.ceiling --source FOLDER --as-of 2025-06-06`.

One robust HAR for all coins is scored against the reference as every model is, and then again with knowledge that
no forecaster has, over the whole test span and by month, since one month says little. All lines but the first look
ahead: they are ceilings, not results.

    past        fitted on the training span: an honest forecast
    other days  fitted on the training span and on the other days of the test span, before and after
    itself      level, slopes and quantiles fitted on the very rows they are scored on
    memorised   the 168 hours of the week as well: four numbers each to learn from in a month, all of them scored
    oracle      knows the mean range of the coming candles
"""

import argparse
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cpbmodels.data.ranges import RangeModel, TrainingOrigins, fit_ranges, future_range
from cpbmodels.data.series import Series
from cpbmodels.data.student_t import QUANTILES
from research._shared import HORIZON, Quantiles, ingested
from tasks.judging.baselines import Rows, levels, realised, reference, step_scale
from tasks.judging.fitted import HOUR, INPUTS
from tasks.judging.scores import TAILS, Array, pinball
from tasks.signals.feature_files import load_series, write_features
from tasks.signals.splits import split_bounds

BLOCKS = 5
EMBARGO = 2 * HORIZON  # candles kept out on both sides of a block of other days
Found = dict[str, dict[str, float]]
"""Span ("all") or month -> its figures."""


def load(source: str, coins: str, as_of: str | None, timeframe: str, home: Path) -> list[Series]:
    scope, found = ingested(home, source, coins, timeframe, as_of=as_of)
    records = [write_features(home, series, as_of=scope.as_of) for series in found]
    bounds = split_bounds(records)
    return [load_series(home, record, bounds) for record in records]


def ceilings(series: list[Series]) -> dict[str, Found]:
    """CRPS and tail pinball over the reference's, each coin alike, for every degree of knowledge and every month."""
    train = [(one, one.origins("train", 1, HORIZON)) for one in series]
    test = [(one, one.origins("test", 1, HORIZON)) for one in series]
    past = fit_ranges(train, INPUTS, HOUR, HORIZON)
    itself = refitted(past, test)
    models: dict[str, Quantiles] = {
        "past": past.quantiles,
        "other days": other_days(train, test),
        "itself": itself.quantiles,
        "memorised": fit_ranges(test, INPUTS, HOUR, HORIZON).quantiles,
        "oracle": oracle(train),
    }
    return {name: ratios(quantiles, train, test) for name, quantiles in models.items()}


def ratios(quantiles: Quantiles, train: TrainingOrigins, test: TrainingOrigins) -> Found:
    """Ratios over the whole span and by calendar month (UTC), each the mean over the coins that have rows in it."""
    found: dict[str, list[tuple[float, float]]] = {"all": []}
    for (one, known), (_, origins) in zip(train, test, strict=True):
        assert one.times is not None
        truth = realised(one, origins, HORIZON)
        own = pinball(quantiles(one, origins), truth)
        other = pinball(reference(one, known, origins, HORIZON), truth)
        months = one.times[origins].astype("datetime64[us]").astype("datetime64[M]")
        for name in ("all", *np.unique(months).astype(str)):
            rows = slice(None) if name == "all" else months.astype(str) == name
            found.setdefault(name, []).append(
                (
                    own[rows].mean() / other[rows].mean(),
                    own[rows][..., TAILS].mean() / other[rows][..., TAILS].mean(),
                )
            )
    means = {name: np.mean(pairs, axis=0).round(4) for name, pairs in found.items()}
    return {
        name: {"crps_ratio": float(crps), "tail_ratio": float(tails)} for name, (crps, tails) in means.items()
    }


def refitted(model: RangeModel, known: TrainingOrigins) -> RangeModel:
    """The model with level, slopes and quantiles as they fit these origins best; its hours stay."""
    inputs = np.concatenate([model.inputs(one)[origins] for one, origins in known])
    error = [
        future_range(one, origins, HORIZON)
        - np.log(model.scale(one, origins) / step_scale(one, origins, HORIZON))
        for one, origins in known
    ]
    design = np.column_stack([np.ones(len(inputs)), inputs])
    change = np.linalg.lstsq(design, np.concatenate(error), rcond=None)[0]
    better = replace(model, level=model.level + change[0], slopes=model.slopes + change[1:])
    moves = [realised(one, origins, HORIZON) / better.scale(one, origins) for one, origins in known]
    return replace(better, table=levels(np.concatenate(moves)))


def other_days(train: TrainingOrigins, test: TrainingOrigins) -> Quantiles:
    """Each block of days is forecast by a model that learnt the past and all other blocks."""
    times = np.concatenate([one.times[origins] for one, origins in test if one.times is not None])
    edges = np.linspace(times.min(), times.max() + 1, BLOCKS + 1)
    step = np.diff(np.unique(times)).min()
    fitted = []
    for start, end in pairwise(edges):
        others = [(one, origins[~_within(one, origins, start - EMBARGO * step, end + EMBARGO * step)])
                  for one, origins in test]  # fmt: skip
        fitted.append(fit_ranges([*train, *others], INPUTS, HOUR, HORIZON))

    def quantiles(one: Series, origins: Rows) -> Array:
        found = np.empty((len(origins), HORIZON, len(QUANTILES)))
        for model, (start, end) in zip(fitted, pairwise(edges), strict=True):
            inside = _within(one, origins, start, end)
            found[inside] = model.quantiles(one, origins[inside])
        return found

    return quantiles


def _within(one: Series, origins: Rows, start: float, end: float) -> Any:
    assert one.times is not None
    return (one.times[origins] >= start) & (one.times[origins] < end)


def oracle(train: TrainingOrigins) -> Quantiles:
    """Scale by the range that will be; quantiles of the training moves over it."""

    def scale(one: Series, origins: Rows) -> Array:
        return np.exp(future_range(one, origins, HORIZON)) * step_scale(one, origins, HORIZON)

    moves = [realised(one, origins, HORIZON) / scale(one, origins) for one, origins in train]
    learnt = levels(np.concatenate(moves))
    return lambda one, origins: scale(one, origins)[..., None] * learnt


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", required=True, help="a mirror of klines, folder or URL")
    parser.add_argument(
        "--coins", default="all", help="15m is tested on 120 days where all of them have the candles"
    )
    parser.add_argument("--as-of")
    parser.add_argument("--timeframes", default="1h,15m")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = {}
    with TemporaryDirectory() as folder:
        for timeframe in asked.timeframes.split(","):
            found[timeframe] = ceilings(load(asked.source, asked.coins, asked.as_of, timeframe, Path(folder)))
    if asked.json:
        print(json.dumps(found))
        return
    for timeframe, lines in found.items():
        for span in lines["past"]:
            for name, figures in lines.items():
                texts = (f"{k} {v:.4f}" for k, v in figures[span].items())
                print(f"{timeframe:>4}  {span:<8}  {name:<10}  " + "  ".join(texts))


if __name__ == "__main__":
    main()
