"""What a source has: its files, from the bucket's paginated XML listing or requests for each possible name; its pairs.

The listing decides which files are fetched, not the calendar: files are published late, twice, or not at all.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from schemas.coins import EXCHANGE, MONTH, SYMBOL, check_known, is_coin_pair
from schemas.errors import CpbError, UsageError, counted
from schemas.identity import MARKET_FOLDERS, OWN, SIM, SeriesId, stored_series
from schemas.scope import ScopeSpec
from tasks.market.client import (
    HttpSource,
    SourceFault,
    Unreachable,
    whole_number,
)
from tasks.market.folder import FolderSource
from tasks.market.layout import (
    Remote,
    SourceFile,
    day_of,
    days,
    listed_file,
    listing_prefix,
    month_of,
    months,
    period_bounds,
    source_file,
)
from tasks.market.sources import Source, open_source
from tasks.market.tables import TableSource

S = TypeVar("S", bound=ScopeSpec)

_FIRST_MONTH = period_bounds("2017-08")[0]  # Binance's
MAX_PAGES, MAX_KEYS = 200, 200_000
"""Bounds of a listing. Binance's longest, the daily files of one series with their CHECKSUMs, has 7 pages of 1,000."""


@dataclass
class Catalogue:
    """Queries a source's files; remembers whether the source has a listing."""

    source: Source
    probe_with: Executor | None = None
    lists: bool = True
    _symbols: dict[str, list[str]] = field(
        default_factory=dict, repr=False
    )  # by market, once it was asked for

    def files(self, series: SeriesId, kind: str, start: int, end: int) -> list[SourceFile]:
        """Return the published files of a series that overlap `[start, end)`, oldest first.

        Raises:
            SourceFault: the listing is incomplete, or the source cannot be reached.
        """
        if (kind, series.timeframe) == ("daily", MONTH):  # 1mo has no daily files
            return []
        if isinstance(self.source, TableSource):
            files = self.source.files(series) if kind == "monthly" else []
        else:
            remotes = (
                self.source.files(series, kind)
                if isinstance(self.source, FolderSource)
                else self._listed(self.source, series, kind, start, end)
            )
            files = [file for remote in remotes if (file := listed_file(series, remote))]
        by_period = {f.period: f for f in files if f.bounds[0] < end and f.bounds[1] > start}
        return sorted(by_period.values())

    def symbols(self, market: str) -> list[str]:
        """Return every symbol the source lists in a market; empty if the source has no listing.

        Symbols first listed this month have daily files only.

        Raises:
            SourceFault: the listing is incomplete, or the source cannot be reached.
        """
        if market in self._symbols:
            return self._symbols[market]
        names: set[str] = set()
        for kind in ("monthly", "daily"):
            prefix = f"data/{MARKET_FOLDERS[market]}/{kind}/klines/"
            if isinstance(self.source, FolderSource):
                names |= self.source.symbols(market)
            elif isinstance(self.source, HttpSource):
                pages = _pages(self.source, {"prefix": prefix}, names_are_known=False)
                names |= {folder.removeprefix(prefix).strip("/") for page in pages for folder in page.folders}
        self._symbols[market] = sorted(name for name in names if SYMBOL.fullmatch(name))
        return self._symbols[market]

    def other_units(self, series: SeriesId) -> list[str]:
        """Return the listed symbols that name the same pair by another number of coins, as 1000PEPEUSDT does PEPEUSDT.

        Empty where the source lists nothing or cannot be reached.
        """
        return [
            name
            for name in self.listed(series.market)
            if name != series.symbol and _without_unit(name) == _without_unit(series.symbol)
        ]

    def listed(self, market: str) -> list[str]:
        """Return `symbols`; nothing where the source cannot be reached."""
        try:
            return self.symbols(market)
        except SourceFault:
            self._symbols[market] = []  # not asked again for each series
            return []

    def _listed(self, source: HttpSource, series: SeriesId, kind: str, start: int, end: int) -> list[Remote]:
        prefix = listing_prefix(series, kind)
        periods = (months if kind == "monthly" else days)(max(start, _FIRST_MONTH), end)
        if self.lists:
            query = {"prefix": prefix}
            if start > _FIRST_MONTH:  # skips the files before
                first = month_of(start) if kind == "monthly" else day_of(start)
                # names are sorted, and `…-2024-01` stands just before `…-2024-01.zip`
                query["marker"] = f"{prefix}{series.symbol}-{series.timeframe}-{first}"
            pages = list(_pages(source, query, names_are_known=True))
            self.lists = bool(pages)
            if pages:
                return [remote for page in pages for remote in page.files]
        # no listing: each possible name is asked for, side by side, since most answers are a 404
        ask = self.probe_with.map if self.probe_with else map
        return [r for r in ask(source.head, [source_file(series, p).key for p in periods]) if r]


def with_listed_pairs(spec: S, report: Callable[[str], None]) -> S:
    """Return a specification of the whole exchange with its source's pairs against USDT, and report their number.

    Leveraged tokens, stablecoins and currencies are left out. Other specifications are returned unchanged.

    Raises:
        CpbError: the source has no listing, cannot be reached (code `unreachable`), or no pair is left.
        UsageError: the run is offline.
    """
    if not spec.whole_exchange:
        return spec
    if spec.offline:
        raise UsageError(
            f"offline: coins {EXCHANGE} reads the source's listing; name the coins, or leave offline out",
            code="offline",
        )
    with open_source(spec.scope) as source:
        try:
            listed = [symbol for symbol in Catalogue(source).symbols(spec.market) if symbol.endswith("USDT")]
        except Unreachable as fault:
            raise unreachable(source, fault) from fault
        except SourceFault as fault:
            raise CpbError(f"{source.name} could not list its pairs: {fault}", code="source") from fault
    coins = [symbol for symbol in listed if is_coin_pair(symbol)]
    if not coins:
        raise CpbError(
            f"coins {EXCHANGE}: {source.name} lists no pair of a coin against USDT; name the coins",
            code="source",
            field="coins",
        )
    report(
        f"exchange: {counted(len(coins), 'pair')} ({len(listed) - len(coins):,} leveraged or stable left out)"
    )
    return type(spec)(**spec.model_dump() | {"coins": ",".join(coins)})


