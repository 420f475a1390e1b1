"""The error of this library: a request that cannot be met, described in one sentence."""

from __future__ import annotations

from collections.abc import Iterable


class ModelError(ValueError):
    """Impossible data, option or model folder; the message says what, where and what to do next."""


class DamagedModelError(ModelError):
    """A model folder whose files are not those that were saved."""


def unknown_choice(kind: str, value: object, allowed: Iterable[str]) -> str:
    """The sentence for a name that is not among the allowed ones."""
    return f"{kind} {value!r} is unknown: choose one of {', '.join(allowed)}."
