"""The error of this library: a request that cannot be met, described in one sentence."""

from __future__ import annotations

from collections.abc import Iterable


class ModelError(ValueError):
    """Impossible data, option or model folder; the message says what, where and what to do next."""


class DamagedModelError(ModelError):
    """A model folder whose files are not those that were saved."""


MAX_SHOWN = 60  # characters of a value in a message


def shown(value: object) -> str:
    """A value in a message: its first characters, or what it is where it may be large or nested."""
    if isinstance(value, (dict, list, tuple)) and len(value) > 5:
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value[:MAX_SHOWN] if isinstance(value, str) else value)[: MAX_SHOWN + 2]


def unknown_choice(kind: str, value: object, allowed: Iterable[str]) -> str:
    """The sentence for a name that is not among the allowed ones."""
    return f"{kind} {shown(value)} is unknown: choose one of {', '.join(allowed)}."
