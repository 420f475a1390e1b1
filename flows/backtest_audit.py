"""`cpb backtest --check-lookahead`: everything again without the future, and a training on shuffled features."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import polars as pl
import torch

import cpbmodels
from cpbmodels.bank import Bank, make_task
from cpbmodels.series import RETURNS, Series
from flows.fleet_trainer import FleetTrainer
from schemas.config import TrainConfig
from tasks.judging import lookahead
from tasks.judging.backtest import FoldSeries
from tasks.judging.baselines import Fit, ewma_walk, reference
from tasks.judging.member import judge_member
from tasks.market.store import read_klines
from tasks.signals.splits import SplitBounds

NO_SKILL = 0.99
"""A model that learnt from shuffled features and still falls under this CRPS ratio has another source."""
ENOUGH = 1000
"""With fewer forecasts than these chance alone goes under it: there the ratio must be significant as well."""


def check(
    config: TrainConfig,
    bounds: Mapping[str, Sequence[SplitBounds]],
    architectures: Collection[str],
    baselines: Mapping[str, Fit],
    loaded: Sequence[FoldSeries],
) -> str:
    """Return the findings: columns and window lists of every series, and all the rest for one of each timeframe.

    The rest, on each timeframe's first series that all architectures can learn, in its newest fold: scaling, training
    windows, baselines and forecasts are computed again without the future; models are trained on shuffled features.
    """
    wrong: list[str] = []
    checked: list[str] = []
    trained = ""
    for timeframe in dict.fromkeys(one.series.timeframe for one in loaded):
        own = [one for one in loaded if one.series.timeframe == timeframe]
        newest = [one for one in own if one.fold == max(other.fold for other in own)]
        spans = bounds[timeframe][newest[0].fold]
        wrong += [leak for one in newest if (leak := _check_columns(config, one.series, spans))]
        trainers = [FleetTrainer(name, config) for name in architectures]
        able = [one for one in newest if not any(trainer.why_not(one) for trainer in trainers)]
        if not able:
            checked.append(f"columns and windows of {len(newest)} coins at {timeframe}")
            continue
        leak, shuffled = _check_one(config, able[0], spans, architectures, baselines)
        wrong += [leak] if leak else []
        trained += shuffled
        checked.append(
            f"columns and windows of {len(newest)} coins, training, baselines and forecasts of "
            f"{able[0].series.symbol} at {timeframe}"
        )
    fine = f"no look-ahead found: {', '.join(checked)} are the same without the future"
    return ("; ".join(wrong) or fine) + trained


def _klines(config: TrainConfig, series: Series) -> pl.DataFrame:
    scope = config.scope
    return read_klines(
        scope.home, series.symbol, series.timeframe, since=scope.since, as_of=scope.as_of, market=scope.market
    )


def _check_columns(config: TrainConfig, series: Series, bounds: SplitBounds) -> str:
    """Return what is wrong with a series' columns and windows, or "": cut, and compared with what was judged."""
    klines = _klines(config, series)
    stale = lookahead.stale_columns(series, klines, bounds)
    if stale:
        changed = f"{', '.join(stale)} differ from what the klines give"
        return f"LOOK-AHEAD: {series.symbol} {series.timeframe}: {changed}"
    leaks = lookahead.check_lookahead(
        lookahead.pipeline(bounds, {}), klines, cuts=2, first=_first_cut(series)
    )
    return _explained(leaks, series)


def _explained(leaks: Sequence[lookahead.Leak], series: Series) -> str:
    return f"{lookahead.explain(leaks)} ({series.symbol} {series.timeframe})" if leaks else ""


def _check_one(
    config: TrainConfig,
    one: FoldSeries,
    bounds: SplitBounds,
    architectures: Iterable[str],
    baselines: Mapping[str, Fit],
) -> tuple[str, str]:
    """Return what is wrong with one series' training, baselines and forecasts, or "", and the trial by shuffling."""
    series = one.series
    klines = _klines(config, series)
    trained = {name: FleetTrainer(name, config).per_series([one])[0] for name in architectures}
    models = {name: _live(member) for name, member in trained.items()}
    learnt = {name: _learnt(member) for name, member in trained.items()}
    exact = lookahead.pipeline(bounds, {"reference": ewma_walk, **baselines}, learnt=learnt)
    first = _first_cut(series)
    leaks = lookahead.check_lookahead(exact, klines, cuts=4, first=first)
    if not leaks:  # models see the same columns, in float32: a leak above would only be named again
        compute = lookahead.pipeline(bounds, {}, models)
        leaks = lookahead.check_lookahead(compute, klines, cuts=4, first=first, tolerance=1e-4)
    return _explained(leaks, series), _shuffled(config, one, trained)


def _first_cut(series: Series) -> int:
    """The earliest cut: some way into the test span, for what is forecast there is compared."""
    start = series.spans["test"][0]
    return start + min(200, (len(series) - start) // 3)


def _shuffled(config: TrainConfig, one: FoldSeries, trained: Mapping[str, cpbmodels.Member]) -> str:
    """Return what models learn from nonsense: nothing, or something knows the future.

    Nonsense is shuffled features, and for models that read returns, which are the target's own columns, candles in
    another order.
    """
    found = ""
    for name, member in trained.items():
        of_returns = bool(set(member.config["features"]) & set(RETURNS))
        make, what = (lookahead.reordered, "candles") if of_returns else (lookahead.shuffled, "features")
        nonsense = FoldSeries(one.fold, make(one.series))
        learnt = FleetTrainer(name, config).per_series([nonsense])[0]
        origins = one.series.origins("test", learnt.context, learnt.horizon)
        forecasts = cpbmodels.predict([learnt], [one.series], [origins])[0]
        known = reference(one.series, one.series.origins("train", 1, learnt.horizon), origins, learnt.horizon)
        score = judge_member(one.series, forecasts, known, architecture=name)
        ratio = score.metrics["test_crps_ratio"]
        finding = _of_nonsense(ratio, len(origins), score.verdict)
        found += f"; {name} trained on shuffled {what}: ratio {ratio:.3f}, {finding}"
    return found


def _of_nonsense(ratio: float, n: int, verdict: str) -> str:
    if ratio >= NO_SKILL:
        return "no skill, as it must be"
    sure = n >= ENOUGH or verdict.startswith("better than")
    return "LOOK-AHEAD: skill from nothing" if sure else "of too few forecasts to mean anything"


def _learnt(member: cpbmodels.Member) -> Callable[[Series], np.ndarray]:
    """What such a model learns from, per candle: 1 training and 2 validation origins, then its input scaling."""

    def tell(series: Series) -> np.ndarray:
        bank = Bank.build([series], member.options, torch.device("cpu"), torch.float32)
        task = make_task(bank, [series], (0,), 0, series.symbol, member.options)
        windows = np.zeros((len(series), 1))
        windows[task.train], windows[task.validation] = 1, 2
        scaling = np.concatenate([task.mean, task.inverse])
        return np.hstack([windows, np.broadcast_to(scaling, (len(series), len(scaling)))])

    return tell


def _live(member: cpbmodels.Member) -> lookahead.Forecaster:
    def forecast(series: Series, origins: np.ndarray) -> np.ndarray:
        return cpbmodels.predict([member], [series], [origins])[0].quantiles

    return forecast
