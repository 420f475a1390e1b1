"""Rolling-origin judgement: every model forecasts the test span of every fold; a series' folds are judged jointly.

Baselines and trained fleets (`folds.py`) implement the same protocol, so all are judged on the same rows.

Independent of training: a `Model` forecasts, wherever it was trained. Models and series are processed sequentially, so
that the forecasts of at most one series are in memory.

Each pair of models is compared on their common rows, for example to see whether a network beats the linear model.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Protocol

import numpy as np

from cpbmodels.arch.presets import preset
from cpbmodels.data import HORIZON
from cpbmodels.data.ranges import RangeModel, fit_ranges
from cpbmodels.data.series import Prediction, Series
from schemas.errors import MemberError, counted, log
from schemas.failure import Failure
from schemas.identity import ModelId, SeriesId
from tasks.backtesting.folds import FoldSeries
from tasks.judging import inference, scores, verdicts
from tasks.judging.baselines import Fit, ScaledTable, ewma_walk, random_walk
from tasks.judging.member import MemberScore, judge_member, training_returns
from tasks.judging.pool import PoolScore, apply_holm, compare_pair, judge_pools, title_of
from tasks.judging.scores import MEDIAN, Rows, realised
from tasks.judging.touch_scores import STATED, deciles, touch_scores
from tasks.running.progress import report_progress

TOO_SHORT = "too-short"
"""Failure code of a series whose fold has no window for the architecture: the fold is left out."""


def robust_har(series: Series, origins: Rows, horizon: int) -> RangeModel:
    """Fit the strongest baseline: the architecture of the same name, in float64, on a coin's training origins.

    Raises:
        ModelError: there is no training origin.
    """
    options = preset("default", "robust-har")
    return fit_ranges([(series, origins)], options.features, options.calendar, horizon, options.input_clip)


BASELINES: dict[str, Fit] = {"random-walk": random_walk, "robust-har": robust_har}
"""Baselines by the names in `schemas.backtesting.BASELINES`."""


class Model(Protocol):
    """A method under test."""

    @property
    def name(self) -> str:
        """Name of the model in reports."""
        ...

    def identity(self, fold: FoldSeries) -> ModelId:
        """Return the id of the model trained on a series in a fold."""
        ...

    def training_failure(self, fold: FoldSeries) -> Failure | None:
        """Return why no model could be trained on a series in a fold; None if training succeeded."""
        ...

    def forecast(self, fold: FoldSeries) -> Prediction:
        """Return the forecasts of a fold's test span, from every origin in it, by the model trained in that fold."""
        ...


@dataclass(frozen=True)
class Baseline:
    """A baseline as a model: fitted per series on the training origins of a fold, in this process."""

    name: str
    fit: Fit

    def identity(self, fold: FoldSeries) -> ModelId:
        """Return the baseline's name on this series; a baseline has no preset and no seed."""
        return ModelId(self.name, "baseline", fold.id, 0)

    def training_failure(self, fold: FoldSeries) -> Failure | None:
        """Return None: an error of fitting is raised in `forecast`."""
        return None

    def forecast(self, fold: FoldSeries) -> Prediction:
        """Fit on the fold's training origins and forecast its test span."""
        fitted = self.fit(fold.series, fold.series.origins("train", 1, HORIZON), HORIZON)
        origins = fold.series.origins("test", 1, HORIZON)
        return Prediction(origins, fitted.quantiles(fold.series, origins))


def baselines(names: Collection[str], fleets: Collection[str]) -> list[Model]:
    """Return the requested baselines, except those also trained as a fleet of the same name."""
    return [Baseline(name, BASELINES[name]) for name in names if name not in fleets]


RecordFold = Callable[[str, FoldSeries, Prediction], None]
"""Called with a model's name, the fold and the forecasts of every judged fold."""


@dataclass(frozen=True)
class Pair:
    """Comparison of two models.

    `ratio`: CRPS of `first` / CRPS of `second`, with equal weight per coin. `p`: Diebold-Mariano, corrected by
    Holm over the pairs. `n`: common forecast rows.
    """

    first: str
    second: str
    timeframe: str
    ratio: float
    p: float
    n: int

    @property
    def verdict(self) -> str:
        """The finding as a sentence."""
        first = f"{title_of(self.first)} {self.timeframe}"
        return verdicts.pair_verdict(first, title_of(self.second), self.ratio, self.p, self.n)


