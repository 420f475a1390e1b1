"""A backtest from features to results: the plan before the training, judging and output after it."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpbmodels.data.series import Prediction
from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL, count
from schemas.handover import Failure, FleetPlan, SeriesRecord, ShardJob, ShardResult
from schemas.run import BacktestSpec
from tasks.backtesting import output
from tasks.backtesting.audit import audit
from tasks.backtesting.fleets import TrainedFleet, plan_folds
from tasks.backtesting.folds import FoldSeries, load_folds, plan_bounds
from tasks.backtesting.judge import Backtest, as_json, judge_models
from tasks.backtesting.models import Model, baselines, check_installed
from tasks.storage.files import check_writable, new_folder
from tasks.training.plan import job_key

Say = Callable[[str], None]


@dataclass(frozen=True)
class BacktestPlan:
    """The series in their folds, a fleet per architecture, series without any fold, and notes on incomplete folds.

    `names`: of the fleets, in results.
    """

    folds: tuple[FoldSeries, ...]
    fleets: tuple[FleetPlan, ...]
    failures: tuple[Failure, ...]
    incomplete: tuple[str, ...]
    names: tuple[str, ...]


def check_backtest(spec: BacktestSpec) -> None:
    """Raise `CpbError` for errors that can be detected before any work: folders, packages, models to load."""
    if spec.out:
        check_writable(Path(spec.out))  # before hours of work
    check_installed(spec.baseline_names)


def plan_backtest(
    spec: BacktestSpec,
    records: Sequence[SeriesRecord],
    *,
    gpus: bool = False,
    beside: tuple[str, BacktestSpec] | None = None,
) -> BacktestPlan:
    """Return the folds of every series and the fleets that train the architectures on them.

    Args:
        beside: name and options of a further recipe that is trained on the same folds.

    Raises:
        UsageError: a timeframe's history is too short for this number of folds.
    """
    found = load_folds(spec.scope.home, records, plan_bounds(records, spec.folds))
    wanted = [(name, spec, name) for name in spec.names]
    wanted += [(beside[0], beside[1], beside[1].names[0])] if beside else []
    fleets = (
        tuple(plan_folds(own, name, found.loaded, gpus=gpus) for _, own, name in wanted)
        if found.loaded
        else ()
    )
    names = tuple(name for name, *_ in wanted)
    return BacktestPlan(found.loaded, fleets, found.failures, found.incomplete, names)


def finish_backtest(
    spec: BacktestSpec,
    plan: BacktestPlan,
    results: Sequence[Sequence[ShardResult | Exception]],
    failures: Sequence[Failure],
    say: Say,
    decide: Callable[[Backtest], dict[str, Any]] = lambda _found: {},
) -> dict[str, Any]:
    """Judge baselines and trained fleets, write the results, and return the object that `--json` prints.

    Args:
        spec: the options.
        plan: the plan of the backtest.
        results: of each planned fleet's shards, or the error that ended a shard's training.
        failures: earlier failures of series, already reported.
        say: prints a line.
        decide: called with the results of judging; returns further fields of the object.

    Returns:
        `pooled`, `members`, `pairs`, `failures`, `folds_incomplete`, `lookahead`, `exit`.
    """
    fleets = [
        TrainedFleet(
            fleet,
            [_result(job, one) for job, one in zip(fleet.shards, found, strict=True)],
            spec.scope.root,
            name,
        )
        for fleet, found, name in zip(plan.fleets, results, plan.names, strict=True)
    ]
    models: list[Model] = [*baselines(spec.baseline_names, spec.names), *fleets]
    # The rows of an earlier backtest in the same folder are replaced atomically.
    with new_folder(Path(spec.out) / "forecasts") if spec.out else nullcontext() as rows:

        def record_fold(name: str, fold: FoldSeries, forecasts: Prediction) -> None:
            # Trained models only: baselines are fast to recompute, and rows are large.
            if rows is not None and name in spec.names:
                output.write_rows(rows, fold, forecasts, name)

        found = judge_models(
            models,
            plan.folds,
            record_fold=record_fold,
        )
        checked = audit(spec, plan.folds) if spec.check_lookahead else None
        found.failures = [*failures, *found.failures, *(checked.failures if checked else ())]
        found.incomplete = [*plan.incomplete, *found.incomplete]
        lookahead = checked.text if checked else None
        failed = bool(found.failures) or bool(checked and checked.leaking)
        answer = as_json(found) | {
            "failures": [failure.as_json() for failure in found.failures],
            "folds_incomplete": found.incomplete,
            "lookahead": lookahead,
            **decide(found),
            "exit": EXIT_PARTIAL if failed else EXIT_COMPLETE,
        }
        notes = [*_notes(spec, found), *([lookahead] if lookahead else [])]
        output.write_results(spec, found, fleets, notes, answer)
        for fleet in fleets:
            fleet.discard_unread()
    _report(found, len(failures), len(plan.incomplete), lookahead, say)
    return answer


def _result(job: ShardJob, found: ShardResult | Exception) -> ShardResult:
    """Return a shard's result; an error of the step itself becomes a failure of every member."""
    if isinstance(found, ShardResult):
        return found
    failures = tuple(Failure.of(member.model, "train", found) for member in job.members)
    return ShardResult(key=job_key(job), architecture=job.architecture, failures=failures)


def _notes(spec: BacktestSpec, found: Backtest) -> list[str]:
    """Return the sentences under the report's heading."""
    as_of = spec.scope.as_of
    until = f" as of {as_of:%Y-%m-%d %H:%M} UTC" if as_of else ""
    folds = count(spec.folds, "fold")
    heading = (
        f"Preset {spec.preset}, {folds}, trained anew on all the past for each{until}; seed {spec.seed}."
    )
    left_out = [f"Left out: {failure.subject}: {failure.reason}" for failure in found.failures]
    return [heading, *left_out, *found.incomplete]


def _report(
    found: Backtest, failures_said: int, incomplete_said: int, lookahead: str | None, say: Say
) -> None:
    """Print the findings, except failures and incomplete folds already printed before the training."""
    for failure in found.failures[failures_said:]:
        say(f"FAILED {failure.subject} in {failure.step}: {failure.reason}")
    for sentence in found.incomplete[incomplete_said:]:
        say(sentence)
    if lookahead:
        say(lookahead)
