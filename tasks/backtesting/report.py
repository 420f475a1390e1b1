"""A backtest from features to results: the plan before the training, judging after it, and its output.

Forecast rows are parquet files with the contract's columns, plus the fold and the realised close.

The report is an HTML page with verdicts, interactive figures and tables; it makes no network requests.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import polars as pl

from cpbmodels.data.series import Prediction, forecast_rows
from schemas.backtesting import BacktestSpec
from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL, counted
from schemas.failure import Failure
from schemas.fleets import FleetSpec
from schemas.forecast_rows import check_backtest_rows
from schemas.handover import FleetPlan, SeriesRecord, ShardResult
from tasks.backtesting.audit import audit
from tasks.backtesting.folds import FoldSeries, TrainedFleet, load_folds, plan_bounds, plan_folds
from tasks.backtesting.rolling import Backtest, Model, as_json, baselines, judge_models
from tasks.figures.judged import INTRODUCTION, judged_sections, members_section
from tasks.figures.page import Section, write_page
from tasks.judging.pool import leaderboard_rows, member_rows
from tasks.running.progress import PrintLine
from tasks.storage.files import check_writable, write_bytes, write_json
from tasks.storage.folders import new_folder
from tasks.storage.urls import public_url
from tasks.training.plan import fleet_names


def write_results(
    spec: BacktestSpec,
    results: Backtest,
    presets: Mapping[str, str],
    notes: Sequence[str],
    answer: dict[str, Any],
) -> None:
    """Write tables, the report and `result.json` into `out`, if it is given.

    Args:
        spec: the options.
        results: the results of judging.
        presets: the label of each fleet's preset.
        notes: sentences under the report's heading.
        answer: the object that `--json` prints.
    """
    if spec.out is None:
        return
    folder, title = Path(spec.out), f"cpb backtest: {', '.join(fleet_names(spec.fleets))}"
    write_report(folder / "report.html", title, results, notes)
    tables = {"leaderboard": leaderboard_rows(results.pools), "members": member_rows(results.members)}
    for name, rows in tables.items():
        for row in rows:
            row["preset"] = presets.get(str(row["architecture"]), "")
        write_bytes(folder / f"{name}.csv", pl.DataFrame(rows, infer_schema_length=None).write_csv().encode())
    config = spec.model_dump(mode="json") | {"source": public_url(spec.source) if spec.source else None}
    write_json(folder / "result.json", answer | {"config": config})


def backtest_rows(fold: FoldSeries, forecasts: Prediction, model: str) -> pl.DataFrame:
    """Return a row per origin and step of a fold, validated; prices as Float64 (PEPE trades at 1e-8).

    Args:
        fold: the forecast series and fold; the series needs `times`.
        forecasts: a trained model's, of the fold's test span.
        model: written as `model_version`.
    """
    series, origins = fold.series, forecasts.origins
    assert series.times is not None  # every stored series has times
    last = series.prices[origins, 3][:, None, None]
    issued = pl.Series(series.times[origins] + fold.id.seconds * 1_000_000).cast(pl.Datetime("us", "UTC"))
    close = last * np.exp(forecasts.quantiles)
    horizon = close.shape[1]
    rows = forecast_rows(issued, fold.id.seconds, close, last * np.exp(forecasts.candle))
    later = origins[:, None] + np.arange(1, horizon + 1)
    return check_backtest_rows(
        rows.select(
            pl.lit(fold.id.symbol).alias("symbol"),
            pl.lit(fold.id.timeframe).alias("timeframe"),
            pl.lit(model).alias("model_version"),
            "issued_at",
            pl.col("step").cast(pl.Int16),
            pl.exclude("issued_at", "step"),
            pl.Series("last_close", np.repeat(last.ravel(), horizon)),
            pl.Series("realised_close", series.prices[later, 3].ravel()),
            pl.lit(fold.fold, dtype=pl.Int16).alias("fold"),
        )
    )


def write_rows(folder: Path, fold: FoldSeries, forecasts: Prediction, model: str) -> Path:
    """Write a model's rows of a series and fold below `folder`; return the file.

    The path contains the model, the market (unless it is spot), the interval, the symbol and the fold.
    """
    part = quote(model, safe="+")  # as readers of such folders expect it: `model=gru%2Fseed-gru`
    path = fold.id.folder(folder, f"model={part}") / f"fold-{fold.fold}.parquet"
    buffer = io.BytesIO()
    backtest_rows(fold, forecasts, model).write_parquet(buffer, compression="zstd", compression_level=1)
    write_bytes(path, buffer.getvalue())
    return path


def write_report(path: Path, title: str, results: Backtest, notes: Sequence[str] = ()) -> None:
    """Write the page atomically.

    Args:
        path: path of the HTML file.
        title: heading.
        results: the results of judging.
        notes: sentences under the heading: options, look-ahead check, failures.
    """
    sections = [
        Section("What this is", text=[INTRODUCTION, *notes]),
        *judged_sections(results.pools, results.members, [f"{pair.verdict}." for pair in results.pairs]),
        members_section(results.members),
    ]
    write_page(path, title, sections)


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
    report: PrintLine,
    decide: Callable[[Backtest], dict[str, Any]] = lambda _found: {},
) -> dict[str, Any]:
    """Judge baselines and trained fleets, write the results, and return the object that `--json` prints.

    Args:
        spec: the options.
        plan: the plan of the backtest.
        results: of each planned fleet's shards.
        failures: earlier failures of series, already reported.
        report: prints a line.
        decide: called with the results of judging; returns further fields of the object.

    Returns:
        `pooled`, `members`, `pairs`, `failures`, `folds_incomplete`, `lookahead`, `exit`.
    """
    fleets = [
        TrainedFleet(fleet, shards, spec.scope.root)
        for fleet, shards in zip(plan.fleets, results, strict=True)
    ]
    models: list[Model] = [*baselines(spec.baseline_names, [fleet.name for fleet in fleets]), *fleets]
    own = {fleet.name for fleet in fleets} - {plan.beside}
    # The rows of an earlier backtest in the same folder are replaced atomically.
    with new_folder(Path(spec.out) / "forecasts") if spec.out else nullcontext() as rows:

        def record_fold(name: str, fold: FoldSeries, forecasts: Prediction) -> None:
            # Trained models only: baselines are fast to recompute, and rows are large.
            if rows is not None and name in own:
                write_rows(rows, fold, forecasts, name)

        judged = judge_models(models, plan.folds, record_fold=record_fold)
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
        notes = [*_notes(spec, judged), *([lookahead] if lookahead else [])]
        write_results(spec, judged, presets, notes, answer)
        for fleet in fleets:
            fleet.discard_unread()
    _report(judged, len(failures), len(plan.incomplete), lookahead, report)
    return answer


def _notes(spec: BacktestSpec, results: Backtest) -> list[str]:
    """Return the sentences under the report's heading."""
    as_of = spec.scope.as_of
    until = f" as of {as_of:%Y-%m-%d %H:%M} UTC" if as_of else ""
    folds, presets = (
        counted(spec.folds, "fold"),
        f"Preset{'s' * (len(spec.presets) > 1)} {', '.join(spec.presets)}",
    )
    heading = f"{presets}, {folds}, trained anew on all the past for each{until}; seed {spec.seed}."
    left_out = [f"Left out: {failure.subject}: {failure.reason}" for failure in results.failures]
    return [heading, *left_out, *results.incomplete]


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
