"""Presets: everything a training depends on, typed. A preset is a set of changes to an architecture's defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from cpbmodels.errors import ModelError
from cpbmodels.series import CANDLE_COLUMNS, RETURNS

WINDOWS = (1, 3, 6, 12, 24, 72, 168)
HAR_COLUMNS = (
    *(f"abs_return_mean_{n}" for n in WINDOWS),
    *(f"log_range_mean_{n}" for n in WINDOWS),
    "close_location",
    "log_sigma",
)


@dataclass(frozen=True)
class Preset:
    """All options of a model and its training; every field can be overridden by name."""

    # what the model reads and forecasts (candles)
    context: int = 30
    horizon: int = 10
    features: tuple[str, ...] = CANDLE_COLUMNS
    calendar: str = ""  # column of codes 0..167 to embed, "" for none
    calendar_dim: int = (
        8  # 0: no embedding, the hour shifts the log-scale of each step (heads student-t, scaled)
    )
    input_clip: float = 8.0  # inputs, in standard deviations
    target_clip: float = 20.0  # targets, in volatilities: one broken candle must not own the loss
    # its size
    hidden_dim: int = 64
    n_layers: int = 2
    n_heads: int = 4
    ff_dim: int = 256
    dropout: float = 0.0
    # its head and loss
    head: str = "student-t"
    loss: str = "nll"  # of student-t: "nll" or "crps"
    location_shrink: float = 0.25
    candle_weight: float = 0.1  # share of the open/high/low loss beside the close's
    flat_band: float = 0.3  # classes: |move| under this many volatilities is "flat"
    teacher_forcing: float = 0.0
    # optimizer
    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 1e-2
    schedule: str = "cosine"
    warmup_steps: int = 0  # of the first epoch
    step_size: int = 30  # epochs, schedule "step"
    step_gamma: float = 0.5
    clip: float = 1.0
    # what it learns from
    batch_size: int = 128
    accumulate: int = 1  # micro-batches per step: same result, less memory
    epochs: int = 40
    patience: int = 8
    steps_per_epoch: int = 0  # 0: one pass over the windows
    max_train_rows: int = 0  # last rows of the train span; 0: all
    stride: int = 1
    max_validation_windows: int = 4000
    # how it runs
    fleet_size: int = 40  # members trained together
    mixed_precision: str = "off"  # "off", "auto", "bf16", "fp16"
    checkpoint_gradients: bool = False
    cuda_graph: bool = True
    workers: int = 0  # CPU: fleets trained side by side, one core each; 0: one per core

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for config.json and MLflow."""
        return asdict(self)


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
        "lr": 2e-3,
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
ALIASES = {"max_epochs": "epochs", "learning_rate": "lr", "d_model": "hidden_dim", "batch": "batch_size"}

# option -> (lowest, highest) allowed, both included
RANGES: dict[str, tuple[float, float]] = {
    "context": (1, 2048),
    "horizon": (1, 512),
    "calendar_dim": (0, 128),
    "input_clip": (1, 1000),
    "target_clip": (1, 1000),
    "hidden_dim": (1, 4096),
    "n_layers": (1, 16),
    "n_heads": (1, 64),
    "ff_dim": (1, 16384),
    "dropout": (0, 0.95),
    "location_shrink": (0, 1),
    "candle_weight": (0, 10),
    "flat_band": (0, 5),
    "teacher_forcing": (0, 1),
    "lr": (1e-8, 1),
    "weight_decay": (0, 1),
    "warmup_steps": (0, 100_000),
    "step_size": (1, 10_000),
    "step_gamma": (0.01, 1),
    "clip": (1e-6, 1e6),
    "batch_size": (1, 65_536),
    "accumulate": (1, 1024),
    "epochs": (1, 100_000),
    "patience": (1, 100_000),
    "steps_per_epoch": (0, 1_000_000),
    "max_train_rows": (0, 100_000_000),
    "stride": (1, 10_000),
    "max_validation_windows": (1, 10_000_000),
    "fleet_size": (1, 10_000),
    "workers": (0, 256),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "head": ("student-t", "point", "quantile", "classes", "scaled"),
    "loss": ("nll", "crps"),
    "optimizer": ("adamw", "adam"),
    "schedule": ("cosine", "step", "constant"),
    "mixed_precision": ("auto", "off", "bf16", "fp16"),
}


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
        raise ModelError(_unknown("architecture", architecture, ARCHITECTURE_DEFAULTS))
    if name not in PRESETS:
        raise ModelError(_unknown("preset", name, PRESETS))
    if profile is not None and profile not in PROFILES:
        raise ModelError(_unknown("profile", profile, PROFILES))
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


def normalise_options(overrides: dict[str, Any]) -> dict[str, Any]:
    """Aliases resolved, sequences as tuples, booleans for mixed_precision accepted; unknown names refused."""
    known = {field.name for field in fields(Preset)}
    out: dict[str, Any] = {}
    for given, value in overrides.items():
        name = ALIASES.get(given, given)
        if name not in known:
            raise ModelError(_unknown("option", given, sorted(known)))
        if name == "mixed_precision" and isinstance(value, bool):
            value = "auto" if value else "off"
        out[name] = tuple(value) if isinstance(value, list) else value
    return out


def check(options: Preset, architecture: str) -> Preset:
    """The preset itself if it is possible, else a ModelError naming the option and the allowed range."""
    for name, (low, high) in RANGES.items():
        _check_number(name, getattr(options, name), low, high)
    for name, allowed in CHOICES.items():
        if getattr(options, name) not in allowed:
            raise ModelError(_unknown(name, getattr(options, name), allowed))
    if not options.features:
        raise ModelError("features must name at least one column.")
    if architecture == "transformer" and options.hidden_dim % options.n_heads:
        raise ModelError(f"hidden_dim {options.hidden_dim} must be a multiple of n_heads {options.n_heads}.")
    if architecture.startswith("lstm") and options.hidden_dim % options.n_heads:
        raise ModelError(f"hidden_dim {options.hidden_dim} must be a multiple of n_heads {options.n_heads}.")
    if (options.head == "classes") != (architecture == "classifier-gru"):
        raise ModelError("head 'classes' and architecture 'classifier-gru' belong together.")
    if architecture in ("har", "robust-har") and options.context != 1:
        raise ModelError(
            f"context must be 1 for {architecture}: it reads the rolling columns of the last candle alone."
        )
    if (options.head == "scaled") != (architecture == "robust-har") or (
        options.head == "scaled" and options.calendar_dim
    ):
        raise ModelError("head 'scaled' (with calendar_dim 0) and architecture 'robust-har' belong together.")
    if options.batch_size % options.accumulate:
        raise ModelError(
            f"accumulate {options.accumulate} must divide batch_size {options.batch_size} evenly."
        )
    return options


def _check_number(name: str, value: object, low: float, high: float) -> None:
    whole = isinstance(getattr(Preset(), name), int)
    kind = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
        what = "a whole number" if whole else "a number"
        raise ModelError(f"{name} must be {what} from {low:,g} to {high:,g}, not {value!r}.")


def _unknown(kind: str, value: object, allowed: Any) -> str:
    return f"{kind} {value!r} is unknown: choose one of {', '.join(allowed)}."
