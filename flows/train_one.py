"""`cpb train`: one series, one architecture, through the same steps as the main job up to the scores."""

from collections.abc import Callable
from typing import Any

from flows.runner import Runner
from flows.summary import Say
from flows.training import Earlier, run_training
from schemas.errors import CpbError
from schemas.handover import FleetResult, Judgement
from schemas.run import RunSpec
from tasks.tracking.runs import COMPLETE, finish
from tasks.training.fleet_files import member_folder


def train_one(
    spec: RunSpec,
    *,
    resume: bool,
    say: Say,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Train and judge the spec's one member; return what `cpb train --json` prints.

    Raises:
        CpbError: the member failed.
    """
    earlier: Earlier = "expect" if resume else "forget"
    training = run_training(spec, Runner(), say, earlier=earlier, name="train", on_progress=on_progress)
    if training.summary.failures:
        failure = training.summary.failures[0]
        raise CpbError(failure.reason, code=failure.code)
    finish(training.summary.run_id, COMPLETE)
    result = _result(spec, training.results[0], training.judged[0].judgements[0])
    training.fleets.release()
    return result


def _result(spec: RunSpec, fleet: FleetResult, judgement: Judgement) -> dict[str, Any]:
    (member,) = fleet.members
    series, report, last = member.model.series, member.report, (member.history or ({},))[-1]
    folder = member_folder(spec.scope.root / "fleets" / fleet.key, member.name)
    return {
        "architecture": member.model.architecture,
        "market": series.market,
        "symbol": series.symbol,
        "timeframe": series.timeframe,
        "epochs_run": report.get("epochs_run"),
        "train_loss": last.get("train_loss"),
        "val_loss": last.get("val_loss"),
        "best_epoch": report.get("best_epoch"),
        "best_val_loss": report.get("best_val_loss"),
        "windows_per_s": report.get("windows_per_s"),
        "memory": {k: v for k, v in report.items() if k.endswith("_mb")},
        "test_crps_ratio": judgement.metrics.get("test_crps_ratio"),
        "run_id": judgement.run_id,
        "model_folder": str(folder / "model"),
        "exit": 0,
    }
