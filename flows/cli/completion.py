"""What the shell completes beside commands and options: coins, timeframes, presets, architectures. Imports no torch."""

import shlex
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

from cpbmodels.arch import architectures
from cpbmodels.data import INTERVAL_SECONDS
from schemas.coins import COINS, coin_of
from schemas.errors import CpbError
from schemas.home import home_folder
from schemas.identity import stored_series
from schemas.presets import PRESET_ARCHITECTURES, SUFFIX, own_presets_folder


def _coins() -> Iterable[str]:
    return [*COINS, *(coin_of(series.symbol) for series in stored_series(home_folder(), "klines")), "all"]


def _presets() -> Iterable[str]:
    own = [*own_presets_folder().glob(f"*{SUFFIX}"), *Path().glob(f"*{SUFFIX}")]
    # The shell takes a completed word as typed: of a file from elsewhere, `$(…)` would run.
    return [*PRESET_ARCHITECTURES, *(path.name for path in own if shlex.quote(path.name) == path.name)]


def _architectures() -> Iterable[str]:
    return [*architectures(), *(name for names in PRESET_ARCHITECTURES.values() for name in names)]


_LISTS: dict[str, Callable[[], Iterable[str]]] = {
    "coins": _coins,
    "timeframes": lambda: INTERVAL_SECONDS,
    "preset": _presets,
    "architectures": _architectures,
}
"""Option that takes names with commas -> the names."""


def completing(name: str, choices: Collection[str] = ()) -> Callable[[str], list[str]] | None:
    """Return the function by which Typer completes an option's value; None where any text may be one.

    `choices`: the values of an option that takes one, and no list.
    """
    is_list = name in _LISTS
    if not is_list and not choices:
        return None
    values = _LISTS.get(name, lambda: choices)

    def complete(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",") if is_list else ("", "", incomplete)
        # Coins are typed in small letters, too; files and the interval 1M are not.
        typed = str.lower if name == "coins" and incomplete.islower() else str
        left: list[str] = []
        # Nothing is printed into the line that is being typed: the command will say what is wrong.
        with suppress(CpbError, OSError):
            left = [value for value in map(typed, dict.fromkeys(values())) if value not in before.split(",")]
        return [f"{before}{comma}{value}" for value in left if value.startswith(begun)]

    return complete
