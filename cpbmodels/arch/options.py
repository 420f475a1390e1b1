"""Options of a model and its training: their allowed values, presets, and values that differ within a fleet.

A preset is a set of changes to the defaults. Options that shape a step (sizes, batch, head, columns ..) are common to a
fleet: members that differ there are trained in fleets of their own. The others are a value per row (`PER_MEMBER`). If
all members of a fleet agree, its net's preset holds the plain number, and a step costs what it would without them; if
they differ, it holds a float64 tensor [K]. Torch and numpy are imported on use: `cpb --help` must not wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from cpbmodels.data import CANDLE_COLUMNS, HORIZON
from cpbmodels.errors import ModelError, shown, unknown_choice

if TYPE_CHECKING:
    import torch
    from torch import Tensor

IN_STEP = ("dropout", "teacher_forcing", "location_shrink", "candle_weight", "clip", "weight_decay")
"""Read in every step, on the device."""

IN_RATE = ("lr", "schedule", "warmup_steps", "step_size", "step_gamma", "epochs")
"""Read by `loop.learning_rate`, on the host."""

PER_MEMBER = (*IN_STEP, *IN_RATE, "patience")


@dataclass(frozen=True)
class Preset:
    """All options of a model and its training; every field can be overridden by name."""

    # what the model reads and forecasts (candles)
    context: int = 30
    horizon: int = HORIZON
    features: tuple[str, ...] = CANDLE_COLUMNS
    calendar: str = ""  # column of codes 0..167 to embed, "" for none
    members: tuple[str, ...] = ()  # architecture average: those whose quantiles it averages
    calendar_dim: int = 8  # width of the embedding; 0: the hour shifts the log-scale of each step instead
    input_clip: float = 8.0  # limit of the scaled inputs, in standard deviations
    target_clip: float = 20.0  # of the targets, in volatilities: one wrong candle must not dominate the loss
    # its size
    hidden_dim: int = 64
    n_layers: int = 2
    n_heads: int = 4
    ff_dim: int = 256
    dropout: float = 0.0
    # its head and loss
    head: str = "student-t"
    loss: str = "nll"  # head student-t: "nll" or "crps"
    location_shrink: float = 0.25  # head student-t: factor on the location, which is hardly predictable
    location_share: float = 0.0  # head bent: share of its location that a forecast keeps, at most .1; 0: none
    candle_weight: float = 0.1  # weight of the loss of open, high and low, added to the close's
    flat_band: float = 0.3  # head classes: a move of less than this many volatilities is "flat"
    teacher_forcing: float = 0.0  # share of the decoder's steps that read the true candle, in training only
    # optimizer
    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 1e-2
    schedule: str = "cosine"
    warmup_steps: int = 0  # steps of the first epoch over which the rate rises linearly
    step_size: int = 30  # schedule "step": epochs between two reductions
    step_gamma: float = 0.5  # schedule "step": factor of a reduction
    clip: float = 1.0  # largest L2 norm of one member's gradient
    # what it learns from
    batch_size: int = 128  # windows per member and step
    accumulate: int = 1  # micro-batches per step: same result, less memory
    epochs: int = 40  # at most
    patience: int = 8  # epochs without a better validation loss after which a member stops
    steps_per_epoch: int = 0  # 0: one pass over the windows
    max_train_rows: int = 0  # last rows of the train span; 0: all
    stride: int = 1  # rows between two windows
    max_validation_windows: int = 4000  # evenly spread over the validation span
    # how it runs
    fleet_size: int = 40  # members trained together
    mixed_precision: str = "off"  # "off", "auto", "bf16", "fp16"
    checkpoint_gradients: bool = False  # recompute activations in the backward pass: less memory, more time
    cuda_graph: bool = True  # GPU: capture a training step once and replay it
    workers: int = 0  # CPU: fleets trained side by side, one core each; 0: one per core

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for config.json and MLflow."""
        return asdict(self)


ALIASES = {
    "max_epochs": "epochs",
    "learning_rate": "lr",
    "d_model": "hidden_dim",
    "num_layers": "n_layers",
    "sequence_length": "context",
    "batch": "batch_size",
    "accumulation_steps": "accumulate",
}
"""Other names of options, as they are usual elsewhere."""

