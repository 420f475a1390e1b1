"""The pairs of `--coins exchange`: pairs listed by a source against USDT, selected by kind, age and turnover.

All criteria refer to a single time: a pair counts from its first closed candle, is left out if it was not traded in the
last complete month before that time, and its turnover is that month's. So a run with `--as-of` selects the pairs of
that time, including pairs delisted since: the source keeps their files.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

import polars as pl

from schemas.errors import CpbError, UsageError, count
from schemas.identity import EXCHANGE, INTERVAL_SECONDS, SeriesId, pair_kind
from schemas.scope import Scope, ScopeSpec
from tasks.market.client import CONNECTIONS, Limits
from tasks.market.faults import BadFile, SourceFault
from tasks.market.layout import DAY, SourceFile, grid_of, to_us
from tasks.market.parser import fetch, read, trim
from tasks.market.sources import Catalogue, Source, open_source
from tasks.running.parallel import thread_pool
from tasks.running.progress import tell

log = logging.getLogger("cpb")

S = TypeVar("S", bound=ScopeSpec)
T = TypeVar("T")

_KINDS = {"leveraged": "leveraged", "stablecoin": "against a stablecoin or currency"}
"""Kinds of pairs that are left out, as named in the reasons."""

_INTERVAL = "1d"
"""Candles used for age and turnover: 2 kB a month. Without them, the scope's own timeframes are used."""


@dataclass(frozen=True)
class Pair:
    """A listed pair at the selection time.

    `first`: open time of its first candle, µs UTC. `turnover`: quote volume of the last complete month, in USDT; 0 for
    a younger pair, and if turnover is not used.
    """

    symbol: str
    months: tuple[SourceFile, ...]
    first: int
    turnover: float = 0.0


@dataclass(frozen=True)
class Pairs:
    """The selected symbols in order, and the number of pairs left out by reason."""

    symbols: tuple[str, ...]
    left_out: dict[str, int]

    def __str__(self) -> str:
        """Return the selection as one sentence."""
        total = len(self.symbols) + sum(self.left_out.values())
        return f"exchange: {len(self.symbols):,} of {count(total, 'listed pair')}{_because(self.left_out)}"


def with_listed_pairs(spec: S) -> tuple[S, str]:
    """Return a specification of the whole exchange with its source's listed pairs, and a sentence on them.

    Raises:
        CpbError: the source has no listing, cannot be reached, or no pair is left.
        UsageError: the run is offline.
    """
    if spec.offline:
        raise UsageError(
            f"offline: coins {EXCHANGE} reads the source's listing; name the coins, or leave offline out",
            code="offline", field="offline",
        )  # fmt: skip
    found = exchange_pairs(spec)
    return spec.with_pairs(found.symbols), str(found)


def exchange_pairs(spec: ScopeSpec, limits: Limits | None = None) -> Pairs:
    """Query a specification's source for its pairs and select; errors as in `with_listed_pairs`."""
    scope = spec.scope
    until = to_us(scope.as_of or datetime.now(UTC))
    with open_source(scope, limits=limits) as source, thread_pool(CONNECTIONS, "list") as pool:
        try:
            return _Choice(spec, scope, source, pool, until).pairs()
        except (SourceFault, BadFile) as fault:
            raise CpbError(
                f"{source.name} could not list its pairs: {fault}; name the coins with --coins, or use a different "
                "source",
                code="listing", field="coins",
            ) from fault  # fmt: skip


