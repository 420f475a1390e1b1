"""Presets: the built-in ones, and a user's own files.

A preset of one's own is a TOML file that changes a built-in preset (docs/tuning.md has the format).
A `RunSpec` built with such a file holds its content, so that a flow run on another machine does not need the file. What
the file changes passes the same checks as options on the command line: both become the overrides of a `FleetSpec`.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from cpbmodels.arch.options import by_field
from cpbmodels.errors import ModelError
from cpbmodels.files import read_regular
from schemas.base import Spec, names_in
from schemas.errors import UsageError
from schemas.home import home_folder

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
SEED = "seed-"
"""Begins the names of the presets of the original notes, whose sizes a hardware profile changes."""

_MAX_PRESET = 1 << 20  # bytes


class PresetFile(Spec):
    """Content of a preset file. Options not named are taken from `base`."""

    about: str = Field("", description="one line that describes it")
    base: str = Field("default", description="the built-in preset that it changes")
    architectures: tuple[str, ...] = Field((), description="what it trains; default: that of the base")
    seeds: int | None = Field(None, ge=1, le=64, description="copies of each model that are averaged")
    options: dict[str, Any] = Field(default_factory=dict, description="fields of the model preset")

    @field_validator("options")
    @classmethod
    def _by_field(cls, options: dict[str, Any]) -> dict[str, Any]:
        return options_by_field(options)


def own_presets_folder() -> Path:
    """Return the folder of custom presets: listed, and searched for a bare `NAME.toml` after the current folder."""
    return home_folder() / "presets"


def is_file(preset: object) -> bool:
    """Whether a preset is given as a file instead of a built-in name."""
    return isinstance(preset, str) and preset.endswith(SUFFIX)


def with_preset_files(values: dict[str, Any]) -> dict[str, Any]:
    """Return a run's options with the content of each preset file in `preset` that `preset_files` lacks.

    Raises:
        UsageError: a file does not exist or is not a preset.
    """
    known = values.get("preset_files") or {}
    if not isinstance(values.get("preset"), str) or not isinstance(known, dict):
        return values  # validation of the specification reports the wrong type
    # what is given is not read again: the flow may run where the file does not exist
    wanted = [name for name in names_in(values["preset"]) if is_file(name) and name not in known]
    read = {name: read_preset(name).model_dump(mode="json") for name in wanted}
    return values | {"preset_files": known | read} if read else values


def read_preset(name: str) -> PresetFile:
    """Return the content of a preset file, given as a path; a bare name is also searched in `HOME/presets`.

    Raises:
        UsageError: the file does not exist, is not TOML, or is not a valid preset.
    """
    # a path is taken as it stands; a bare name is looked for here first, so a folder's own file wins
    places = [Path(name), *([own_presets_folder() / name] if Path(name).name == name else [])]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        looked = " or ".join(str(place) for place in places)
        raise _wrong(f"preset {name!r}: no file {looked}; `cpb presets` lists the presets")
    try:
        # regular and bounded: a pipe would wait for ever, a wrong file fill memory
        content = tomllib.loads(read_regular(path, _MAX_PRESET).decode())
    except OSError as error:
        raise _wrong(f"preset {path} cannot be read ({error.strerror}); name another file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(f"preset {path} is not TOML ({error}); correct it") from None
    try:
        return PresetFile(**content)
    except UsageError as error:
        raise _wrong(f"preset {path}: {error}") from None


def preset_named(name: str, files: Mapping[str, PresetFile]) -> PresetFile:
    """Return a preset's content: a file's of those read, or a built-in preset without a change.

    Raises:
        UsageError: there is no built-in preset of this name, or the file's base is none.
    """
    preset = files.get(name) or PresetFile(base=name)
    if preset.base not in PRESET_ARCHITECTURES:
        raise UsageError(
            f"preset {preset.base!r} is unknown: choose from {', '.join(PRESET_ARCHITECTURES)}, "
            "or give a file that ends in .toml",
            code="preset",
        )
    return preset


def _wrong(sentence: str) -> UsageError:
    return UsageError(sentence, code="preset")


def options_by_field(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a model by the names of their fields."""
    try:
        return by_field(options)
    except ModelError as error:
        raise UsageError(str(error), code="overrides") from None


def one_preset(preset: Any, instead: str, field: str = "preset") -> Any:
    """Return the only name in a list of presets; what names none, or is no text, as it is.

    Raises:
        UsageError: several presets are named; `instead` says what to do.
    """
    names = names_in(preset) if isinstance(preset, str) else ()
    if len(names) > 1:
        raise UsageError(f"preset {preset!r}: {instead}", code="one-preset", field=field)
    return names[0] if names else preset
