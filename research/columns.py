"""Which further columns lower the CRPS: `python -m research.columns --source FOLDER --timeframe 1h`.

Two stages, each on its own months (`_column_folds.MONTHS`); the folder needs the longer past that they begin with.

    development   one robust HAR for all coins in closed form, with each group of columns added and left out; the
                  perceptron that walks from it (`_walk`), by number of steps; then as evaluation
    evaluation    `har` (universal, three seeds) against the line, the walk, and `har` on all columns, on the same rows

Ratios are to the random walk with EWMA volatility, mean over coins and folds; `against har` is the quotient with `har`
trained on the same span. Diebold-Mariano's p is of the coins' mean difference by time.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import cpbmodels
from cpbmodels.data.columns import feature_frame
from cpbmodels.data.ranges import RangeModel, TrainingOrigins, fit_ranges
from cpbmodels.data.series import Series
from research._column_folds import MONTHS
from research._column_scores import Fold, Score, compared, ratio, score
from research._shared import HORIZON, Quantiles, ingested
from research._walk import PLACES, Walk, fit_walk
from research._wide_columns import (
    LONG,
    MARKET,
    OWN,
    SUB_CANDLES,
    Columns,
    finer_columns,
    market_columns,
    own_columns,
    quarter_of_day,
)
from schemas.handover import SplitBounds
from tasks.judging.baselines import levels, realised
from tasks.judging.fitted import HOUR, INPUTS
from tasks.judging.scores import Array
from tasks.market.store import read_klines
from tasks.signals.store import series_of

SEEDS = (1, 2, 3)
COINS = "BTC,ETH,SOL,BNB,ADA,DOGE,INJ,LTC,OP,XRP"
LEAST_ORIGINS = 500  # a coin with fewer to learn from is left out of a fold
TABLE = timedelta(days=365)
"""The quantiles are those of the last year of training; the line itself learns from all of it."""

FLAGS = {"no_market": tuple(n for group in MARKET.values() for n in group), "no_long": (f"range_{LONG[-1]}",)}

# ---- candles and columns


def load(
    source: str, timeframe: str, coins: Sequence[str], finer: bool, home: Path
) -> dict[str, tuple[Series, Columns]]:
    """The coins' series with the columns of every group, whatever of it is known."""
    own = {coin: _own(source, timeframe, coin, home) for coin in coins}
    market = market_columns(own)
    found = {}
    for coin, (series, columns) in own.items():
        columns |= market[coin]
        if finer:
            columns |= finer_columns(series, _own(source, "15m", coin, home)[0])
        found[coin] = (series, columns)
    return found


def _own(source: str, timeframe: str, coin: str, home: Path) -> tuple[Series, Columns]:
    since = MONTHS[timeframe].since.date().isoformat()
    _, (name,) = ingested(home, source, coin, timeframe, since=since)
    klines = read_klines(home, name, since=MONTHS[timeframe].since)
    bounds = MONTHS[timeframe].bounds(timeframe)[0][0]
    series = replace(series_of(feature_frame(klines, timeframe), name, bounds), symbol=name.symbol)
    return series, own_columns(series, klines["volume"].to_numpy())


def widened(series: Series, wide: Columns) -> Series:
    """The series with the wide columns as features: 0 where one is not known, and a flag for each group that is not."""
    flags = dict(FLAGS)
    if SUB_CANDLES["finer"][0] in wide:
        flags["no_finer"] = SUB_CANDLES["finer"]
    columns = {name: np.nan_to_num(values, posinf=0.0, neginf=0.0) for name, values in wide.items()}
    for flag, names in flags.items():
        unknown = ~np.isfinite(np.stack([wide[name] for name in names])).all(axis=0)
        columns |= {name: np.where(unknown, 0.0, columns[name]) for name in names}
        columns[flag] = unknown.astype(float)
    if series.timeframe == "15m":
        quarter = quarter_of_day(series)
        columns |= {f"{PLACES}{n}": (quarter == n).astype(float) for n in range(96)}
    features = np.column_stack([series.features, *columns.values()])
    return replace(series, features=features, names=(*series.names, *columns))


def groups(timeframe: str) -> dict[str, tuple[str, ...]]:
    """Columns by group, each with its flag."""
    found = {"location": ("close_location",), **OWN, **MARKET}
    found["long"] = (*found["long"], "no_long")
    found["market returns"] = (*found["market returns"], "no_market")
    if timeframe == "15m":
        return found | {"quarter": tuple(f"{PLACES}{n}" for n in range(96))}
    return found | {"finer": (*SUB_CANDLES["finer"], "no_finer")}


# ---- models


def fold_of(coins: Mapping[str, Series], bounds: SplitBounds) -> Fold:
    """The coins that have enough candles in a fold's training, validation and test span."""
    spanned = []
    for one in coins.values():
        assert one.times is not None
        spans = {name: tuple(np.searchsorted(one.times, _us(span)).tolist()) for name, span in bounds.items()}
        series = replace(one, spans=spans)
        counts = {name: len(series.origins(name, 1, HORIZON)) for name in spans}
        if counts["train"] >= LEAST_ORIGINS and counts["validation"] and counts["test"]:
            spanned.append(series)
    return Fold(tuple(spanned))


def _us(span: tuple[datetime, datetime]) -> list[int]:
    return [round(one.timestamp() * 1e6) for one in span]


def line(fold: Fold, names: Sequence[str], recent: bool = True) -> RangeModel:
    """The closed-form line on these columns; `recent`: its quantiles from the last year alone."""
    training = fold.origins("train")
    solved = fit_ranges(training, tuple(names), HOUR, HORIZON)
    return replace(solved, table=_table(solved, _last_year(training))) if recent else solved


