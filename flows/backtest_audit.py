"""`cpb backtest --check-lookahead`: everything again without the future, and a training on shuffled features."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

import cpbmodels
from cpbmodels.series import RETURNS, Series
from flows.fleet_trainer import FleetTrainer
from schemas.config import TrainConfig
from schemas.records import SeriesRecord
from tasks.judging import lookahead
from tasks.judging.backtest import FoldSeries
from tasks.judging.baselines import ewma_walk, reference
from tasks.judging.member import judge_member
from tasks.judging.robust_har import robust_har
from tasks.market.store import read_klines
from tasks.signals.splits import SplitBounds

NO_SKILL = 0.99
"""A model that learnt from shuffled features and still falls under this CRPS ratio has another source."""


def check(
    config: TrainConfig,
    record: SeriesRecord,
    bounds: SplitBounds,
    architectures: Iterable[str],
    loaded: Sequence[FoldSeries],
) -> str:
    """Return the finding for one series: columns, window list, baselines, forecasts, shuffled training."""
    scope = config.scope
    klines = read_klines(
        scope.home, record.symbol, record.timeframe, since=scope.since, as_of=scope.as_of, market=scope.market
    )
    one = next(o for o in reversed(loaded) if o.series.symbol == record.symbol)
    trained = {name: FleetTrainer(name, config).per_series([one])[0] for name in architectures}
    models = {name: _live(member) for name, member in trained.items()}
    compute = lookahead.pipeline(bounds, {"reference": ewma_walk, "robust-har": robust_har}, models)
    first = one.series.spans["test"][0] + 200
    leaks = lookahead.check_lookahead(compute, klines, cuts=4, first=first, tolerance=1e-4)
    return lookahead.explain(leaks) + _shuffled(config, one, trained)


def _shuffled(config: TrainConfig, one: FoldSeries, trained: Mapping[str, cpbmodels.Member]) -> str:
    """Return what models learn from shuffled features: nothing, or something knows the future.

    Only for models that read no returns: those are the target's own columns and cannot be shuffled.
    """
    found = ""
    nonsense = FoldSeries(one.fold, lookahead.shuffled(one.series))
    for name, member in trained.items():
        if set(member.config["features"]) & set(RETURNS):
            continue
        learnt = FleetTrainer(name, config).per_series([nonsense])[0]
        origins = one.series.origins("test", learnt.context, learnt.horizon)
        forecasts = cpbmodels.predict([learnt], [one.series], [origins])[0]
        known = reference(one.series, one.series.origins("train", 1, learnt.horizon), origins, learnt.horizon)
        ratio = judge_member(one.series, forecasts, known, architecture=name).metrics["test_crps_ratio"]
        verdict = "no skill, as it must be" if ratio >= NO_SKILL else "LOOK-AHEAD: skill from nothing"
        found += f"; {name} trained on shuffled features: ratio {ratio:.3f}, {verdict}"
    return found


def _live(member: cpbmodels.Member) -> lookahead.Forecaster:
    def forecast(series: Series, origins: np.ndarray) -> np.ndarray:
        return cpbmodels.predict([member], [series], [origins])[0].quantiles

    return forecast
