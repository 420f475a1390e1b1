"""Rolling-origin judgement: every method forecasts the test span of every fold; a series' folds are judged jointly.

The resident judges (`tasks.judging.judges`) answer a request for each method and series, on all cores, and each has the
forecasts of one series at most in its memory. Judging is independent of training: a method forecasts, wherever it was
trained.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from cpbmodels.data.prediction import Prediction
from schemas.errors import MemberError, counted, log
from schemas.failure import Failure
from schemas.identity import SeriesId
from tasks.backtesting.folds import FoldSeries
from tasks.backtesting.methods import Method
from tasks.backtesting.results import Backtest, all_pairs
from tasks.backtesting.rows import write_rows
from tasks.judging import scores
from tasks.judging.baselines import ScaledTable, ewma_walk
from tasks.judging.chance_scores import chance_scores
from tasks.judging.judges import JudgeDied, Judges
from tasks.judging.member import MemberScore, judge_member, training_returns
from tasks.judging.pool import apply_holm, judge_pools
from tasks.judging.scores import MEDIAN, realised
from tasks.running.parallel import run_each
from tasks.running.progress import report_progress
from tasks.running.resident import Requests

JUDGE = "tasks.backtesting.rolling"
"""The module that a backtest's judges run: this one."""

TOO_SHORT = "too-short"
"""Failure code of a series whose fold has no window for the architecture: the fold is left out."""

Answer = tuple[MemberScore | Failure, list[str]]
"""The score of a method on a series, or why there is none; and a sentence for each fold that the score is without."""


def judge_methods(
    methods: Sequence[Method], folds: Sequence[FoldSeries], judges: Judges, rows: Mapping[str, Path]
) -> Backtest:
    """Judge every method on every series over the series' folds; a failure does not affect the others.

    Args:
        methods: baselines and trained fleets.
        folds: series × folds, fold by fold.
        judges: processes that run `JUDGE`.
        rows: by name of a method, the folder below which its forecasts are written.
    """
    series = by_series(folds)
    done = {method.name: itertools.count(1) for method in methods}

    def ask(method: Method, of_series: Sequence[FoldSeries]) -> Answer:
        name = of_series[0].id
        # A judge reads no other coin: hundreds of MB in a large universe, and nothing that it computes needs them.
        sent = [replace(fold, series=replace(fold.series, cross_section=None)) for fold in of_series]
        try:
            answer: Answer = judges.ask((method.on(name), sent, rows.get(method.name)))
        except JudgeDied as error:
            answer = Failure.of(method.identity(of_series[0]), "evaluate", error), []
        facts = f"{name}, {counted(len(of_series), 'fold')}"
        report_progress(f"judge {method.name}", next(done[method.name]), len(series), "series", facts)
        return answer

    for method in methods:
        report_progress(f"judge {method.name}", 0, len(series), "series")
    result = Backtest()
    # All requests at once: a wait for the last series of each method would leave cores idle.
    requests = [partial(ask, method, of_series) for method in methods for of_series in series.values()]
    for answer in run_each(requests, judges.number):
        if isinstance(answer, Exception):
            raise answer
        outcome, incomplete = answer
        if isinstance(outcome, Failure):
            result.failures.append(outcome)
        else:
            result.members.append(outcome)
        result.incomplete += incomplete
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


# --- In the judge's process


def serve(requests: Requests) -> None:
    """Judge the method and series of each request."""
    for request in requests:
        requests.answer(judge_series(*request))


def judge_series(method: Method, folds: Sequence[FoldSeries], rows: Path | None) -> Answer:
    """Return the score of a method on a series over all its folds, or the failure that prevented it."""
    missing = {fold.fold: why for fold in folds if (why := method.training_failure(fold))}
    able = [fold for fold in folds if fold.fold not in missing]
    # A model that diverged in a fold is not judged on the others: without its worst fold its score would be too good.
    decisive = [(fold, why) for fold, why in missing.items() if why.code != TOO_SHORT or not able]
    if decisive:
        fold, why = decisive[0]
        return why.model_copy(update={"reason": f"fold {fold}: {why.reason}"}), []
    name = folds[0].id
    try:
        forecasts = [_FoldForecasts(fold, method.forecast(fold)) for fold in able]
        judged = [forecast for forecast in forecasts if len(forecast.forecasts.origins)]
        score = _score(method.name, name, judged)
        if rows:
            for forecast in judged:
                write_rows(rows, forecast.tested, forecast.forecasts, method.name)
    except Exception as error:  # noqa: BLE001 - the other series and methods are still judged
        log.debug("%s could not be judged", method.identity(folds[0]), exc_info=error)
        return Failure.of(method.identity(folds[0]), "evaluate", error), []
    reasons = {fold: why.reason for fold, why in missing.items()}
    reasons |= {f.tested.fold: "no test origin" for f in forecasts if not len(f.forecasts.origins)}
    return score, [
        f"{method.name} on {name} is judged without fold {fold}: {reason}"
        for fold, reason in sorted(reasons.items())
    ]


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


def _score(name: str, series: SeriesId, folds: Sequence[_FoldForecasts]) -> MemberScore:
    """Return the score over all folds, each compared with the reference fitted on its own training span.

    Raises:
        MemberError: there are no forecasts, or a forecast is not finite.
    """
    if not folds:
        raise MemberError(
            f"{name} on {series}: no test origin to judge; the test span is too short", code="no-origin"
        )
    # Test spans are adjacent and ascending, so joined they are one span: blocks of the bootstrap may cross an edge.
    joined = Prediction(
        np.concatenate([fold.forecasts.origins for fold in folds]),
        np.concatenate([fold.forecasts.quantiles for fold in folds]),
    )
    reference_quantiles = np.concatenate(
        [fold.walk.quantiles(fold.tested.series, fold.forecasts.origins) for fold in folds]
    )
    of_folds = [chance_scores(fold.tested.series, fold.forecasts, fold.walk) for fold in folds]
    known = [key for key in of_folds[0] if all(key in scores for scores in of_folds)]
    score = judge_member(
        folds[0].tested.series,
        joined,
        reference_quantiles,
        architecture=name,
        chances={key: np.concatenate([scores[key] for scores in of_folds]) for key in known},
    )
    # Each fold's errors are scaled by its own training span, on which its reference is fitted too.
    mase = np.average(
        [fold.mase() for fold in folds], weights=[len(fold.forecasts.origins) for fold in folds]
    )
    return replace(score, metrics=score.metrics | {"test_mase": float(mase)})
