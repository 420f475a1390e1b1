"""The recipe of a trained model: the options that decide it; models of one recipe differ only in their candles."""

from collections.abc import Iterable, Mapping
from typing import Any

from cpbmodels.arch import architectures
from cpbmodels.arch.options import HOW_IT_RUNS, Preset
from cpbmodels.arch.presets import reads
from cpbmodels.fleet.config import PARTS
from schemas.fleets import UNIVERSAL_SUFFIX
from schemas.identity import Recipe
from tasks.storage.model_folder import ModelConfig
from tasks.storage.records import value_digest


def options_read(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the options among `names` that the architecture of a configuration reads.

    An average trains the architectures that it averages, each with options of its own (`parts` of its configuration),
    so an option has the value, or the several values, of those that read it. What an architecture of another program
    reads is not known: all that it has.
    """
    known = set(architectures())
    options: dict[str, Any] = {}
    parts = config.get(PARTS) or [config]  # the options at the top of an average's are of no member
    for name in names:
        values = [
            part[name]
            for part in parts
            if name in part and (part["architecture"] not in known or reads(part["architecture"], name))
        ]
        if values:
            # a list only where the members differ, so that the common case compares with any other model's
            options[name] = values[0] if all(value == values[0] for value in values) else values
    return options


def recipe_of(config: ModelConfig) -> Recipe:
    """Return the recipe of the model described by a `config.json`.

    The digest covers only differences from the options' defaults: an option added by a later release, at its default,
    leaves all recipes unchanged. The number of averaged copies, and a weight type other than float32, are included.
    """
    values: dict[str, Any] = config.model_dump(mode="json")
    standard = Preset().as_dict()
    changed = _changed(values, standard)
    if PARTS in values:
        changed[PARTS] = [
            {"architecture": part["architecture"], **_changed(part, standard)} for part in values[PARTS]
        ]
    copies = len(values.get("seeds") or [1])
    # Neither is an option of `Preset`, and both change the forecasts. Left out where they are the default, as above.
    changed |= {"copies": copies} if copies > 1 else {}
    changed |= {"dtype": values["dtype"]} if values.get("dtype", "float32") != "float32" else {}
    digest = value_digest(changed)[:12]  # 48 bits: a name to read, among at most hundreds of recipes
    scope = UNIVERSAL_SUFFIX if values.get("scope") == "universal" else ""
    return Recipe(f"{config.architecture}{scope}", config.preset, digest)


def _changed(values: Mapping[str, Any], standard: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide a model and differ from their defaults."""
    return {
        name: values[name]
        for name, default in standard.items()
        if name not in HOW_IT_RUNS and name in values and _plain(values[name]) != _plain(default)
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
