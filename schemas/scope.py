"""The base class of option sets, whose errors are a sentence, and the resolved scope of a command.

A scope: symbols, timeframes, instants, and the home of this machine.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from schemas.errors import UsageError
from schemas.identity import OWN, SIM, Market, SeriesId, market_home, parse_coins, parse_timeframes
from schemas.tables import is_table, tables_of

_CODE = Path(__file__).resolve().parents[1]
_WANTED = {"int": "a whole number", "float": "a number", "bool": "true or false"}
"""Expected kind of value, by the prefix of pydantic's error type: `int_parsing`, `int_from_float`, .."""


class Spec(BaseModel):
    """A set of options. Invalid values raise `UsageError`, which names the option and a valid value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _one_sentence(cls, values: Any, build: Any) -> Self:
        _refuse_booleans(cls, values)
        try:
            return build(values)
        except ValidationError as error:
            first = error.errors()[0]
            field = str(first["loc"][0]) if first["loc"] else ""
            code = first["type"].replace("_", "-")
            raise UsageError(
                _sentence(first, field, list(cls.model_fields)), code=code, field=field
            ) from None


def _refuse_booleans(spec: type[BaseModel], values: Any) -> None:
    """Raise `UsageError` for a boolean in a numeric field: Python treats booleans as 1 and 0."""
    for name, field in spec.model_fields.items() if isinstance(values, dict) else ():
        kinds = set(get_args(field.annotation) or (field.annotation,))
        if isinstance(values.get(name), bool) and bool not in kinds and kinds & {int, float}:
            wanted = _WANTED["float" if float in kinds else "int"]
            raise UsageError(f"{name} {values[name]!r} is not {wanted}", code="int-type", field=name)


def _sentence(error: ErrorDetails, field: str, known: list[str]) -> str:
    """Return a pydantic error as a single sentence."""
    given, limits = error["input"], error.get("ctx", {})
    kind = error["type"]
    if kind == "extra_forbidden":
        return f"option {field!r} is unknown: choose from {', '.join(known)}"
    if kind == "literal_error":
        return f"{field} {given!r} is unknown: choose {limits['expected'].replace(chr(39), '')}"
    if kind in ("greater_than_equal", "less_than_equal", "greater_than", "less_than"):
        (limit,) = limits.values()
        words = {"greater_than_equal": "at least", "less_than_equal": "at most", "greater_than": "more than"}
        return f"{field} {given!r} is out of range: it must be {words.get(kind, 'less than')} {limit:g}"
    if field == "repo":
        return f"repo {given!r} is not USER/NAME, as in alice/cpb-models"
    if wanted := _WANTED.get(kind.partition("_")[0]):
        return f"{field} {given!r} is not {wanted}"
    return f"{field} {given!r} cannot be used: {error['msg'][0].lower()}{error['msg'][1:]}"


def default_folder(in_clone: Path = Path()) -> Path:
    """Return the folder in which `data` and `mlruns` lie by default.

    It is `in_clone` for cpb that runs from a clone, else `cpb` in `XDG_DATA_HOME` (`~/.local/share`): a command
    installed for a user runs in any folder, and must find there what it stored from another.
    """
    if (_CODE / "pyproject.toml").is_file():
        return in_clone
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "cpb"


def home() -> Path:
    """Return the store's folder: `CPB_HOME`, or `data` in `default_folder`."""
    return Path(os.environ.get("CPB_HOME") or default_folder() / "data")


def parse_instant(text: str, option: str) -> datetime:
    """Return a UTC time from `2024-01`, `2024-01-31`, `2024-01-31T12:30` or with seconds.

    Raises:
        UsageError: the text has none of these forms, or is before the year 1000; names `option`.
    """
    for form in ("%Y-%m", "%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"):
        try:
            found = datetime.strptime(text.strip().removesuffix("Z"), form).replace(tzinfo=UTC)
        except ValueError:
            continue
        if found.year >= 1000:
            return found
    raise UsageError(f"{option} {text!r} is not a date: use 2024-01, 2024-01-31 or 2024-01-31T12:30 (UTC)",
                     code="date", field=option)  # fmt: skip


def implied_market(source: str | None) -> Market | None:
    """Return the market implied by the kind of source; None if it can be any Binance market."""
    return SIM if source == SIM else OWN if is_table(source) else None


class Scope(BaseModel):
    """Symbols, timeframes and time range of a command.

    `source` is a URL, a folder, a table of candles, `sim`, or None for Binance Vision. `since` (inclusive) is compared
    with `open_time`; `as_of` with the candle's end: candles that close after it are ignored. `home` is `CPB_HOME`;
    `root` holds the files of a single market (manifest, fleets, packages). `offline`: no
    source is read, the stored candles are used as they are. `chosen`: the series, if they are not every symbol at
    every timeframe.
    """

    model_config = ConfigDict(frozen=True)

    symbols: tuple[str, ...]
    timeframes: tuple[str, ...]
    source: str | None = None
    market: Market = "spot"
    since: datetime | None = None
    as_of: datetime | None = None
    home: Path
    offline: bool = False
    chosen: tuple[SeriesId, ...] | None = None

    @classmethod
    def of(
        cls,
        coins: str = "all",
        timeframes: str = "15m,1h",
        source: str | None = None,
        market: Market = "spot",
        since: str | None = None,
        as_of: str | None = None,
        months: bool = False,
    ) -> "Scope":
        """Resolve the texts of command-line options; raises `UsageError` naming the option at fault.

        `months` allows candles of a calendar month, which can be stored but not used for training.
        """
        implied = implied_market(source)
        if implied == OWN and source:
            coins = tables_of(source).coins(coins)
        return cls(
            symbols=tuple(parse_coins(coins, quoted=OWN in (implied, market))),
            timeframes=tuple(parse_timeframes(timeframes, months)),
            source=source or None,
            market=implied or market,
            since=parse_instant(since, "since") if since else None,
            as_of=parse_instant(as_of, "as_of") if as_of else None,
            home=home(),
        )

    @property
    def series(self) -> list[SeriesId]:
        """Every series of the scope, by symbol; a new list on each access: build a set from it for lookups."""
        if self.chosen is not None:
            return list(self.chosen)
        return [
            SeriesId(self.market, symbol, timeframe)
            for symbol in self.symbols
            for timeframe in self.timeframes
        ]

    def narrowed(self, series: Sequence[SeriesId]) -> "Scope":
        """Return the scope restricted to exactly these series of its market."""
        return self.model_copy(
            update={
                "chosen": tuple(series),
                "symbols": tuple(dict.fromkeys(one.symbol for one in series)),
                "timeframes": tuple(dict.fromkeys(one.timeframe for one in series)),
            }
        )

    @property
    def root(self) -> Path:
        """`HOME`, or `HOME/sim` for simulated candles, `HOME/own` for a user's tables."""
        return market_home(self.home, self.market)