def all_pairs(members: Sequence[MemberScore]) -> list[Pair]:
    """Return the pairs of a timeframe's architectures with common rows; p is corrected over the timeframe's pairs."""
    groups: dict[str, dict[str, list[MemberScore]]] = defaultdict(lambda: defaultdict(list))
    for member in members:
        groups[member.timeframe][member.architecture].append(member)
    pairs: list[Pair] = []
    for timeframe, models in groups.items():
        coins = {name: {score.symbol for score in scores} for name, scores in models.items()}
        names = [(a, b) for a, b in combinations(models, 2) if coins[a] & coins[b]]
        compared = [compare_pair(models[a], models[b]) for a, b in names]
        corrected = inference.holm([p for _, p, _ in compared])
        pairs += [
            Pair(a, b, timeframe, ratio, p, n)
            for (a, b), (ratio, _, n), p in zip(names, compared, corrected, strict=True)
        ]
    return pairs


@dataclass
class Backtest:
    """Results of a backtest. `incomplete`: a message for every fold that is missing from a model's judgement."""

    members: list[MemberScore] = field(default_factory=list)
    pools: list[PoolScore] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _FoldForecasts:
    """Forecasts of a fold's test span by the model trained in it."""

    tested: FoldSeries
    forecasts: Prediction

    @cached_property
    def walk(self) -> ScaledTable:
        """The reference, fitted on the fold's training span."""
        horizon = self.forecasts.quantiles.shape[1]
        return ewma_walk(self.tested.series, self.tested.series.origins("train", 1, horizon), horizon)

    def mase(self) -> float:
        """Return the median's MASE, scaled by the fold's training span."""
        quantiles = self.forecasts.quantiles
        truth = realised(self.tested.series, self.forecasts.origins, quantiles.shape[1])
        return scores.mase(quantiles[..., MEDIAN], truth, training_returns(self.tested.series))


def judge_models(
    models: Sequence[Model],
    folds: Sequence[FoldSeries],
    record_fold: RecordFold | None = None,
) -> Backtest:
    """Judge every model on every series over the series' folds; a failure does not affect the others.

    Args:
        models: baselines and trained fleets.
        folds: series × folds, fold by fold.
        record_fold: called with every judged fold's forecasts.
    """
    result = Backtest()
    series = by_series(folds)
    for model in models:
        for done, (name, series_folds) in enumerate(series.items()):
            report_progress(
                f"judge {model.name}",
                done,
                len(series),
                "series",
                f"{name}, {counted(len(series_folds), 'fold')}",
            )
            _judge_series(model, series_folds, record_fold, result)
        report_progress(f"judge {model.name}", 1, 1, "series")
    result.members = apply_holm(result.members)
    result.pools = judge_pools(result.members)
    result.pairs = all_pairs(result.members)
    return result


def by_series(folds: Sequence[FoldSeries]) -> dict[SeriesId, list[FoldSeries]]:
    """Return the folds of each series, in order."""
    grouped: dict[SeriesId, list[FoldSeries]] = defaultdict(list)
    for fold in folds:
        grouped[fold.id].append(fold)
    return grouped


def _judge_series(
    model: Model, folds: list[FoldSeries], record_fold: RecordFold | None, result: Backtest
) -> None:
    """Add the score of a model on a series to the result, or the failure that prevented it."""
    missing = {fold.fold: why for fold in folds if (why := model.training_failure(fold))}
    able = [fold for fold in folds if fold.fold not in missing]
    # A model that diverged in a fold is not judged on the others: without its worst fold its score would be too good.
    decisive = [(fold, why) for fold, why in missing.items() if why.code != TOO_SHORT or not able]
    if decisive:
        fold, why = decisive[0]
        result.failures.append(why.model_copy(update={"reason": f"fold {fold}: {why.reason}"}))
        return
    try:
        forecasts = [_FoldForecasts(fold, model.forecast(fold)) for fold in able]
        judged = [forecast for forecast in forecasts if len(forecast.forecasts.origins)]
        score = _score(model.name, folds[0].id, judged)
        if record_fold:
            for forecast in judged:
                record_fold(model.name, forecast.tested, forecast.forecasts)
    except Exception as error:  # noqa: BLE001 - the other series and models are still judged
        result.failures.append(Failure.of(model.identity(folds[0]), "evaluate", error))
        log.debug("%s could not be judged", model.identity(folds[0]), exc_info=error)
        return
    result.members.append(score)
    reasons = {fold: why.reason for fold, why in missing.items()}
    reasons |= {f.tested.fold: "no test origin" for f in forecasts if not len(f.forecasts.origins)}
    for fold, reason in sorted(reasons.items()):
        result.incomplete.append(f"{model.name} on {folds[0].id} is judged without fold {fold}: {reason}")


