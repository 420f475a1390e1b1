"""`cpb train`: one series, one architecture, through the same steps as the main job up to the scores."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from flows.runner import Direct
from flows.train_all import Say, run_training
from schemas.config import PRESET_ARCHITECTURES, UNIVERSAL, TrainConfig
from schemas.errors import CpbError, UsageError
from tasks.storage.files import read_json
from tasks.tracking.runs import COMPLETE, finish

_SEED_OF = {
    "transformer": "seed-transformer", "gru": "seed-gru", "classifier-gru": "seed-gru",
    "lstm": "seed-lstm", "lstm-manual": "seed-lstm",
}  # fmt: skip


def default_preset(architecture: str) -> str:
    """Return the preset an architecture is trained with when none is named: its seed preset, or `default`."""
    preset = _SEED_OF.get(architecture, "default")
    if preset not in PRESET_ARCHITECTURES:
        raise UsageError(f"preset {preset!r} is unknown")
    return preset


def check_options(config: TrainConfig) -> None:
    """Raise `UsageError` for options the model cannot have or would not read, before anything is downloaded."""
    import cpbmodels

    architecture = config.architectures[0].removesuffix(UNIVERSAL)
    try:
        options = cpbmodels.preset(config.preset, architecture, **config.overrides)
    except cpbmodels.ModelError as error:
        raise UsageError(_as_options(str(error))) from None
    for sentence in cpbmodels.without_effect(options, architecture, config.overrides):
        raise UsageError(_as_options(sentence))


_TYPED = {"epochs": "max-epochs", "lr": "learning-rate", "architecture": "arch"}
"""Options that are typed under another name than the model's."""


def _as_options(text: str) -> str:
    """Name options as they are typed: `batch_size must be …` -> `--batch-size must be …`."""
    import cpbmodels

    names = (field.name for field in fields(cpbmodels.Preset))
    typed = {
        name: f"--{_TYPED.get(name, name).replace('_', '-')}" for name in (*names, "preset", "architecture")
    }
    return re.sub(r"(?<!['-])\b[a-z_]+\b(?!')", lambda word: typed.get(word[0], word[0]), text)


def train_one(
    config: TrainConfig,
    *,
    resume: bool,
    say: Say,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Train and judge the config's one member; return what `cpb train --json` prints.

    Raises:
        CpbError: the member failed.
    """
    training = run_training(config, Direct(), say, fresh=not resume, name="train", on_progress=on_progress)
    if training.summary.failures:
        raise CpbError(training.summary.failures[0].reason)
    finish(training.summary.run_id, COMPLETE)
    fleet = training.judged[0]
    (name, run_id), *_ = fleet.run_ids.items()
    folder = fleet.folder / "members" / name
    trained = read_json(folder / "history.json")
    result = _result(config, folder, trained, run_id)
    training.fleets.release()
    return result


def _result(config: TrainConfig, folder: Path, trained: dict[str, Any], run_id: str) -> dict[str, Any]:
    metrics = read_json(folder / "model" / "metrics.json")
    report, last = trained["report"], (trained["history"] or [{}])[-1]
    return {
        "architecture": config.architectures[0],
        "symbol": config.scope.symbols[0],
        "timeframe": config.scope.timeframes[0],
        "epochs_run": report.get("epochs_run"),
        "train_loss": last.get("train_loss"),
        "val_loss": last.get("val_loss"),
        "best_epoch": report.get("best_epoch"),
        "best_val_loss": report.get("best_val_loss"),
        "windows_per_s": report.get("windows_per_s"),
        "memory": {k: v for k, v in report.items() if k.endswith("_mb")},
        "test_crps_ratio": metrics.get("test_crps_ratio"),
        "run_id": run_id,
        "model_folder": str(folder / "model"),
        "exit": 0,
    }
