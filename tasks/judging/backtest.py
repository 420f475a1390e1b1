"""Rolling-origin backtest: train on each fold's past, forecast its test span, judge all folds together.

Knows no trainer: a `Trainer` learns from coins × folds (a fold is a member of the fleet like any other) and
returns a function that forecasts. Baselines are trainers too, so all are judged on the same rows.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import SimpleNamespace
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from cpbmodels.series import Series
from schemas.errors import MemberError
from schemas.records import Failure, SeriesRecord
from tasks.judging import scores
from tasks.judging.baselines import Fit, realised, reference
from tasks.judging.member import MemberScore, judge_member, training_returns
from tasks.judging.pairs import Pair, all_pairs
from tasks.judging.pool import PoolScore, apply_holm, judge_pools
from tasks.judging.scores import MEDIAN, Array
from tasks.signals.splits import SplitBounds
from tasks.signals.store import series_of, with_bounds

log = logging.getLogger("cpb")


class Forecasts(Protocol):
    """Origins [N], quantiles [N, H, 19] and, of models, the median candle [N, H, 4], all as log-ratios."""

    origins: NDArray[np.int64]
    quantiles: Array
    candle: Array | None


Forecaster = Callable[[Sequence[Series], str], Sequence[Forecasts | MemberError]]
"""(series, split) -> forecasts of each series from every origin of that split, element i by member i; or why not."""

Trainer = Callable[["Sequence[FoldSeries]"], Forecaster]
Keep = Callable[[str, int, Series, Forecasts], None]
"""Told (name, fold, series, forecasts) of every fold's test span: to write the rows, or to draw."""


@dataclass
class Backtest:
    """What a backtest found."""

    members: list[MemberScore] = field(default_factory=list)
    pools: list[PoolScore] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class FoldSeries:
    """One coin in one fold."""

    fold: int
    series: Series


@dataclass(frozen=True)
class _Judged:
    """One coin's forecasts of one fold, and the series whose training span they were learnt on."""

    learnt: Series
    series: Series
    forecasts: Forecasts

    def reference(self) -> Array:
        """The reference's quantiles, fitted on the same training span that the model had."""
        horizon = self.forecasts.quantiles.shape[1]
        known = self.learnt.origins("train", 1, horizon)
        return reference(self.learnt, known, self.forecasts.origins, horizon)

    def mase(self) -> float:
        """The median's MASE, on the scale of the same training span."""
        quantiles = self.forecasts.quantiles
        truth = realised(self.series, self.forecasts.origins, quantiles.shape[1])
        return scores.mase(quantiles[..., MEDIAN], truth, training_returns(self.learnt))


def load_folds(
    records: Sequence[SeriesRecord], bounds: Mapping[str, Sequence[SplitBounds]], failures: list[Failure]
) -> list[FoldSeries]:
    """Load every series with every fold's spans, fold by fold; one with too little data in a fold is noted.

    A coin that has its newest fold alone is no failure of the backtest; a coin without any fold is.
    """
    loaded, reasons = [], {}
    for record in records:
        own = bounds[record.timeframe]
        series = series_of(pl.read_parquet(record.path), own[-1], record.symbol)
        for fold, spans in enumerate(own):  # folds share the candles' arrays
            try:
                loaded.append(FoldSeries(fold, with_bounds(series, spans)))
            except MemberError as error:
                reasons[record.symbol, record.timeframe] = str(error)
                log.info("fold %d without %s", fold + 1, error)
    loaded.sort(key=lambda one: one.fold)
    having = {(one.series.symbol, one.series.timeframe) for one in loaded}
    for (symbol, timeframe), reason in reasons.items():
        if (symbol, timeframe) not in having:
            failures.append(Failure(symbol=symbol, timeframe=timeframe, step="split", reason=reason))
    return loaded


def missing(records: Sequence[SeriesRecord], loaded: Sequence[FoldSeries], folds: int) -> list[str]:
    """Return a sentence for every fold and timeframe that some coins have too little history for."""
    having = {(one.fold, *_key(one)) for one in loaded}
    found = []
    for timeframe in dict.fromkeys(r.timeframe for r in records):
        symbols = [r.symbol for r in records if r.timeframe == timeframe]
        for fold in range(folds):
            absent = [s for s in symbols if (fold, s, timeframe) not in having]
            if absent:
                found.append(
                    f"Fold {fold + 1} of {folds} at {timeframe} is without {len(absent)} of {len(symbols)} coins, "
                    f"which have too few candles in one of its spans: {', '.join(absent)}"
                )
    return found


def run_backtest(
    loaded: Sequence[FoldSeries],
    trainers: Mapping[str, Trainer],
    *,
    refit: bool = True,
    keep: Keep | None = None,
) -> Backtest:
    """Train, forecast and judge every trainer over the folds.

    Args:
        loaded: coins × folds, from `load_folds`.
        trainers: name -> trainer, models and baselines alike.
        refit: train anew for every fold; else each coin's first fold serves all of them.
        keep: is told every fold's forecasts.
    """
    result = Backtest()
    for name, trainer in trainers.items():
        result.members += _judge_trainer(name, trainer, loaded, refit, keep, result.failures)
    result.members = apply_holm(result.members)
    result.pools = judge_pools(result.members)
    result.pairs = all_pairs(result.members)
    return result


