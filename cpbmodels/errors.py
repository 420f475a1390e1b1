"""The error of this library: a request that cannot be met, described in one sentence."""

import shlex
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path


class ModelError(ValueError):
    """Impossible data, option or model folder; the message says what, where and what to do next."""


class DamagedModelError(ModelError):
    """A model folder whose files are not those that were saved."""


MAX_LISTED = 16  # names of a choice that are all listed in a message
MAX_SHOWN = 60  # characters of a value in a message


def shown(value: object) -> str:
    """A value in a message: its first characters, or its type if it may be large or nested."""
    if isinstance(value, (dict, list, tuple)) and len(value) > 5:
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value[:MAX_SHOWN] if isinstance(value, str) else value)[: MAX_SHOWN + 2]


def unknown_choice(kind: str, value: object, allowed: Iterable[str]) -> str:
    """The sentence for a name that is not among the allowed names; with the most similar of them, if there are any."""
    names = list(allowed)
    similar = get_close_matches(str(value), names) if len(names) > MAX_LISTED else []
    return f"{kind} {shown(value)} is unknown: choose one of {', '.join(similar or names)}."


def pip_install(*packages: str) -> str:
    """The command that installs packages for the running interpreter, in a clone of cpb at its pinned versions."""
    pins = Path(__file__).parents[1] / "constraints.txt"
    return pip("install", *(("-c", str(pins)) if pins.is_file() else ()), *packages)


def pip(command: str, *arguments: str) -> str:
    """A command of pip for the running interpreter, or of uv, whose environments have no pip."""
    python = sys.executable
    tool = (python, "-m", "pip", command) if find_spec("pip") else ("uv", "pip", command, "--python", python)
    return shlex.join([*tool, *arguments])