def _last_year(training: TrainingOrigins) -> TrainingOrigins:
    end = max(one.times[rows[-1]] for one, rows in training if one.times is not None)
    first = end - TABLE / timedelta(microseconds=1)
    return [(one, rows[one.times[rows] >= first]) for one, rows in training if one.times is not None]


def _table(solved: RangeModel, training: TrainingOrigins) -> Array:
    moves = [realised(one, rows, HORIZON) / solved.scale(one, rows) for one, rows in training if len(rows)]
    return levels(np.concatenate(moves))


def har(fold: Fold, names: Sequence[str] = (), **options: Any) -> Quantiles:
    """`har`, one for all coins, three seeds averaged; with `names` it reads these columns besides its own."""
    features = (*cpbmodels.preset("default", "har").features, *names)
    copies = cpbmodels.train_fleet(
        fold.coins, "har", seeds=list(SEEDS), scope="universal", device="cpu", features=features, **options
    )
    model = cpbmodels.ensemble(copies)
    return lambda one, rows: cpbmodels.predict([model], [one], [rows])[0].quantiles


# ---- stages


def development(
    coins: Mapping[str, Series], timeframe: str, spans: Sequence[SplitBounds], walks: Sequence[Walk]
) -> None:
    own, base = groups(timeframe), tuple(INPUTS)
    full = [*base, *(name for group in own.values() for name in group)]
    folds = [fold_of(coins, bounds) for bounds in spans]
    usual = [ratio(score(fold, har(fold))) for fold in folds]
    _print("har", usual, usual)
    tried = {"line": base} | {f"+ {name}": (*base, *group) for name, group in own.items()}
    tried |= {f"all - {name}": tuple(n for n in full if n not in group) for name, group in own.items()}
    tried |= {"all": tuple(full)}
    for name, columns in tried.items():
        found = [ratio(score(fold, line(fold, columns, recent=False).quantiles)) for fold in folds]
        _print(name, found, usual)
    lines = [line(fold, full) for fold in folds]
    _print(
        "all, quantiles of a year",
        [ratio(score(f, m.quantiles)) for f, m in zip(folds, lines, strict=True)],
        usual,
    )
    for walk in walks:
        walked = [
            ratio(score(f, fit_walk(m, f.origins("train"), walk))) for f, m in zip(folds, lines, strict=True)
        ]
        _print(f"walk {walk.steps}{', lean' * walk.lean}{', in returns' * walk.in_returns}", walked, usual)


def comparison(coins: Mapping[str, Series], timeframe: str, folds: Sequence[SplitBounds]) -> None:
    walk = CHOSEN[timeframe]
    names = [*INPUTS, *(name for group in groups(timeframe).values() for name in group)]
    added = [n for n in names if n not in (*INPUTS, "close_location") and not n.startswith(PLACES)]
    kinds: dict[str, list[list[Score]]] = {}
    for bounds in folds:
        fold = fold_of(coins, bounds)
        solved = line(fold, names)
        models: dict[str, Callable[[], Quantiles]] = {
            "har": lambda fold=fold: har(fold),
            "line, usual columns": lambda fold=fold: line(fold, INPUTS, recent=False).quantiles,
            "line, all": lambda solved=solved: solved.quantiles,
            "walk": lambda fold=fold, solved=solved: fit_walk(solved, fold.origins("train"), walk),
            "har, all": lambda fold=fold: har(fold, added),
            "har, all, no location": lambda fold=fold: har(fold, added, location_shrink=0.0),
        }
        for kind, model in models.items():
            kinds.setdefault(kind, []).append(score(fold, model()))
            print(f"  {bounds.test[0]:%Y-%m-%d} {kind:<24} {ratio(kinds[kind][-1]):.4f}", flush=True)
    usual = [ratio(fold) for fold in kinds["har"]]
    for kind, scores in kinds.items():
        _print(kind, [ratio(fold) for fold in scores], usual)
        print(f"{'':26} {compared(scores, kinds['har'])}")


def _print(name: str, found: Sequence[float], usual: Sequence[float]) -> None:
    against = np.mean([a / b for a, b in zip(found, usual, strict=True)])
    folds = " ".join(f"{one:.4f}" for one in found)
    print(f"{name:<26} {np.mean(found):.4f}  against har {against:.4f}  folds {folds}", flush=True)


CHOSEN = {"1h": Walk(120, 1e-3), "15m": Walk(300, 2e-3)}
TRIED = (100, 200, 300)
KINDS = ((False, False), (False, True), (True, False))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", required=True, help="a mirror of klines with a long past, folder or URL")
    parser.add_argument("--timeframe", choices=sorted(MONTHS), default="1h")
    parser.add_argument("--coins", default=COINS, help="of USDT, by comma")
    parser.add_argument("--folds", type=int, default=6, help="the newest so many of the evaluation's folds")
    parser.add_argument("--stage", choices=("development", "evaluation"), default="evaluation")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        finer = asked.timeframe == "1h"
        loaded = load(
            asked.source,
            asked.timeframe,
            [f"{coin}USDT" for coin in asked.coins.split(",")],
            finer,
            Path(folder),
        )
    coins = {coin: widened(*found) for coin, found in loaded.items()}
    chosen, judged = MONTHS[asked.timeframe].bounds(asked.timeframe)
    if asked.stage == "development":
        rate = CHOSEN[asked.timeframe].rate
        development(coins, asked.timeframe, chosen, [Walk(n, rate, *kind) for kind in KINDS for n in TRIED])
    comparison(coins, asked.timeframe, chosen if asked.stage == "development" else judged[-asked.folds :])


if __name__ == "__main__":
    main()
