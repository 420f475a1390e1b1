"""What the shell completes beside commands and options: coins, timeframes, presets, architectures. Imports no torch."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from cpbmodels.arch import architectures
from cpbmodels.arch.options import PROFILES
from cpbmodels.data import INTERVAL_SECONDS
from schemas.coins import COINS, coin_of
from schemas.errors import CpbError
from schemas.home import home_folder
from schemas.identity import stored_series
from schemas.presets import PRESET_ARCHITECTURES, SUFFIX, own_presets_folder

Values = Callable[[], Iterable[str]]


def _coins() -> Iterable[str]:
    return [*COINS, *(coin_of(series.symbol) for series in stored_series(home_folder(), "klines")), "all"]


def _presets() -> Iterable[str]:
    own = [*own_presets_folder().glob(f"*{SUFFIX}"), *Path().glob(f"*{SUFFIX}")]
    return [*PRESET_ARCHITECTURES, *(path.name for path in own)]


def _architectures() -> Iterable[str]:
    return [*architectures(), *(name for names in PRESET_ARCHITECTURES.values() for name in names)]


LISTS: dict[str, Values] = {
    "coins": _coins,
    "timeframes": lambda: INTERVAL_SECONDS,
    "preset": _presets,
    "architectures": _architectures,
}
"""Option that takes names with commas -> the names."""

NAMES: dict[str, Values] = {"profile": lambda: ("auto", *PROFILES)}
"""Option that takes one name -> the names."""


def completing(name: str, choices: Iterable[str] = ()) -> Callable[[str], list[str]] | None:
    """Return the function by which Typer completes an option's value; None where any text may be one."""
    values = LISTS.get(name) or NAMES.get(name) or (lambda: choices)
    if name not in LISTS and not [*values()]:
        return None

    def complete(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",") if name in LISTS else ("", "", incomplete)
        found: list[str] = []
        # Nothing is printed into the line that is being typed: the command will say what is wrong.
        with suppress(CpbError, OSError):
            found += values()
        left = [value for value in dict.fromkeys(found) if value not in before.split(",")]
        # Coins are typed in small letters, too.
        fits = [v for v in left if v.startswith(begun)] or [v.lower() for v in left]
        return [f"{before}{comma}{value}" for value in fits if value.startswith(begun)]

    return complete
