"""Built-in presets, and custom presets: files that change a built-in preset.

    # best.toml, used as `--preset best.toml`
    about = "found by cpb tune on 2025-06-06"
    base = "default"
    architectures = ["gru"]
    seeds = 1

    [options]
    lr = 0.004
    hidden_dim = 24

A `RunSpec` built with such a file holds the built-in preset with these options as overrides, so that they pass the same
checks as options on the command line, and a flow run on another machine does not need the file.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from schemas.errors import UsageError
from schemas.scope import Spec, home

PRESET_ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "smoke": ("transformer", "gru", "lstm", "linear", "har"),
    "default": ("robust-har", "har", "har-universal", "average-universal"),
    "seed-transformer": ("transformer",),
    "seed-gru": ("gru",),
    "seed-lstm": ("lstm",),
    "seed-transformer-tuned": ("transformer",),
    "seed-gru-tuned": ("gru",),
    "seed-lstm-tuned": ("lstm",),
}
"""The architectures that a preset trains unless `architectures` is set."""

PRESET_COPIES = {"default": 3}
"""Number of averaged copies of each member, if not 1: several copies cost little for such small models."""

PRESET_ABOUT = {
    "smoke": "tiny models and three short epochs: shows in seconds that everything works",
    "default": "the best known: robust HAR, HAR with a Student-t head per coin and for all coins, and the latter "
    "averaged with a walk from the line on all columns",
    "seed-transformer": "the transformer as specified in the original notes: four inputs, AdamW at 1e-3, no schedule",
    "seed-gru": "the GRU as specified in the original notes: four inputs, Adam at 1e-3",
    "seed-lstm": "the LSTM as specified in the original notes: four inputs, Adam at 1e-3, no schedule",
    "seed-transformer-tuned": "seed-transformer with log_sigma as fifth input, 5e-4 and a cosine schedule",
    "seed-gru-tuned": "seed-gru with log_sigma as fifth input",
    "seed-lstm-tuned": "seed-lstm with log_sigma as fifth input and a step schedule",
}
"""A short description of each preset."""

SUFFIX = ".toml"
_SEED = "seed-"


class PresetFile(Spec):
    """Content of a preset file. Options not named are taken from `base`."""

    about: str = Field("", description="one line that describes it")
    base: str = Field("default", description="the built-in preset that it changes")
    architectures: tuple[str, ...] = Field((), description="what it trains; default: that of the base")
    seeds: int | None = Field(None, ge=1, le=64, description="copies of each model that are averaged")
    options: dict[str, Any] = Field(default_factory=dict, description="fields of the model preset")


def own_presets_folder() -> Path:
    """Return the folder of custom presets: listed, and searched for a bare `NAME.toml` after the current folder."""
    return home() / "presets"


def is_file(preset: object) -> bool:
    """Whether a preset is given as a file instead of a built-in name."""
    return isinstance(preset, str) and preset.endswith(SUFFIX)


def profile_sizes(profile: str, preset: str) -> Mapping[str, Any]:
    """Return the options that a hardware profile changes in the `seed-…` presets; none for other presets."""
    from cpbmodels.arch.options import PROFILE_SIZES

    return PROFILE_SIZES.get(profile, {}) if preset.startswith(_SEED) else {}


def with_profile_sizes(values: dict[str, Any]) -> dict[str, Any]:
    """Return a run's options with the sizes of its profile as overrides; explicit overrides take precedence."""
    sizes = profile_sizes(str(values.get("profile")), str(values.get("preset")))
    return values | {"overrides": {**sizes, **(values.get("overrides") or {})}} if sizes else values


def with_preset_file(values: dict[str, Any]) -> dict[str, Any]:
    """Return a run's options with a preset file replaced by its content; explicit options take precedence.

    Raises:
        UsageError: the file does not exist or is not a preset.
    """
    if not is_file(values.get("preset")):
        return values
    own = read_preset(values["preset"])
    overrides = values.get("overrides") or {}
    if not isinstance(overrides, dict):  # validation of the specification reports the wrong type
        return values | {"preset": own.base}
    out = values | {"preset": own.base, "overrides": own.options | overrides}
    if values.get("architectures") is None and own.architectures:
        out["architectures"] = ",".join(own.architectures)
    if values.get("seeds") is None and own.seeds is not None:
        out["seeds"] = own.seeds
    return out


def read_preset(name: str) -> PresetFile:
    """Return the content of a preset file, given as a path; a bare name is also searched in `HOME/presets`.

    Raises:
        UsageError: the file does not exist, is not TOML, or is not a valid preset.
    """
    places = [Path(name), *([own_presets_folder() / name] if Path(name).name == name else [])]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        looked = " or ".join(str(place) for place in places)
        raise _wrong(f"preset {name!r}: no file {looked}; `cpb presets` lists the available presets")
    try:
        found = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(f"preset {path} is not TOML ({error}); correct it") from None
    try:
        own = PresetFile(**found)
    except UsageError as error:
        raise _wrong(f"preset {path}: {error}") from None
    if own.base not in PRESET_ARCHITECTURES:
        raise _wrong(
            f"preset {path}: base {own.base!r} is unknown: choose from {', '.join(PRESET_ARCHITECTURES)}"
        )
    return own


def _wrong(sentence: str) -> UsageError:
    return UsageError(sentence, code="preset", field="preset")
