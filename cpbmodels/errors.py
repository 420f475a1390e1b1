"""The error of this library: a request that cannot be met, described in one sentence."""

import re
import shlex
import sys
from collections.abc import Iterable
from decimal import Decimal
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

MAX_LISTED = 16  # names of a choice that are all listed in a message
MAX_SHOWN = 60  # characters of a value in a message

_GROUPED = re.compile(r"(?<![^,\s])\d{1,3}(?:,\d{3})+(?:\.\d*)?(?![^,\s])")
"""Several prices, or one whose thousands are grouped."""


def printable(text: str, keep: str = "\n\t") -> str:
    """The text with its control and invisible characters escaped, but those in `keep`.

    Names and messages that come from files of a stranger, a mirror or a server must not reach a terminal or a log as
    commands, or turn the order of what is read there.
    """
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


class ModelError(ValueError):
    """Impossible data, option or model folder; the message says what, where and what to do next."""

    def __str__(self) -> str:
        """The sentence; control characters of a file's name or content are escaped in it."""
        return printable(super().__str__(), keep="")


class DamagedModelError(ModelError):
    """A model folder whose files are not those that were saved."""


class PriceError(ModelError):
    """A price, chance or side about which a forecast cannot be asked."""


def grouped(price: float, digits: int = 15) -> str:
    """A price with its thousands grouped and without an exponent: `98,000.5`, `0.00001234`.

    digits: at most so many; 15 are as many as every decimal number keeps in a float64.
    """
    return f"{Decimal(f'{price:.{digits}g}'):,f}"


def shown(value: object) -> str:
    """A value in a message: its first characters, or its type if it may be large or nested."""
    if isinstance(value, (dict, list, tuple)) and len(value) > 5:
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value[:MAX_SHOWN] if isinstance(value, str) else value)[: MAX_SHOWN + 2]


def two_readings(prices: str) -> str:
    """A sentence if a text such as `98,500` is one price to some readers and two to others; "" if it is not."""
    if not (found := _GROUPED.search(prices)):
        return ""
    parts = found[0].split(",")
    one = "".join(parts)
    if not all(map(float, parts)):  # `98,000`: nobody asks for 98 and 0
        return f"{found[0]!r} has a comma, which separates prices: write {one}"
    several = ".0,".join(parts)
    return f"{found[0]!r} can be read as one price or as several: write {one} for one, {several} for several"


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


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
