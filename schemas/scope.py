"""The options that all commands share, and their scope.

A scope is what these options resolve to: symbols, timeframes, instants, and the home of this machine.
"""

import os
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cpbmodels.data import INTERVAL_SECONDS, TABLE_SUFFIXES
from schemas.base import Spec
from schemas.coins import CHAMPIONS, EXCHANGE, coin_of, coins_label, parse_coins, parse_timeframes
from schemas.errors import MINUTE, UsageError
from schemas.home import home_folder
from schemas.identity import APART, OWN, SIM, Market, SeriesId, market_home, scope_options
from schemas.reading import Reading, remembered
from schemas.tables import is_table, tables_of


def parse_instant(text: str, option: str) -> datetime:
    """Return a UTC time from `2024-01`, `2024-01-31`, `2024-01-31T12:30` or with seconds.

    Raises:
        UsageError: the text has none of these forms, or is before the year 1000; names `option`.
    """
    for form in ("%Y-%m", "%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"):
        try:
            instant = datetime.strptime(text.strip().removesuffix("Z"), form).replace(tzinfo=UTC)
        except ValueError:
            continue
        if instant.year >= 1000:
            return instant
    raise UsageError(
        f"{option} {text!r} is not a date: use 2024-01, 2024-01-31 or 2024-01-31T12:30 (UTC)",
        code="date",
        field=option,
    )


class Scope(BaseModel):
    """Symbols, timeframes and time range of a command.

    `source` is a URL, a folder, a table of candles, `sim`, or None for Binance Vision. `since` (inclusive) is compared
    with `open_time`; `as_of` with the candle's end: candles that close after it are ignored. `home` is `CPB_HOME`;
    `root` holds the files of a single market (manifest, fleets, packages). `offline`: no source is read, the stored
    candles are used as they are. `reading`: how a table is read; `rewrite`: it may replace stored candles. `chosen`:
    the series, if they are not every symbol at every timeframe.
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
    reading: Reading = Reading()
    rewrite: bool = False
    chosen: tuple[SeriesId, ...] | None = None

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

    @property
    def title(self) -> str:
        """Coins and timeframes in words: `20 coins 15m,1h`, `BTC, ETH 1h`; `all coins` is at every timeframe."""
        coins = coins_label(self.symbols) if self.symbols else "all coins"
        # Fifteen names, as of an hourly forecast, would hide in Prefect's lists what kind of run it is.
        return coins if self.timeframes == (*INTERVAL_SECONDS,) else f"{coins} {','.join(self.timeframes)}"

    def selects(self, series: SeriesId) -> bool:
        """Whether a series of the market is asked for; without symbols, as for `champions`, every coin is.

        `OWN` asks for a table's OWNUSDT too.
        """
        # a coin may be named by its pair, or alone where it is priced in USDT
        names = {series.symbol, series.symbol.removesuffix("USDT")}
        is_named = not self.symbols or not names.isdisjoint(self.symbols)
        return is_named and series.timeframe in self.timeframes

    @property
    def options(self) -> str:
        """The command-line options that ask for the same: ` --coins BTC --timeframes 1h`; "" for all of spot."""
        timeframes = "" if len(self.timeframes) == len(INTERVAL_SECONDS) else ",".join(self.timeframes)
        return scope_options(self.market, ",".join(map(coin_of, self.symbols)), timeframes)

    def narrowed(self, series: Sequence[SeriesId]) -> "Scope":
        """Return the scope restricted to exactly these series of its market."""
        return self.model_copy(
            update={
                "chosen": tuple(series),
                "symbols": tuple(dict.fromkeys(s.symbol for s in series)),
                "timeframes": tuple(dict.fromkeys(s.timeframe for s in series)),
            }
        )

    @property
    def root(self) -> Path:
        """`HOME`, or `HOME/sim` for simulated candles, `HOME/own` for a user's tables."""
        return market_home(self.home, self.market)


def check_url(source: str) -> None:
    """Raise `UsageError` unless a source is the URL of a mirror; messages omit the URL, which may hold a password."""
    try:
        url = urlsplit(source)
        good = (
            url.scheme in ("http", "https")
            and url.hostname
            and url.port != 0
            and not {"?", "#"} & set(source)
        )
    except ValueError:  # its text can show the password if that is parsed as the port
        good = False
    if not good:
        scheme = source.partition("://")[0]
        raise UsageError(
            f"source{f' {scheme}://…' if scheme.isalnum() else ''} is not the http or https URL of a mirror's folder, "
            "with a host and without query or fragment; correct it, give a folder or sim, or leave it out",
            code="source",
        )