def _score(name: str, series: SeriesId, folds: Sequence[_FoldForecasts]) -> MemberScore:
    """Return the score over all folds, each compared with the reference fitted on its own training span.

    Raises:
        MemberError: there are no forecasts, or a forecast is not finite.
    """
    if not folds:
        raise MemberError(
            f"{name} on {series}: no test origin to judge; the test span is too short", code="no-origin"
        )
    joined = Prediction(
        np.concatenate([fold.forecasts.origins for fold in folds]),
        np.concatenate([fold.forecasts.quantiles for fold in folds]),
    )
    reference_quantiles = np.concatenate(
        [fold.walk.quantiles(fold.tested.series, fold.forecasts.origins) for fold in folds]
    )
    of_folds = [touch_scores(fold.tested.series, fold.forecasts, fold.walk) for fold in folds]
    touch = {name: np.concatenate([scores[name] for scores in of_folds]) for name in of_folds[0]}
    score = judge_member(folds[0].tested.series, joined, reference_quantiles, architecture=name, touch=touch)
    # Each fold's errors are scaled by its own training span, on which its reference is fitted too.
    mase = np.average(
        [fold.mase() for fold in folds], weights=[len(fold.forecasts.origins) for fold in folds]
    )
    return replace(score, metrics=score.metrics | {"test_mase": float(mase)})


def as_json(result: Backtest, presets: Mapping[str, str]) -> dict[str, Any]:
    """Return `pooled[MODEL][TIMEFRAME]`, `members["MODEL/SYMBOL/TIMEFRAME"]` and `pairs` as JSON.

    MODEL is a baseline's or a fleet's name: `har`, or `gru/seed-gru` beside another fleet of the architecture.

    Args:
        presets: the label of each fleet's preset; a baseline has none.
    """
    pooled: dict[str, dict[str, object]] = defaultdict(dict)
    for pool in result.pools:
        pooled[pool.architecture][pool.timeframe] = _short(pool.metrics) | {
            "coins": len(pool.symbols),
            "coins_below_one": pool.metrics["coins_below_one"],
            "touch_deciles": deciles(pool.steps[STATED]).tolist() if STATED in pool.steps else None,
            "verdict": pool.verdict,
            "preset": presets.get(pool.architecture),
        }
    members = {
        f"{m.architecture}/{m.symbol}/{m.timeframe}": _short(m.metrics)
        | {"verdict": m.verdict, "preset": presets.get(m.architecture)}
        for m in result.members
    }
    pairs = [asdict(pair) | {"verdict": pair.verdict} for pair in result.pairs]
    return {"pooled": dict(pooled), "members": members, "pairs": pairs}


def _short(metrics: Mapping[str, float]) -> dict[str, object]:
    names = (
        "crps",
        "crps_ratio",
        "p",
        "mae_ratio",
        "mase",
        "directional_accuracy",
        "coverage_50",
        "coverage_80",
        "coverage_90",
        "tail_pinball_ratio",
    )
    short: dict[str, object] = {name: metrics[f"test_{name}"] for name in names}
    short["interval"] = [metrics["test_crps_ratio_low"], metrics["test_crps_ratio_high"]]
    if "test_touch_p" in metrics:
        short |= {name: metrics[f"test_{name}"] for name in ("touch_brier", "touch_brier_ratio", "touch_p")}
        short["touch_interval"] = [metrics[f"test_touch_brier_ratio_{end}"] for end in ("low", "high")]
    if "test_p_holm" in metrics:
        short["p_holm"] = metrics["test_p_holm"]
    return short | {"n": int(metrics["test_n"])}