def _judge_trainer(
    name: str,
    trainer: Trainer,
    loaded: Sequence[FoldSeries],
    refit: bool,
    keep: Keep | None,
    failures: list[Failure],
) -> Iterator[MemberScore]:
    parts: dict[tuple[str, str], list[_Judged]] = defaultdict(list)
    reasons: dict[tuple[str, str], str] = {}
    first = _first_folds(loaded)
    for one, forecasts in _forecast(trainer, loaded, refit):
        if not isinstance(forecasts, MemberError) and not len(forecasts.origins):
            forecasts = MemberError("no test origin to judge; the test span is too short")
        if isinstance(forecasts, MemberError):
            reasons[_key(one)] = str(forecasts)
            log.warning("fold %d without %s: %s", one.fold + 1, name, forecasts)
            continue
        if keep is not None:
            keep(name, one.fold, one.series, forecasts)
        learnt = one.series if refit else first[_key(one)].series
        parts[_key(one)].append(_Judged(learnt, one.series, forecasts))
    for key, folds in parts.items():
        try:
            yield _judge_coin(name, folds)
        except ValueError as error:
            reasons[key] = str(error)
            del folds[:]
    for (symbol, timeframe), reason in reasons.items():
        if not parts.get((symbol, timeframe)):
            failures.append(
                Failure(symbol=symbol, timeframe=timeframe, step="judge", reason=reason, architecture=name)
            )


def _forecast(
    trainer: Trainer, loaded: Sequence[FoldSeries], refit: bool
) -> Iterator[tuple[FoldSeries, Forecasts | MemberError]]:
    if refit:
        series = [one.series for one in loaded]
        yield from zip(loaded, trainer(loaded)(series, "test"), strict=True)
        return
    first = _first_folds(loaded)
    forecaster = trainer(list(first.values()))
    for fold in sorted({one.fold for one in loaded}):
        # Every member forecasts its own coin; a coin that has no such fold is asked about its first again.
        now = {_key(one): one for one in loaded if one.fold == fold}
        asked = [now.get(key, one) for key, one in first.items()]
        for one, forecasts in zip(asked, forecaster([one.series for one in asked], "test"), strict=True):
            if one.fold == fold:
                yield one, forecasts


def _key(one: FoldSeries) -> tuple[str, str]:
    return one.series.symbol, one.series.timeframe


def _first_folds(loaded: Sequence[FoldSeries]) -> dict[tuple[str, str], FoldSeries]:
    first: dict[tuple[str, str], FoldSeries] = {}
    for one in loaded:
        first.setdefault(_key(one), one)
    return first


def _judge_coin(name: str, folds: list[_Judged]) -> MemberScore:
    joined = SimpleNamespace(
        origins=np.concatenate([one.forecasts.origins for one in folds]),
        quantiles=np.concatenate([one.forecasts.quantiles for one in folds]),
    )
    score = judge_member(
        folds[0].series, joined, np.concatenate([one.reference() for one in folds]), architecture=name
    )
    # Each fold's errors in units of its own training span, as its reference is fitted on it.
    rows = [len(one.forecasts.origins) for one in folds]
    mase = np.average([one.mase() if n else 0.0 for one, n in zip(folds, rows, strict=True)], weights=rows)
    return replace(score, metrics=score.metrics | {"test_mase": float(mase)})


def baseline_trainer(fit: Fit, horizon: int = 10) -> Trainer:
    """Return a baseline as a trainer: fitted per series on its training origins."""

    def train(loaded: Sequence[FoldSeries]) -> Forecaster:
        series = [one.series for one in loaded]
        fitted = [fit(one, one.origins("train", 1, horizon), horizon) for one in series]

        def forecast(asked: Sequence[Series], split: str) -> list[Forecasts]:
            found: list[Forecasts] = []
            for baseline, one in zip(fitted, asked, strict=True):
                origins = one.origins(split, 1, horizon)
                found.append(
                    SimpleNamespace(origins=origins, quantiles=baseline.quantiles(one, origins), candle=None)
                )
            return found

        return forecast

    return train


def as_json(result: Backtest) -> dict[str, object]:
    """Return `pooled[ARCHITECTURE][TIMEFRAME]`, `members["ARCHITECTURE/SYMBOL/TIMEFRAME"]` and `pairs`, short names."""
    pooled: dict[str, dict[str, object]] = defaultdict(dict)
    for pool in result.pools:
        pooled[pool.architecture][pool.timeframe] = _short(pool.metrics) | {
            "coins": len(pool.symbols),
            "coins_below_one": pool.metrics["coins_below_one"],
            "verdict": pool.verdict,
        }
    members = {
        f"{m.architecture}/{m.symbol}/{m.timeframe}": _short(m.metrics) | {"verdict": m.verdict}
        for m in result.members
    }
    pairs = [asdict(pair) | {"verdict": pair.verdict} for pair in result.pairs]
    return {"pooled": dict(pooled), "members": members, "pairs": pairs}


def _short(metrics: Mapping[str, float]) -> dict[str, object]:
    names = (
        "crps", "crps_ratio", "p", "mae_ratio", "mase", "directional_accuracy", "coverage_50", "coverage_80",
        "coverage_90", "tail_pinball_ratio",
    )  # fmt: skip
    short: dict[str, object] = {name: metrics[f"test_{name}"] for name in names}
    short["interval"] = [metrics["test_crps_ratio_low"], metrics["test_crps_ratio_high"]]
    if "test_p_holm" in metrics:
        short["p_holm"] = metrics["test_p_holm"]
    return short | {"n": int(metrics["test_n"])}