SIZES = ("hidden_dim", "n_layers", "n_heads", "ff_dim", "dropout", "location_share")
"""Options that only some architectures read: each names those it reads in its `spec.sizes`."""

HOW_IT_RUNS = (
    "accumulate",
    "checkpoint_gradients",
    "cuda_graph",
    "fleet_size",
    "mixed_precision",
    "workers",
)
"""Options that depend on the machine: the same preset trained on a GPU and on a CPU is the same recipe."""

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
    "location_share": (0, 1),
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
SCHEDULES: dict[str, Callable[[Preset, int], float]] = {
    "cosine": lambda options, epoch: 0.5 * (1 + math.cos(math.pi * epoch / options.epochs)),
    "step": lambda options, epoch: float(options.step_gamma ** (epoch // options.step_size)),
    "constant": lambda _options, _epoch: 1.0,
}
"""Schedule -> factor of the learning rate `lr` in an epoch (from 0)."""

CHOICES: dict[str, Collection[str]] = {
    "head": ("student-t", "point", "quantile", "classes", "scaled", "bent"),
    "loss": ("nll", "crps"),
    "optimizer": ("adamw", "adam"),
    "schedule": SCHEDULES,
    "mixed_precision": ("auto", "off", "bf16", "fp16"),
}


SWITCHES = ("checkpoint_gradients", "cuda_graph")
MAX_FEATURES = 1024  # columns
MAX_MEMBERS = 8  # of an average
MAX_NAME = 200  # characters of a column's name

COMMON_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {
        # Few validations on purpose: with a validation every 20 steps, its noise chose the model.
        "steps_per_epoch": 100,
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
}
"""Presets for every architecture. Presets of single architectures are in `spec.presets`."""

PROFILES: Mapping[str, Mapping[str, Any]] = {
    "cpu": {"fleet_size": 20, "cuda_graph": False},
    "gpu-6gb": {"fleet_size": 20, "mixed_precision": "auto"},
    "gpu-16gb": {"fleet_size": 40, "mixed_precision": "auto"},
    "gpu-80gb": {"fleet_size": 160, "mixed_precision": "auto"},
}
"""Hardware profiles: fleet size and precision for a device; they change how a model is trained, not the model."""

GPU_PROFILES = (("gpu-80gb", 70e9), ("gpu-16gb", 14e9), ("gpu-6gb", 5e9))
"""Those of GPUs, largest first, with the bytes that such a card has left of its nominal memory."""

PROFILE_SIZES: Mapping[str, Mapping[str, Any]] = {"gpu-6gb": {"batch_size": 16, "context": 20}}
"""What the original notes recommend for the seed models on such a device. They change the models, so they are
never applied automatically: only naming the profile with a seed preset applies them, as overrides."""


def by_field(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names of their fields, aliases resolved; unknown names stay.

    Raises ModelError if two names are of one field.
    """
    out: dict[str, Any] = {}
    given: dict[str, str] = {}
    for name, value in options.items():
        field = ALIASES.get(name, name)
        if field in out:
            raise ModelError(f"{field} is given twice, as {given[field]} and as {name}: leave one out.")
        out[field], given[field] = value, name
    return out


def normalise_options(overrides: dict[str, Any]) -> dict[str, Any]:
    """Aliases resolved, sequences as tuples; booleans for mixed_precision, and names as in `har,line`, accepted.

    Raises ModelError for unknown names, and as `by_field`.
    """
    names = {field.name for field in fields(Preset)}
    out: dict[str, Any] = {}
    for name, value in by_field(overrides).items():
        if name not in names:
            raise ModelError(unknown_choice("option", name, sorted({*names, *ALIASES})))
        if name == "mixed_precision" and isinstance(value, bool):
            value = "auto" if value else "off"
        if name in ("features", "members") and isinstance(value, str):
            value = value.split(",")
        out[name] = tuple(value) if isinstance(value, list) else value
    return out


def check(options: Preset) -> Preset:
    """The preset itself if every option is possible, else a ModelError naming the option and the allowed range.

    Further requirements of an architecture or a head are checked by `presets.preset`.
    """
    for name, (low, high) in RANGES.items():
        value, whole = getattr(options, name), isinstance(getattr(Preset(), name), int)
        kind = int if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
            what = "a whole number" if whole else "a number"
            raise ModelError(f"{name} must be {what} from {low:,g} to {high:,g}, not {shown(value)}.")
    for name, allowed in CHOICES.items():
        if getattr(options, name) not in [*allowed]:  # whatever type a stored config gives it
            raise ModelError(unknown_choice(name, getattr(options, name), allowed))
    for name in SWITCHES:
        if not isinstance(getattr(options, name), bool):
            raise ModelError(f"{name} must be true or false, not {shown(getattr(options, name))}.")
    for name, least, most in (("features", 1, MAX_FEATURES), ("members", 0, MAX_MEMBERS)):
        names = getattr(options, name)
        if not isinstance(names, tuple) or not all(
            isinstance(text, str) and len(text) <= MAX_NAME for text in names
        ):
            raise ModelError(f"{name} must be names of at most {MAX_NAME} characters.")
        if not least <= len(set(names)) == len(names) <= most:
            raise ModelError(f"{name} must be {least} to {most} names, each once.")
    if not isinstance(options.calendar, str) or len(options.calendar) > MAX_NAME:
        raise ModelError(f"calendar must be the name of a column, not {shown(options.calendar)}.")
    if options.batch_size % options.accumulate:
        raise ModelError(
            f"accumulate {options.accumulate} must divide batch_size {options.batch_size} evenly."
        )
    return options


_COMMON = {name: getattr(Preset(), name) for name in PER_MEMBER}


def fleet_key(options: Preset) -> tuple[Preset, bool, bool, bool]:
    """Equal for members that can be rows of one fleet.

    Without dropout no mask is drawn, and with a teacher_forcing of 0 or 1 no coin: such a member's step has other
    operations, and other keys for the draws that are left, than that of a member in between.
    """
    forcing = options.teacher_forcing
    return replace(options, **_COMMON), options.dropout > 0, forcing > 0, forcing == 1


def differing(options: Sequence[Preset], device: torch.device) -> dict[str, Tensor]:
    """float64 [K] on the device for each option of `IN_STEP` in which these members differ."""
    import torch

    values = {name: [float(getattr(member, name)) for member in options] for name in IN_STEP}
    return {
        name: torch.tensor(column, dtype=torch.float64, device=device)
        for name, column in values.items()
        if len(set(column)) > 1
    }


def overrides_by_member(overrides: dict[str, Any], members: int) -> list[dict[str, Any]]:
    """The overrides of each member: a list (tuple, array) holds one value per member, anything else is for all.

    `features` and `members` are lists by themselves, so one per member is a list of lists. ModelError if the length
    is another.
    """
    lists = {name: list(values) for name, values in overrides.items() if _is_per_member(name, values)}
    for name, values in lists.items():
        if len(values) != members:
            raise ModelError(
                f"{name} needs one value per member: {members}, not {len(values)} (or one value for all)."
            )
    shared = {name: value for name, value in overrides.items() if name not in lists}

    import numpy as np

    def plain(value: Any) -> Any:
        """numpy's numbers as Python's: a preset is written into config.json."""
        return value.item() if isinstance(value, np.generic) else value

    return [shared | {name: plain(values[k]) for name, values in lists.items()} for k in range(members)]


def _is_per_member(name: str, values: Any) -> bool:
    import numpy as np

    if not isinstance(values, (list, tuple, np.ndarray)):
        return False
    if ALIASES.get(name, name) not in ("features", "members"):
        return True
    return bool(len(values)) and not isinstance(values[0], str)


def profile_for(total_bytes: float) -> str:
    """The largest profile that fits a GPU with this much memory; below 5 GB the smallest, whose fleets are halved
    where they do not fit: the profile `cpu` would run without CUDA graphs."""
    return next((name for name, needed in GPU_PROFILES if total_bytes >= needed), GPU_PROFILES[-1][0])
