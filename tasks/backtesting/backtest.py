"""A backtest from features to results: what is planned before the training, judged and written after it."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.backtesting import BacktestSpec
from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL
from schemas.failure import Failure
from schemas.fleets import FleetSpec
from schemas.handover import FleetPlan, SeriesRecord, ShardResult
from tasks.backtesting.audit import audit
from tasks.backtesting.folds import FoldSeries, load_folds, plan_bounds, plan_folds
from tasks.backtesting.methods import Method, TrainedFleet, baselines
from tasks.backtesting.report import report_notes, write_results
from tasks.backtesting.results import Backtest, as_json
from tasks.backtesting.rolling import judge_methods
from tasks.judging.judges import Judges
from tasks.running.progress import PrintLine
from tasks.storage.files import check_writable
from tasks.storage.folders import new_folder
from tasks.training.plan import fleet_names


@dataclass(frozen=True)
class BacktestPlan:
    """The series in their folds, the fleets, series without any fold, and notes on incomplete folds.

    `beside`: name of the fleet that is not the backtest's own, "" for none.
    """

    folds: tuple[FoldSeries, ...]
    fleets: tuple[FleetPlan, ...]
    failures: tuple[Failure, ...]
    incomplete: tuple[str, ...]
    beside: str = ""


def check_backtest(spec: BacktestSpec) -> None:
    """Raise `UsageError` if the results cannot be written: before hours of work, not after them."""
    if spec.out:
        check_writable(Path(spec.out))


def plan_backtest(
    spec: BacktestSpec,
    records: Sequence[SeriesRecord],
    *,
    gpus: bool = False,
    beside: tuple[str, FleetSpec] | None = None,
) -> BacktestPlan:
    """Return the folds of every series and the fleets that are trained on them.

    Args:
        beside: name and options of a further fleet that is trained on the same folds.

    Raises:
        UsageError: a timeframe's history is too short for this number of folds.
    """
    folds = load_folds(spec.scope.home, records, plan_bounds(records, spec.folds))
    wanted = [*zip(fleet_names(spec.fleets), spec.fleets, strict=True), *([beside] if beside else [])]
    fleets = (
        tuple(plan_folds(spec, fleet, folds.loaded, name=name, gpus=gpus) for name, fleet in wanted)
        if folds.loaded
        else ()
    )
    name = beside[0] if beside else ""
    return BacktestPlan(folds.loaded, fleets, folds.failures, folds.incomplete, name)


def finish_backtest(
    spec: BacktestSpec,
    plan: BacktestPlan,
    results: Sequence[Sequence[ShardResult]],
    failures: Sequence[Failure],
    judges: Judges,
    report: PrintLine,
    decide: Callable[[Backtest], dict[str, Any]] = lambda _found: {},
) -> dict[str, Any]:
    """Judge baselines and trained fleets, write the results, and return the object that `--json` prints.

    Args:
        spec: the options.
        plan: the plan of the backtest.
        results: of each planned fleet's shards.
        failures: earlier failures of series, already reported.
        judges: processes that run `tasks.backtesting.rolling`.
        report: prints a line.
        decide: called with the results of judging; returns further fields of the object.

    Returns:
        `pooled`, `members`, `pairs`, `failures`, `folds_incomplete`, `lookahead`, `exit`.
    """
    fleets = [
        TrainedFleet.of(fleet, shards, spec.scope.root)
        for fleet, shards in zip(plan.fleets, results, strict=True)
    ]
    methods: list[Method] = [*baselines(spec.baseline_names, [fleet.name for fleet in fleets]), *fleets]
    # The rows of an earlier backtest in the same folder are replaced atomically.
    # Judging, the check and the tables within the block: if any of them fails, the rows of the earlier backtest
    # stay.
    with new_folder(Path(spec.out) / "forecasts") if spec.out else nullcontext() as folder:
        # Of trained models only: baselines are fast to recompute, and rows are large.
        rows = {fleet.name: folder for fleet in fleets if folder and fleet.name != plan.beside}
        judged = judge_methods(methods, plan.folds, judges, rows)
        checked = audit(spec, plan.folds) if spec.check_lookahead else None
        judged.failures = [*failures, *judged.failures, *(checked.failures if checked else ())]
        judged.incomplete = [*plan.incomplete, *judged.incomplete]
        lookahead = checked.text if checked else None
        failed = bool(judged.failures) or bool(checked and checked.leaking)
        presets = {fleet.name: fleet.label for fleet in plan.fleets}
        answer = as_json(judged, presets) | {
            "failures": [failure.as_json() for failure in judged.failures],
            "folds_incomplete": judged.incomplete,
            "lookahead": lookahead,
            **decide(judged),
            "exit": EXIT_PARTIAL if failed else EXIT_COMPLETE,
        }
        notes = [*report_notes(spec, judged), *([lookahead] if lookahead else [])]
        write_results(spec, judged, presets, notes, answer)
        # After the results are written: a killed command that is repeated finds all that it needs.
        for fleet in fleets:
            fleet.discard_unread()
    _report(judged, len(failures), len(plan.incomplete), lookahead, report)
    return answer


def _report(
    results: Backtest, failures_said: int, incomplete_said: int, lookahead: str | None, report: PrintLine
) -> None:
    """Print the findings, except failures and incomplete folds already printed before the training."""
    for failure in results.failures[failures_said:]:
        report(f"FAILED {failure.subject} in {failure.step}: {failure.reason}")
    for sentence in results.incomplete[incomplete_said:]:
        report(sentence)
    if lookahead:
        report(lookahead)