class _Choice:
    """A selection among the pairs of a source, as of `until` (µs UTC)."""

    def __init__(
        self, spec: ScopeSpec, scope: Scope, source: Source, pool: ThreadPoolExecutor, until: int
    ) -> None:
        self._spec, self._market, self._source, self._pool = spec, scope.market, source, pool
        self._until, self._catalogue = until, Catalogue(source)
        others = sorted(scope.timeframes, key=lambda one: -INTERVAL_SECONDS.get(one, 0))
        self._intervals = tuple(dict.fromkeys((_INTERVAL, *others)))
        self._left_out: Counter[str] = Counter()

    def pairs(self) -> Pairs:
        """Return the selected pairs."""
        listed = self._catalogue.symbols(self._market)
        kinds = {symbol: pair_kind(symbol) for symbol in listed}
        self._left_out.update(_KINDS[kind] for kind in kinds.values() if kind in _KINDS)
        coins = [symbol for symbol, kind in kinds.items() if kind == "coin"]
        if not coins:
            raise self._none(f"{self._source.name} lists no USDT pair in market {self._market}")
        tell("exchange", 0, 0, "pairs", f"asking {self._source.name} for {count(len(coins), 'pair')}")
        known = self._each(self._ask, coins, "not listed yet")
        month = self._last_month(known)
        traded = self._kept([p if _is_traded(p, month) else f"not traded in {month}" for p in known])
        chosen = self._by_turnover(self._by_age(traded), month)
        if not chosen:
            raise self._none(f"no pair of {self._source.name} is left")
        order = {symbol: place for place, symbol in enumerate(listed)}
        symbols = sorted((pair.symbol for pair in chosen), key=order.__getitem__)
        return Pairs(tuple(symbols), dict(self._left_out))

    def _none(self, what: str) -> CpbError:
        spec = self._spec
        less = "lower --min-days-listed and --min-quote-volume"
        other = (
            less
            if spec.min_days_listed or spec.min_quote_volume
            else "choose another --source or a later --as-of"
        )
        return CpbError(
            f"{what}{_because(self._left_out)}; name the coins with --coins, or {other}",
            code="listing", field="coins",
        )  # fmt: skip

    def _each(self, ask: Callable[[T], Pair | None], of: Sequence[T], reason: str = "") -> list[Pair]:
        """Apply `ask` to each item; None is left out for `reason`, a damaged file for its damage."""

        def answer(one: T) -> Pair | str:
            try:
                return ask(one) or reason
            except BadFile as fault:
                log.warning("exchange: %s is left out: %s", getattr(one, "symbol", one), fault)
                return "with a damaged file"

        return self._kept(list(self._pool.map(answer, of)))

    def _kept(self, found: Sequence[Pair | str]) -> list[Pair]:
        """Return the pairs in a list of pairs and reasons, and count the reasons."""
        self._left_out.update(one for one in found if isinstance(one, str))
        return [one for one in found if isinstance(one, Pair)]

    def _ask(self, symbol: str) -> Pair | None:
        """Return a pair from the listing; None if its first candle had not closed yet."""
        for interval in self._intervals:
            series = SeriesId(self._market, symbol, interval)
            months = self._catalogue.files(series, "monthly", 0, self._until)
            # A pair first listed this month has daily files only; for older pairs they are not needed here.
            files = months or self._catalogue.files(series, "daily", 0, self._until)
            if files:
                return self._dated(Pair(symbol, tuple(months), files[0].bounds[0]), files[0])
        return None

    def _dated(self, pair: Pair, first: SourceFile) -> Pair | None:
        """Return a pair with its first candle's time: read from the file if the month leaves its age open."""
        begin, end = first.bounds
        oldest = self._until - self._spec.min_days_listed * DAY
        if end <= self._until and not begin <= oldest < end:
            return pair
        opened = int(self._candles(first)["open_time"].min())  # type: ignore[arg-type]
        closed = grid_of(first.series.timeframe).end(opened)
        return replace(pair, first=opened) if closed <= self._until else None

    def _last_month(self, pairs: Sequence[Pair]) -> str:
        """Return the newest complete month published for any pair; "" if there is none."""
        whole = (file.period for pair in pairs for file in pair.months if file.bounds[1] <= self._until)
        return max(whole, default="")

    def _by_age(self, pairs: Sequence[Pair]) -> list[Pair]:
        days = self._spec.min_days_listed
        reason = f"younger than {count(days, 'day')}"
        return self._kept([pair if pair.first <= self._until - days * DAY else reason for pair in pairs])

    def _by_turnover(self, pairs: list[Pair], month: str) -> list[Pair]:
        least, number = self._spec.min_quote_volume, self._spec.number_assets
        if not least and not number:
            return pairs
        tell("exchange", 0, 0, "pairs", f"reading the turnover of {count(len(pairs), 'pair')}")
        known = self._each(lambda pair: replace(pair, turnover=self._turnover(pair, month)), pairs)
        reason = f"below {least:,.0f} USDT in {month}"
        enough = self._kept([pair if pair.turnover >= least else reason for pair in known])
        ranked = sorted(enough, key=lambda pair: (-pair.turnover, pair.symbol))
        most = min(number or len(ranked), len(ranked))
        return self._kept([*ranked[:most], *["of smaller turnover"] * (len(ranked) - most)])

    def _turnover(self, pair: Pair, month: str) -> float:
        file = next((file for file in pair.months if file.period == month), None)
        return float(self._candles(file)["quote_volume"].sum()) if file else 0.0

    def _candles(self, file: SourceFile) -> pl.DataFrame:
        """Return a file's candles, with a verified checksum."""
        frame, faults = read([trim(file, fetch(self._source, file).csv)])
        if faults:
            raise faults[0]
        return frame


def _because(left_out: Mapping[str, int]) -> str:
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in left_out.items())
    return f" (left out: {reasons})" if reasons else ""


def _is_traded(pair: Pair, month: str) -> bool:
    """Whether a pair has candles in a month, or begins after it; a pair delisted before has only earlier files."""
    periods = {file.period for file in pair.months}
    return not month or month in periods or min(periods, default="9") > month
