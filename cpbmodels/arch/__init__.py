"""The registry of architectures. Names cost no torch; an architecture's module is imported on first use.

A new architecture is one file in this folder and one line in `_BUILT_IN` (docs/extending.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from cpbmodels.errors import ModelError, unknown_choice

if TYPE_CHECKING:  # the classes need torch, their names do not
    from cpbmodels.arch.base import Architecture

_BUILT_IN = {
    "transformer": "cpbmodels.arch.transformer:Transformer",
    "gru": "cpbmodels.arch.gru:Gru",
    "lstm": "cpbmodels.arch.lstm:Lstm",
    "lstm-manual": "cpbmodels.arch.lstm:LstmManual",
    "linear": "cpbmodels.arch.har:Linear",
    "har": "cpbmodels.arch.har:Har",
    "robust-har": "cpbmodels.arch.har:RobustHar",
    "line": "cpbmodels.arch.line:Line",
    "walk": "cpbmodels.arch.line:Walk",
    "average": "cpbmodels.arch.line:Average",
    "classifier-gru": "cpbmodels.arch.gru:ClassifierGru",
}


@dataclass(frozen=True)
class ArchitectureInfo:
    """What callers outside the engine need to know of an architecture.

    closed_form: solved without epochs; copies with other seeds would be equal.
    classifier: forecasts up, flat or down and no price.
    presets: presets that only this architecture (or it and its relatives) can be trained with.
    default_preset: the preset it is trained with when none is named.
    """

    name: str
    closed_form: bool
    classifier: bool
    presets: tuple[str, ...]
    default_preset: str


def architectures() -> list[str]:
    """Names that `train_fleet(architecture=...)` accepts."""
    return [*_BUILT_IN]


def architecture(name: str) -> ArchitectureInfo:
    """What is known of an architecture by name. ModelError if it is unknown; imports torch."""
    kind = find(name)
    return ArchitectureInfo(
        name=name,
        closed_form=kind.spec.closed_form,
        classifier=kind.is_classifier(),
        presets=tuple(kind.spec.presets),
        default_preset=kind.spec.default_preset,
    )


@cache
def find(name: str) -> type[Architecture]:
    """The class of an architecture by name. ModelError if it is unknown."""
    if name not in _BUILT_IN:
        raise ModelError(unknown_choice("architecture", name, architectures()))
    module, _, attribute = _BUILT_IN[name].partition(":")
    kind: type[Architecture] = getattr(import_module(module), attribute)
    return kind


def every() -> dict[str, type[Architecture]]:
    """Every architecture by name."""
    return {name: find(name) for name in _BUILT_IN}
