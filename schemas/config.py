"""What one training run is asked to do: scope, architectures, preset, device, seeds."""

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from schemas.errors import UsageError
from schemas.scope import Scope

ARCHITECTURES = (
    "transformer", "gru", "lstm", "lstm-manual", "linear", "har", "robust-har", "classifier-gru",
)  # fmt: skip
"""Architectures by name, as in `cpbmodels.architectures()` (a test keeps the two lists equal)."""

CLOSED_FORM = ("robust-har",)
"""Architectures that are solved, not trained: copies of other seeds would be equal, so there is one."""

CLASSIFIER = "classifier-gru"
"""The architecture that forecasts a class (up, flat, down) and no price."""

UNIVERSAL = "-universal"
"""Suffix of an architecture that learns all series of a timeframe in one model, as in `har-universal`."""

PRESET_ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "smoke": ("transformer", "gru", "lstm", "linear", "har"),
    "default": ("robust-har", "har", "har-universal"),
    "seed-transformer": ("transformer",),
    "seed-gru": ("gru",),
    "seed-lstm": ("lstm",),
}
"""Which architectures a preset trains unless `--architectures` says otherwise."""


def parse_architectures(text: str | None, preset: str) -> tuple[str, ...]:
    """Return the architectures of `--architectures`, or the preset's own.

    Raises:
        UsageError: an unknown preset or architecture.
    """
    if preset not in PRESET_ARCHITECTURES:
        raise UsageError(f"--preset {preset!r} is unknown: choose from {', '.join(PRESET_ARCHITECTURES)}")
    if text is None:
        return PRESET_ARCHITECTURES[preset]
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [n for n in names if n.removesuffix(UNIVERSAL) not in ARCHITECTURES]
    if unknown or not names:
        raise UsageError(
            f"--architectures {text!r}: unknown {', '.join(unknown) or '(empty)'}; "
            f"choose from {', '.join(ARCHITECTURES)} (add {UNIVERSAL} for one model of all coins)"
        )
    return tuple(dict.fromkeys(names))


PRESET_SEEDS = {"default": 3}
"""How many seeds of each member a preset averages, where not 1: it costs little for so small a model."""

PROFILES = ("auto", "cpu", "gpu-6gb", "gpu-16gb", "gpu-80gb")
"""Hardware profiles: batch, precision and fleet size for a device; `auto` looks at the GPU there is."""


def check_device(name: str) -> str:
    """Return the device's name; raises `UsageError` for one that cannot exist."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise UsageError(f"--device {name!r} is unknown: choose auto, cpu or cuda")
    return name


def check_profile(name: str) -> str:
    """Return the profile's name; raises `UsageError` for one that does not exist."""
    if name not in PROFILES:
        raise UsageError(f"--profile {name!r} is unknown: choose from {', '.join(PROFILES)}")
    return name


class TrainConfig(BaseModel):
    """One run of the main job.

    `seeds`: how many copies of each member, from `seed` on, are averaged. `overrides` are fields of the model
    preset, such as `batch_size`.
    """

    model_config = ConfigDict(frozen=True)

    scope: Scope
    preset: str = "smoke"
    architectures: tuple[str, ...]
    device: str = "auto"
    profile: str = "auto"
    dtype: str = "float32"
    seed: int = 1
    seeds: int = Field(default=1, ge=1, le=64)
    overrides: dict[str, Any] = Field(default_factory=dict)
    warm_start: str | None = None
    repo: str | None = None
    train_timeout_s: float = 6 * 3600

    def copies(self, architecture: str) -> int:
        """Return how many copies of a member are averaged."""
        return 1 if architecture.removesuffix(UNIVERSAL) in CLOSED_FORM else self.seeds
