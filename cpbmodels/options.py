"""Options: every field of a preset, what values it may have, and the sentence for one it may not."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from cpbmodels.errors import ModelError
from cpbmodels.series import CANDLE_COLUMNS


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


def normalise_options(overrides: dict[str, Any]) -> dict[str, Any]:
    """Aliases resolved, sequences as tuples, booleans for mixed_precision accepted; unknown names refused."""
    known = {field.name for field in fields(Preset)}
    out: dict[str, Any] = {}
    for given, value in overrides.items():
        name = ALIASES.get(given, given)
        if name not in known:
            raise ModelError(unknown("option", given, sorted(known)))
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
            raise ModelError(unknown(name, getattr(options, name), allowed))
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


def unknown(kind: str, value: object, allowed: Any) -> str:
    """The sentence for a name that is none of those allowed."""
    return f"{kind} {value!r} is unknown: choose one of {', '.join(allowed)}."
