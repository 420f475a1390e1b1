"""Presets: everything a training depends on, typed. A preset is a set of changes to an architecture's defaults."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from cpbmodels.errors import ModelError
from cpbmodels.options import Preset, check, normalise_options, unknown
from cpbmodels.series import CANDLE_COLUMNS, RETURNS

WINDOWS = (1, 3, 6, 12, 24, 72, 168)
HAR_COLUMNS = (
    *(f"abs_return_mean_{n}" for n in WINDOWS),
    *(f"log_range_mean_{n}" for n in WINDOWS),
    "close_location",
    "log_sigma",
)


_SEQUENCE = {"features": CANDLE_COLUMNS}
_LSTM = {"hidden_dim": 48, "n_layers": 1, "n_heads": 4, "dropout": 0.1}
# What it names of the sizes (unused.py), it reads: the others have no effect on it.
ARCHITECTURE_DEFAULTS: dict[str, dict[str, Any]] = {
    "transformer": {
        **_SEQUENCE,
        **{"hidden_dim": 64, "n_layers": 2, "n_heads": 4, "ff_dim": 128, "dropout": 0.1},
        "lr": 5e-4,
    },
    "gru": {**_SEQUENCE, "hidden_dim": 48, "n_layers": 1, "dropout": 0.1},
    "lstm": {**_SEQUENCE, **_LSTM},
    "lstm-manual": {**_SEQUENCE, **_LSTM},
    "linear": {**_SEQUENCE, "weight_decay": 1e-2},
    "har": {
        "context": 1,
        "features": HAR_COLUMNS,
        "calendar": "hour_of_week_ny",
        "calendar_dim": 0,
        "input_clip": 4.0,
        "target_clip": 6.0,
        "hidden_dim": 56,
        "dropout": 0.0,
        "batch_size": 512,
        "lr": 2e-4,  # its line starts solved: faster, and single coins unlearn it within an epoch
        "warmup_steps": 10,
    },
    "robust-har": {
        "features": (
            *(f"log_range_mean_{n}" for n in WINDOWS),
            *(f"abs_return_mean_{n}" for n in WINDOWS),
            "log_sigma",
        ),
        "calendar": "hour_of_week_ny",
        "input_clip": 100.0,
    },
    "classifier-gru": {**_SEQUENCE, "hidden_dim": 48, "n_layers": 1, "dropout": 0.1, "head": "classes"},
}
CLOSED_FORM = ("robust-har",)
"""Architectures that are solved at once, whatever their seed: no optimizer, no epochs."""
_FIXED: dict[str, dict[str, Any]] = {
    "har": {"context": 1},
    "robust-har": {"context": 1, "head": "scaled", "calendar_dim": 0, "epochs": 1, "mixed_precision": "off"},
    "classifier-gru": {"head": "classes"},
}

_SEED = {
    "features": (*RETURNS, "log_sigma"),
    "mixed_precision": "auto",
    "teacher_forcing": 0.5,
    "head": "point",
}
PRESETS: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        "default": {
            "steps_per_epoch": 100,  # validation is asked rarely: asked every 20 steps, its noise chose the model
            "batch_size": 512,
            "epochs": 12,
            "patience": 4,
            "max_validation_windows": 20_000,
        },
        "smoke": {
            "hidden_dim": 16,
            "n_layers": 1,
            "n_heads": 2,
            "ff_dim": 32,
            "batch_size": 32,
            "steps_per_epoch": 10,
            "epochs": 3,
            "patience": 3,
            "lr": 3e-3,
            "max_train_rows": 3000,
            "max_validation_windows": 192,
        },
        "seed-transformer": {
            **_SEED,
            "hidden_dim": 128,
            "n_heads": 8,
            "n_layers": 2,
            "ff_dim": 512,
            "dropout": 0.0,
            "teacher_forcing": 1.0,
            "batch_size": 128,
            "epochs": 50,
            "patience": 10,
            "max_train_rows": 5000,
        },
        "seed-gru": {
            **_SEED,
            "hidden_dim": 128,
            "n_layers": 2,
            "dropout": 0.3,
            "optimizer": "adam",
            "weight_decay": 0.0,
            "schedule": "constant",
            "batch_size": 64,
            "epochs": 100,
            "patience": 15,
            "max_train_rows": 5000,
        },
        "seed-lstm": {
            **_SEED,
            "hidden_dim": 256,
            "n_layers": 2,
            "n_heads": 4,
            "dropout": 0.3,
            "optimizer": "adam",
            "weight_decay": 1e-5,
            "schedule": "step",
            "batch_size": 32,
            "epochs": 200,
            "patience": 20,
            "max_train_rows": 7000,
        },
    }
)
SEED_ARCHITECTURES = {
    "seed-transformer": ("transformer",),
    "seed-gru": ("gru", "classifier-gru"),
    "seed-lstm": ("lstm", "lstm-manual"),
}
PROFILES: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        "cpu": {"fleet_size": 20, "cuda_graph": False},
        "gpu-6gb": {"fleet_size": 20, "mixed_precision": "auto"},
        "gpu-16gb": {"fleet_size": 40, "mixed_precision": "auto"},
        "gpu-80gb": {"fleet_size": 160, "mixed_precision": "auto"},
    }
)


def architectures() -> list[str]:
    """Names that `train_fleet(architecture=...)` accepts."""
    return list(ARCHITECTURE_DEFAULTS)


def preset(
    name: str = "default", architecture: str = "har", profile: str | None = None, **overrides: Any
) -> Preset:
    """The whole resolved preset: architecture defaults <- preset <- hardware profile <- overrides, checked.

    Raises ModelError with one sentence naming the option and what is allowed.
    """
    if architecture not in ARCHITECTURE_DEFAULTS:
        raise ModelError(unknown("architecture", architecture, ARCHITECTURE_DEFAULTS))
    if name not in PRESETS:
        raise ModelError(unknown("preset", name, PRESETS))
    if profile is not None and profile not in PROFILES:
        raise ModelError(unknown("profile", profile, PROFILES))
    if architecture not in SEED_ARCHITECTURES.get(name, (architecture,)):
        allowed = " or ".join(SEED_ARCHITECTURES[name])
        raise ModelError(f"preset {name!r} belongs to {allowed}: use preset 'default' with {architecture}.")
    values = {**ARCHITECTURE_DEFAULTS[architecture], **PRESETS[name], **PROFILES.get(profile or "", {})}
    values |= _FIXED.get(architecture, {})
    values |= normalise_options(overrides)
    if (
        values.get("calendar")
        and not values.get("calendar_dim", 1)
        and values.get("head", "student-t") not in ("student-t", "scaled")
    ):
        values["calendar_dim"] = 12  # other heads have no log-scale that the hour could shift
    return check(replace(Preset(), **values), architecture)
