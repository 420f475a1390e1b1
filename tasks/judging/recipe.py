"""The recipe of a trained model, read from its folder: two models of one recipe differ in nothing but their candles."""

from typing import Any

from cpbmodels.options import Preset
from schemas.identity import Recipe
from schemas.run import UNIVERSAL
from tasks.storage.digests import value_digest
from tasks.storage.model_folder import ModelConfig

_HOW_IT_RUNS = (
    "accumulate",
    "checkpoint_gradients",
    "cuda_graph",
    "fleet_size",
    "mixed_precision",
    "workers",
)
"""Options that follow from the machine: the same preset trained on a GPU and on a CPU is one recipe."""

_DIGITS = 12


def recipe_of(config: ModelConfig) -> Recipe:
    """Return the recipe of the model that a `config.json` describes.

    The digest is of what differs from the options' own defaults: an option that a later release adds, at its default,
    leaves every recipe what it was. How many copies were averaged, and weights of another type, are part of it.
    """
    values: dict[str, Any] = config.model_dump(mode="json")
    standard = Preset().as_dict()
    changed = {
        name: values[name]
        for name, default in standard.items()
        if name not in _HOW_IT_RUNS and name in values and _plain(values[name]) != _plain(default)
    }
    copies = len(values.get("seeds") or [1])
    changed |= {"copies": copies} if copies > 1 else {}
    changed |= {"dtype": values["dtype"]} if values.get("dtype", "float32") != "float32" else {}
    digest = value_digest(changed)[:_DIGITS]
    return Recipe(f"{config.architecture}{UNIVERSAL if _is_universal(values) else ''}", config.preset, digest)


def _is_universal(values: dict[str, Any]) -> bool:
    """Folders of older releases have no scope; a model of several symbols is universal."""
    return values.get("scope", "universal" if len(values.get("symbols") or ()) > 1 else "") == "universal"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
