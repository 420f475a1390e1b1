"""Presets by name, and presets of one's own: files that change a built-in one.

    # best.toml, used as `--preset best.toml`
    about = "found by cpb tune on 2025-06-06"
    base = "default"
    architectures = ["gru"]
    seeds = 1

    [options]
    lr = 0.004
    hidden_dim = 24

Whoever builds a `RunSpec` with such a file gets the built-in preset with these options as overrides, so they meet the
checks and the sentences of options on the command line, and a flow run on another machine does not need the file.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from schemas.errors import UsageError
from schemas.scope import home
from schemas.spec import Spec

PRESET_ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "smoke": ("transformer", "gru", "lstm", "linear", "har"),
    "default": ("robust-har", "har", "har-universal"),
    "seed-transformer": ("transformer",),
    "seed-gru": ("gru",),
    "seed-lstm": ("lstm",),
    "seed-transformer-tuned": ("transformer",),
    "seed-gru-tuned": ("gru",),
    "seed-lstm-tuned": ("lstm",),
}
"""Which architectures a preset trains unless `architectures` says otherwise."""

PRESET_SEEDS = {"default": 3}
"""How many seeds of each member a preset averages, where not 1: it costs little for so small a model."""

PRESET_ABOUT = {
    "smoke": "tiny models and three short epochs: shows in seconds that everything works",
    "default": "the best we know: robust HAR, and HAR with a Student-t head per coin and for all coins",
    "seed-transformer": "the transformer as its original notes state it: four inputs, AdamW at 1e-3, no schedule",
    "seed-gru": "the GRU as its original notes state it: four inputs, Adam at 1e-3",
    "seed-lstm": "the LSTM as its original notes state it: four inputs, Adam at 1e-3, no schedule",
    "seed-transformer-tuned": "seed-transformer with log_sigma as fifth input, 5e-4 and a cosine schedule",
    "seed-gru-tuned": "seed-gru with log_sigma as fifth input",
    "seed-lstm-tuned": "seed-lstm with log_sigma as fifth input and a step schedule",
}
"""What each preset is for, in a line."""

SUFFIX = ".toml"
_SEED = "seed-"


class PresetFile(Spec):
    """What a preset of one's own says. Options not named are those of `base`."""

    about: str = Field("", description="a line for people")
    base: str = Field("default", description="the built-in preset that it changes")
    architectures: tuple[str, ...] = Field((), description="what it trains; default: as the base")
    seeds: int | None = Field(None, ge=1, le=64, description="copies of each model that are averaged")
    options: dict[str, Any] = Field(default_factory=dict, description="fields of the model preset")


def own_presets_folder() -> Path:
    """Return the folder in which a bare `NAME.toml` is looked for after the current one, and which is listed."""
    return home() / "presets"


def is_file(preset: object) -> bool:
    """Whether a preset is named by a file, not by a built-in name."""
    return isinstance(preset, str) and preset.endswith(SUFFIX)


def profile_sizes(profile: str, preset: str) -> Mapping[str, Any]:
    """Return the options of the model preset that a hardware profile changes in the seeds' presets; none in others."""
    from cpbmodels.arch.options import PROFILE_SIZES

    return PROFILE_SIZES.get(profile, {}) if preset.startswith(_SEED) else {}


def with_profile_sizes(values: dict[str, Any]) -> dict[str, Any]:
    """Return a run's options with the sizes of the profile that was named among the overrides; those given win."""
    sizes = profile_sizes(str(values.get("profile")), str(values.get("preset")))
    return values | {"overrides": {**sizes, **(values.get("overrides") or {})}} if sizes else values


def with_preset_file(values: dict[str, Any]) -> dict[str, Any]:
    """Return a run's options with a preset file replaced by what it says; options given beside it win.

    Raises:
        UsageError: there is no such file, or it is not a preset.
    """
    if not is_file(values.get("preset")):
        return values
    own = read_preset(values["preset"])
    overrides = values.get("overrides") or {}
    if not isinstance(overrides, dict):  # the specification refuses it with its own sentence
        return values | {"preset": own.base}
    out = values | {"preset": own.base, "overrides": own.options | overrides}
    if values.get("architectures") is None and own.architectures:
        out["architectures"] = ",".join(own.architectures)
    if values.get("seeds") is None and own.seeds is not None:
        out["seeds"] = own.seeds
    return out


def read_preset(name: str) -> PresetFile:
    """Return what a preset file says; it is looked for as a path, and a bare name also in `HOME/presets`.

    Raises:
        UsageError: there is no such file, it is not TOML, or it says something else than a preset.
    """
    places = [Path(name), *([own_presets_folder() / name] if Path(name).name == name else [])]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        looked = " or ".join(str(place) for place in places)
        raise _wrong(f"preset {name!r}: no such file as {looked}; `cpb presets` lists what there is")
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
