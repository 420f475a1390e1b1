"""`cpb train`: a single series and architecture, through the steps of the main job up to the scores."""

import shlex
from pathlib import Path
from typing import Any

from flows.runner import Runner
from flows.train_all import ResumeMode, mirror_to_wandb, run_training
from schemas.errors import count
from schemas.handover import Judgement, ShardResult
from schemas.identity import SIM
from schemas.run import RunSpec
from tasks.running.parallel import Report
from tasks.storage.files import public_url
from tasks.tracking.runs import finish
from tasks.training.shard import LATEST, Checkpoint


def train_one(spec: RunSpec, *, resume: str | None, report: Report) -> dict[str, Any]:
    """Train and judge the only member of the spec; return the object that `cpb train --json` prints.

    Args:
        resume: `latest`: continue the same command's earlier training; a path: start from this checkpoint, or from a
            shard's newest checkpoint.

    Raises:
        UsageError: the path holds no checkpoint.
        CpbError: the member failed.
    """
    mode: ResumeMode = "expect" if resume in LATEST else Checkpoint.at(Path(resume)) if resume else "forget"
    training = run_training(spec, Runner(), report, resume=mode, name="train")
    finish(training.summary.run_id, *training.summary.outcome())
    mirror_to_wandb(spec, training.summary.run_id, report)
    result = _result(training.results[0][0], training.judged[0].judgements[0])
    training.in_use.release()
    return result | {"exit": training.summary.exit_code}


def result_lines(spec: RunSpec, result: dict[str, Any]) -> list[str]:
    """Return the final lines of `cpb train`: verdict, losses, location of the results, next command."""
    (series,) = spec.scope.series
    verdict = f"is {result['verdict']}" if result["verdict"] else "could not be judged"
    options = series.options
    if spec.source and spec.market != SIM:  # a folder, a table or a mirror, which the series does not name
        source = shlex.quote(public_url(spec.source))
        options = f"--coins {series.symbol} --timeframes {series.timeframe} --source {source}"
    lines = [f"{result['architecture']} on {result['symbol']} {result['timeframe']} {verdict}"]
    if result["val_loss"] is not None:  # a closed form has none
        epochs, best = result["epochs_run"], result["best_val_loss"]
        lines.append(f"  loss   {best:.4f} in validation, the best of {count(epochs, 'epoch')}")
    return [
        *lines,
        f"  model  {result['model_folder']}",
        f"  run    {result['run_id']} (`cpb ui` shows it)",
        f"  next   cpb train-all {options} --architectures {result['architecture']}   (trains the preset's model, "
        "lets the gate decide, and forecasts)",
    ]


_RATIO = ("test_crps_ratio", "test_crps_ratio_low", "test_crps_ratio_high")


def _result(shard: ShardResult, judgement: Judgement) -> dict[str, Any]:
    (member,) = shard.members
    series, report, last = member.model.series, member.report, (member.history or ({},))[-1]
    reported = ("epochs_run", "best_epoch", "best_val_loss", "windows_per_s", "device")
    return {
        "architecture": member.model.architecture, "market": series.market, "symbol": series.symbol,
        "timeframe": series.timeframe, **{name: report.get(name) for name in reported},
        "train_loss": last.get("train_loss"), "val_loss": last.get("val_loss"),
        "memory": {name: value for name, value in report.items() if name.endswith("_mb")},
        "stopped": report.get("reason") or report.get("stopped"),
        "history": [{key: epoch.get(key) for key in ("train_loss", "val_loss")} for epoch in member.history],
        "verdict": judgement.verdict, **{name: judgement.metrics.get(name) for name in _RATIO},
        "run_id": judgement.run_id, "model_folder": str(judgement.folder / "model"),
    }  # fmt: skip
