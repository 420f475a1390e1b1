"""The registry of architectures. Names cost no torch; an architecture's module is imported on first use.

A new architecture is one file in this folder and one line in `_BUILT_IN` (docs/extending.md). Architectures of
other packages are found through the entry-point group `cpbmodels.architectures`. Entry points belong to the Python
environment, so trainer processes and workers find the same architectures as the process that started them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from cpbmodels.errors import ModelError, unknown_choice

if TYPE_CHECKING:  # the classes need torch, their names do not
    from cpbmodels.arch.base import Architecture

ENTRY_POINT_GROUP = "cpbmodels.architectures"
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
    package: name and version of the distribution that registers it; "" for an architecture of cpbmodels.
    """

    name: str
    closed_form: bool
    classifier: bool
    presets: tuple[str, ...]
    default_preset: str
    package: str = ""


def architectures() -> list[str]:
    """Names that `train_fleet(architecture=...)` accepts: cpbmodels' own, then other packages', sorted."""
    return [*_BUILT_IN, *sorted(_registered())]


def architecture(name: str) -> ArchitectureInfo:
    """What is known of an architecture by name. ModelError if it is unknown or unusable; imports torch."""
    kind = find(name)
    return ArchitectureInfo(
        name=name,
        closed_form=kind.spec.closed_form,
        classifier=kind.is_classifier(),
        presets=tuple(kind.spec.presets),
        default_preset=kind.spec.default_preset,
        package=_package(_registered()[name]) if name in _registered() else "",
    )


@cache
def find(name: str) -> type[Architecture]:
    """The class of an architecture by name. ModelError if it is unknown or another package's that cannot be used."""
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        kind: type[Architecture] = getattr(import_module(module), attribute)
        return kind
    if name not in _registered():
        raise ModelError(unknown_choice("architecture", name, architectures()))
    point = _registered()[name]
    try:
        kind = point.load()
        _ = kind.spec.presets  # raises if it is no `Architecture`
    except Exception as error:  # any error of that package's code: its name belongs into the message
        raise ModelError(
            f"architecture {name!r} of the package {_package(point)} cannot be used ({type(error).__name__}: {error}): "
            "update or uninstall that package."
        ) from error
    return kind


def usable() -> dict[str, type[Architecture]]:
    """Every architecture that can be imported, by name; `find` says why another cannot."""
    kinds = {}
    for name in architectures():
        with suppress(ModelError):
            kinds[name] = find(name)
    return kinds


@cache
def _registered() -> dict[str, EntryPoint]:
    """Entry points of other packages by name, the last one found of each; never cpbmodels' names."""
    points = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    return {name: point for name, point in points.items() if name not in _BUILT_IN}


def _package(point: EntryPoint) -> str:
    """Name and version of the distribution that an entry point belongs to."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value
