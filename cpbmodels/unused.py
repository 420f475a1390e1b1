"""Options that have no effect on an architecture, so that the user can be told instead of being misled."""

from __future__ import annotations

from collections.abc import Iterable

from cpbmodels.arch import find
from cpbmodels.options import ALIASES, SIZES, Preset

TRAINING_OPTIONS = ("batch_size", "epochs", "patience", "lr", "mixed_precision")
"""Options of gradient steps: a closed form has none."""


def without_effect(options: Preset, architecture: str, given: Iterable[str]) -> list[str]:
    """A sentence for each option among the names `given` that changes nothing for this architecture."""
    spec = find(architecture).spec
    read = [name for name in SIZES if name in spec.sizes]
    names = [ALIASES.get(name, name) for name in given]
    found = [
        f"{name} has no effect on {architecture}, which reads {', '.join(read) or 'none of this kind'}: leave it out."
        for name in names
        if name in SIZES and name not in read
    ]
    if spec.closed_form:
        solved = f"has no effect on {architecture}, which is solved at once: leave it out."
        found += [f"{name} {solved}" for name in names if name in TRAINING_OPTIONS]
    if "dropout" in names and options.n_layers == 1 and spec.dropout_between_layers:
        found.append(
            f"dropout has no effect on {architecture} with n_layers 1, it acts between layers: "
            "leave it out or choose n_layers from 2 to 16."
        )
    return found