class ScopeSpec(Spec):
    """The options that all commands share: the market and the part of it to work on."""

    months_allowed: ClassVar[bool] = False

    coins: str = Field(
        "all",
        description="BTC,ETH, all (the default universe) or exchange (every listed USDT pair); a coin without a quote "
        "means USDT",
    )
    timeframes: str = Field("15m,1h", description="Binance intervals, as in 15m,1h")
    source: str | None = Field(
        None, description="URL, folder, table of candles or sim; default: Binance Vision itself"
    )
    columns: str | None = Field(
        None,
        description="of a table: which columns are meant, as in time=Date,open=Open,high=High,low=Low,close=Last,"
        "volume=Amount; remembered with the source",
    )
    decimal: Literal["point", "comma"] | None = Field(
        None,
        description="of a table: point or comma, where no number tells whether 3,364 is three or three thousand; "
        "remembered with the source",
    )
    rewrite: bool = Field(
        False,
        description="of a table: replace stored candles where the table has changed more than 1 % of them",
    )
    market: Market = Field("spot", description="spot, um, cm, or sim and own (which a source implies)")
    since: str | None = Field(
        None, description="first candle, as in 2024-01 or 2024-01-31 (UTC); default: the oldest available"
    )
    as_of: str | None = Field(
        None, description="no candle that closes after it is seen, as in 2025-06-06T12:00 (UTC); default: now"
    )
    tail: bool = Field(False, description="add the newest candles from the REST API")
    offline: bool = Field(False, description="use only the stored candles: no source is read")

    @model_validator(mode="before")
    @classmethod
    def _source_is_a_market(cls, values: Any) -> Any:
        """The simulator and custom tables are markets: a source implies its market, and the market sim its source."""
        if not isinstance(values, dict):
            return values
        source, market = values.get("source"), values.get("market")
        # before the fields are checked: the market decides which sources and coins are valid
        implied = SIM if source == SIM else OWN if is_table(source) else None
        if market == SIM and source not in (None, SIM):
            raise UsageError("market 'sim' has no other source than sim: leave source out", code="market")
        if implied and market not in (None, "spot", implied):
            what = "simulated" if implied == SIM else "read from a table"
            raise UsageError(
                f"market {market!r} cannot be {what}: leave market out with source {source}", code="market"
            )
        if OWN in (implied, market) and str(values.get("coins", "")).strip().lower() == EXCHANGE:
            raise UsageError(
                f"coins {EXCHANGE} reads an exchange's listing, and your own table has none: use all",
                code="coins",
            )
        if implied == OWN:
            return values | {"market": OWN} | cls._of_tables(values)
        if given := [name for name in (*Reading._fields, "rewrite") if values.get(name) not in (None, False)]:
            raise UsageError(
                f"{given[0]} says how a table is read or stored, and the source is none: leave it out, or give "
                "--source FILE",
                code=given[0],
            )
        return values | {"source": SIM, "market": SIM} if SIM in (implied, market) else values

    @classmethod
    def _of_tables(cls, values: dict[str, Any]) -> dict[str, str]:
        """`all` coins and the default timeframes mean all coins and timeframes in the tables."""
        fields = cls.model_fields
        coins = values.get("coins", fields["coins"].default)
        given = values.get("timeframes", fields["timeframes"].default)
        given = "" if given == fields["timeframes"].default else str(given).strip()
        # by the absolute path: the same table from another folder is the same source
        before = remembered(home_folder()).get(os.path.abspath(values["source"]), Reading())  # noqa: PTH100
        typed = {name: values[name] for name in Reading._fields if values.get(name) is not None}
        reading = before._replace(**typed)
        if reading.decimal not in (None, "point", "comma"):  # before the table is read with it
            raise UsageError(
                f"decimal {reading.decimal!r} is unknown: choose point or comma",
                code="decimal",
                field="decimal",
            )
        try:
            held = tables_of(values["source"], coins, given, reading)
        except UsageError as error:
            # the sentence is of an option that was not typed: it says where that comes from
            kept = [f"--{n} {shlex.quote(v)}" for n, v in before._asdict().items() if v and n not in typed]
            if not kept:
                raise
            raise UsageError(
                f"{error} ({' '.join(kept)} is remembered from an earlier run with this source; give another value to "
                "replace it)",
                code=error.code,
                field=error.field,
            ) from error
        timeframes = values.get("timeframes", fields["timeframes"].default)
        if timeframes == fields["timeframes"].default:
            timeframes = ",".join(held.timeframes)
        elif missing := [
            name for name in parse_timeframes(timeframes, months=True) if name not in held.timeframes
        ]:
            raise UsageError(
                f"timeframes {timeframes!r}: {held.path} holds {', '.join(held.timeframes)} and no "
                f"{', '.join(missing)}; name one of these",
                code="timeframes",
            )
        # names of the tables themselves: BTC of the command may be BTCEUR there
        chosen = {"coins": held.coins("all" if coins == CHAMPIONS else coins), "timeframes": timeframes}
        return chosen | {name: value for name, value in reading._asdict().items() if name not in typed}

    @property
    def whole_exchange(self) -> bool:
        """Whether the coins are the pairs of the source's listing."""
        return self.coins.strip().lower() == EXCHANGE

    @property
    def looks_up_symbols(self) -> bool:
        """Whether the symbols come from the source's listing, which `with_listed_pairs` reads."""
        return self.whole_exchange

    @property
    def intervals(self) -> list[str]:
        """The timeframes without duplicates."""
        return parse_timeframes(self.timeframes, months=self.months_allowed)

    @model_validator(mode="after")
    def _source_exists(self) -> Self:
        # the simulator and tables have been looked at while the market was implied
        if not self.source or self.market in APART:
            return self
        if "://" in self.source:
            check_url(self.source)
        elif not os.path.isdir(self.source):  # noqa: PTH112 (Path.is_dir raises for a name that is too long)
            name = "" if "@" in self.source else f" {self.source!r}"  # it may be a URL with a password
            lone = "the folder in which it lies" if self.source.lower().endswith(".zip") else "one"
            raise UsageError(
                f"source{name} is neither a URL, nor a folder of this machine, nor a file of a kind that is read "
                f"({', '.join(TABLE_SUFFIXES)}); give {lone}, or sim",
                code="source",
            )
        return self

    @model_validator(mode="after")
    def _coins_and_time_range(self) -> Self:
        resolved = self._resolved()
        start, end = resolved.since, resolved.as_of
        if start and end and end - start < timedelta(days=1):
            raise UsageError(
                f"as_of {self.as_of} must lie at least a day after since {self.since}",
                code="range",
                field="as_of",
            )
        if self.tail and self.offline:
            raise UsageError(
                "tail reads the newest candles from the REST API, and offline forbids it: leave one out",
                code="offline",
                field="tail",
            )
        now = datetime.now(UTC)
        for name, instant in (("as_of", end), ("since", start)):
            # a tolerance of a day: as_of may be the end of today, or the clock may be slow
            if instant and instant - now > timedelta(days=1):
                raise UsageError(
                    f"{name} {getattr(self, name)} is later than this machine's clock ({now:{MINUTE}} UTC); "
                    "give an earlier time, or leave it out",
                    code="future",
                    field=name,
                )
        return self

    @cached_property
    def scope(self) -> Scope:
        """The resolved options: symbols, instants, the home of this machine."""
        return self._resolved()

    def _resolved(self) -> Scope:
        return Scope(
            symbols=()
            if self.looks_up_symbols
            else tuple(parse_coins(self.coins, quoted=self.market == OWN)),
            timeframes=tuple(self.intervals),
            source=self.source or None,
            market=self.market,
            since=parse_instant(self.since, "since") if self.since else None,
            as_of=parse_instant(self.as_of, "as_of") if self.as_of else None,
            home=home_folder(),
            offline=self.offline,
            reading=Reading(self.columns, self.decimal),
            rewrite=self.rewrite,
        )


class IngestSpec(ScopeSpec):
    """Options of `cpb ingest`, which also stores candles of a calendar month; no model learns from those candles."""

    months_allowed: ClassVar[bool] = True
