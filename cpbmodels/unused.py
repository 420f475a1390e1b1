"""Options that change nothing for an architecture. Who asks for one expects something, and should be told."""

from __future__ import annotations

from collections.abc import Iterable

from cpbmodels.options import ALIASES, Preset
from cpbmodels.presets import ARCHITECTURE_DEFAULTS, CLOSED_FORM

SIZES = ("hidden_dim", "n_layers", "n_heads", "ff_dim", "dropout")
"""Options that not every architecture reads: those that read one name it in `ARCHITECTURE_DEFAULTS`."""
TRAINING = ("batch_size", "epochs", "patience", "lr", "mixed_precision")  # what a closed form does without
_BETWEEN_LAYERS = ("gru", "lstm", "lstm-manual")  # whose dropout acts between layers, as torch's does


def without_effect(options: Preset, architecture: str, given: Iterable[str]) -> list[str]:
    """A sentence for each option among the names `given` that changes nothing for this architecture."""
    read = [name for name in SIZES if name in ARCHITECTURE_DEFAULTS[architecture]]
    names = [ALIASES.get(name, name) for name in given]
    found = [
        f"{name} has no effect on {architecture}, which reads {', '.join(read) or 'none of this kind'}: leave it out."
        for name in names
        if name in SIZES and name not in read
    ]
    if architecture in CLOSED_FORM:
        solved = f"has no effect on {architecture}, which is solved at once: leave it out."
        found += [f"{name} {solved}" for name in names if name in TRAINING]
    if "dropout" in names and options.n_layers == 1 and architecture in _BETWEEN_LAYERS:
        found.append(
            f"dropout has no effect on {architecture} with n_layers 1, it acts between layers: "
            "leave it out or choose n_layers from 2 to 16."
        )
    return found