def check_coins(spec: ScopeSpec) -> None:
    """Refuse coins of which this machine's candles, offline or in a folder, have none, before anything heavy is loaded.

    What is behind a network the ingestion asks, and it tells of a coin that is missing beside others.

    Raises:
        UsageError: names similar coins.
    """
    scope, known = spec.scope, set[str]()
    if scope.offline:
        place = f"the store in {scope.root}"
        known = {s.symbol for s in stored_series(scope.home, "klines") if s.market == scope.market}
    elif scope.source and Path(scope.source).is_dir() and scope.market not in (OWN, SIM):
        place = scope.source
        with suppress(SourceFault):
            known = FolderSource(Path(scope.source)).symbols(scope.market)
    # An empty folder is another fault than a name; a coin that is there by another unit has a remedy of its own.
    asked = [*scope.symbols]
    if known and {*map(_without_unit, known)}.isdisjoint(map(_without_unit, asked)):
        check_known(asked, known, place)


def unreachable(source: Source, fault: Unreachable) -> CpbError:
    """Return the error of a source that cannot be reached, by whose code a night is tried again (`flows.run.AWAY`)."""
    return CpbError(
        f"{source.name} cannot be reached ({fault}); check the network, or use a mirror with `--source FOLDER|URL`, or "
        "the built-in market simulator with `--source sim`",
        code="unreachable",
        field="source",
    )


def _without_unit(symbol: str) -> str:
    """Return a symbol without the number of coins that its unit has: futures trade 1000SHIB, 1000000MOG, 1MBABYDOGE."""
    return re.sub("^(10{3,}|1M)(?=[A-Z])", "", symbol)


@dataclass(frozen=True)
class _Page:
    """A page of a bucket's listing."""

    files: list[Remote]
    folders: list[str]
    following: str  # the marker of the next page; empty if this is the last

    @property
    def names(self) -> list[str]:
        """The keys and the prefixes of its folders."""
        return [remote.key for remote in self.files] + self.folders


def _pages(source: HttpSource, query: dict[str, str], *, names_are_known: bool) -> Iterator[_Page]:
    """Yield the listing's pages; nothing if the server has no listing.

    Nor if the listing's own host alone cannot be reached, where `names_are_known`, by which files may be requested.

    Raises:
        SourceFault: the listing breaks off, or does not end: the following entries are unknown.
    """
    query, begun = {"delimiter": "/"} | query, False
    seen: set[str] = set()
    for _ in range(MAX_PAGES):
        try:
            body = source.list_page(query)
        except Unreachable:
            if begun or not names_are_known or source.listing == source.base:
                raise
            body = None
        page = _read_page(body) if body is not None else None
        if page is None and not begun:
            return
        marker = query.get("marker", "")
        if page is None or "" < page.following <= marker:
            raise SourceFault(f"the listing breaks off after {marker or query['prefix']}")
        # an entry outside the prefix would be stored as another series' file
        if foreign := next((name for name in page.names if not name.startswith(query["prefix"])), ""):
            raise SourceFault(
                f"the listing of {query['prefix']} holds {foreign[:200]!r}, which is not below it"
            )
        # a server that ignores the marker sends its first page for ever
        if page.following and seen.issuperset(page.names):
            raise SourceFault(f"the listing repeats its entries after {marker or query['prefix']}")
        seen.update(page.names)
        if len(seen) > MAX_KEYS:
            break
        yield page
        if not page.following:
            return
        query, begun = query | {"marker": page.following}, True
    raise SourceFault(
        f"the listing of {query['prefix']} does not end after {len(seen):,} entries; name another source"
    )


def _read_page(body: bytes) -> _Page | None:
    """Return a page of S3's XML, whatever its namespace; None for other content.

    Raises:
        SourceFault: it is XML in an encoding that cannot be read, or defines entities, which a bomb is made of.
    """
    if b"<!ENTITY" in body:
        raise SourceFault("the listing defines XML entities, which are not read; name another source")
    try:
        page = ET.fromstring(body)
    except ET.ParseError:
        return None
    except (LookupError, ValueError) as error:
        raise SourceFault(
            f"the listing is in an encoding that cannot be read ({str(error)[:100]})"
        ) from error
    if not page.tag.endswith("ListBucketResult"):
        return None
    files = []
    for entry in page.findall("{*}Contents"):
        key, etag, size, modified = (
            entry.findtext(f"{{*}}{name}") or "" for name in ("Key", "ETag", "Size", "LastModified")
        )
        files.append(Remote(key, etag.strip('"') or modified, whole_number(size)))
    folders = [p.findtext("{*}Prefix") or "" for p in page.findall("{*}CommonPrefixes")]
    more = (page.findtext("{*}IsTruncated") or "").strip().lower() == "true"
    last = _Page(files, folders, "")
    # NextMarker is optional
    return (
        replace(last, following=page.findtext("{*}NextMarker") or max(last.names, default=""))
        if more
        else last
    )
