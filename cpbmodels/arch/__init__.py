"""The registry of architectures. Adding one: a file here and a line in `_MODULES` (docs/new-architecture.md)."""

from __future__ import annotations

from importlib import import_module

from cpbmodels.arch.base import Architecture, Batch
from cpbmodels.errors import ModelError

_MODULES = {
    "transformer": "transformer:Transformer",
    "gru": "gru:Gru",
    "lstm": "lstm:Lstm",
    "lstm-manual": "lstm:LstmManual",
    "linear": "linear:Linear",
    "har": "har:Har",
    "robust-har": "robust_har:RobustHar",
    "classifier-gru": "classifier_gru:ClassifierGru",
}

__all__ = ["Architecture", "Batch", "find"]


def find(name: str) -> type[Architecture]:
    """The class of an architecture by name."""
    if name not in _MODULES:
        raise ModelError(f"architecture {name!r} is unknown: choose one of {', '.join(_MODULES)}.")
    module, _, cls = _MODULES[name].partition(":")
    found: type[Architecture] = getattr(import_module(f"cpbmodels.arch.{module}"), cls)
    return found
