"""`cpb train`: a single series and architecture, through the steps of the main job up to the scores."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from flows.phases import check_records, ingest_scope, plan_training, train_and_evaluate, write_columns
from flows.run import flow_run
from schemas.handover import Judgement, ShardResult
from schemas.run import RunSpec
from tasks.judging.accuracy import accuracy, accuracy_text
from tasks.running.progress import PrintLine
from tasks.steps import opened_engine
from tasks.tracking.archive import Archiver
from tasks.training.checkpoint import LATEST, Checkpoint
from tasks.training.cost import cost_text, fleet_cost
from tasks.training.queue import ResumeMode
from tasks.training.shard_retention import ShardsInUse

_BARS = "▁▂▃▄▅▆▇█"
_RATIO = ("test_crps_ratio", "test_crps_ratio_low", "test_crps_ratio_high")


def train_one(spec: RunSpec, *, resume: str | None, report: PrintLine) -> dict[str, Any]:
    """Train and judge the only member of the spec; return the object that `cpb train --json` prints.

    Args:
        resume: `latest`: continue the same command's earlier training; a path: start from this checkpoint, or from a
            shard's newest checkpoint.

    Raises:
        UsageError: the path holds no checkpoint.
        CpbError: the member failed.
    """
    mode: ResumeMode = "expect" if resume in LATEST else Checkpoint.at(Path(resume)) if resume else "forget"
    with flow_run("train", report) as run:
        archiver = Archiver(report)
        check_records(run, spec)
        with opened_engine(spec) as engine:
            records = write_columns(run, spec, ingest_scope(run, spec))
            planned = plan_training(run, spec, records, engine)
            with ShardsInUse(spec.scope.root):
                results, judged = train_and_evaluate(run, spec, planned, engine, archiver, mode)
                # Before the result is read: `cpb train` is recorded even if a figure of it could not be shown.
                run.end()
                result = _result(results[0][0], judged[0].judgements[0])
        archiver.archive()
    return result | {"exit": run.exit_code}


def result_lines(result: dict[str, Any], command: str) -> list[str]:
    """Return the final lines of `cpb train`: verdict, losses, cost, location of the results, next command.

    Args:
        result: what `train_one` returned.
        command: the `cpb train-all` of the same options.
    """
    name = f"{result['architecture']} on {result['symbol']} {result['timeframe']}"
    verdict = f"is {result['verdict']}" if result["verdict"] else "could not be judged"
    classes = accuracy(result)
    purpose = (
        "trains and judges the same again; a classifier forecasts no prices and never serves"
        if classes
        else "trains the same, lets the gate decide, and forecasts with the champion"
    )
    rows = [
        *([("classes", accuracy_text(classes))] if classes else []),
        *_loss_rows(result),
        ("cost", cost_text(result["cost"])),
        ("model", result["model_folder"]),
        ("run", f"{result['run_id']} (`cpb ui` shows it)"),
        ("next", f"{command}   ({purpose})"),
    ]
    return [f"{name} {verdict}", *(f"  {head:<8}{text}" for head, text in rows)]


def _loss_rows(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the losses over the epochs as sparkline and figures; nothing for a model fitted without epochs."""
    history, best = result["history"], result["best_epoch"]
    # A line of one bar says nothing.
    if len(history) < 2:
        if result["cost"].get("best_epoch"):
            yield "loss", f"{result['best_val_loss']:.4f} in validation, after one epoch"
        return
    for head, key in (("train", "train_loss"), ("valid.", "val_loss")):
        values = [epoch[key] for epoch in history if epoch[key] is not None]
        if len(values) > 1:
            yield head, f"{sparkline(values)}  loss {values[0]:.4f} -> {values[-1]:.4f}"
    if best:
        of = f" of {result['cost']['epochs_of']}" if result["cost"].get("epochs_of") else ""
        why = f"; {result['stopped']}" if result["stopped"] else ""
        yield (
            "best",
            f"validation loss {result['best_val_loss']:.4f} in epoch {best} of {len(history)}{of}{why}",
        )


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """Return the values as at most `width` bars, each the mean of its share; a space for non-finite values."""
    bars = min(width, len(values))
    edges = [round(i * len(values) / bars) for i in range(bars + 1)] if bars else []
    parts = [values[first:stop] for first, stop in pairwise(edges)]
    means = [sum(part) / len(part) for part in parts]
    # A diverged epoch has no height; it must not flatten the others.
    finite = [mean for mean in means if isfinite(mean)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    # Equal values are the lowest bar, not a division by zero.
    step = (high - low) / (len(_BARS) - 1) or 1.0
    return "".join(_BARS[round((mean - low) / step)] if isfinite(mean) else " " for mean in means)


def _result(shard: ShardResult, judgement: Judgement) -> dict[str, Any]:
    (member,) = shard.members
    series, report, last = member.model.series, member.report, (member.history or ({},))[-1]
    reported = ("epochs_run", "best_epoch", "best_val_loss", "windows_per_s", "device")
    return {
        "architecture": member.model.architecture,
        "preset": member.model.recipe,
        **vars(series),
        **{name: report.get(name) for name in reported},
        "train_loss": last.get("train_loss"),
        "val_loss": last.get("val_loss"),
        "memory": {name: value for name, value in report.items() if name.endswith("_mb")},
        "stopped": report.get("reason") or report.get("stopped"),
        "history": [{key: epoch.get(key) for key in ("train_loss", "val_loss")} for epoch in member.history],
        "cost": fleet_cost([shard]),
        "verdict": judgement.verdict,
        **accuracy(judgement.metrics),
        **{name: judgement.metrics.get(name) for name in _RATIO},
        "run_id": judgement.run_id,
        "model_folder": str(judgement.folder / "model"),
    }
