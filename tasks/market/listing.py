"""What a source has: the bucket's XML listing with its pages, or names asked for one by one.

The listing decides what is fetched, never the calendar: files are published late, twice, or not at all.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field

from schemas.universe import MARKETS
from tasks.market.client import FolderSource, HttpSource, Remote, Source
from tasks.market.faults import Unreachable
from tasks.market.layout import (
    SeriesKey,
    SourceFile,
    day_of,
    days,
    file_of,
    month_of,
    months,
    period_bounds,
)

_NS = "{http://s3.amazonaws.com/doc/2006-03-01/}"
_BIRTH = period_bounds("2017-08")[0]  # Binance's first month; only used where names must be guessed


@dataclass
class Catalogue:
    """Asks a source what it has; remembers once that a source has no listing."""

    source: Source
    probe_with: Executor | None = None
    lists: bool | None = field(default=None)

    def files(self, series: SeriesKey, kind: str, start: int, end: int) -> list[SourceFile]:
        """Return the published files of a series that overlap `[start, end)`, oldest first."""
        found = self._listed(series, kind, start, end)
        files = [f for r in found if (f := file_of(series, r.key, r.etag, r.size, r.modified))]
        return sorted(f for f in files if f.bounds[0] < end and f.bounds[1] > start)

    def symbols(self, market: str) -> list[str]:
        """Return every symbol the source lists in a market; empty where it has no listing."""
        prefix = f"data/{MARKETS[market]}/monthly/klines/"
        if isinstance(self.source, FolderSource):
            return self.source.folders(prefix)
        names: list[str] = []
        for page in _pages(self.source, prefix, "", ""):
            found = (p.findtext(f"{_NS}Prefix") or "" for p in page.iter(f"{_NS}CommonPrefixes"))
            names += [name.removeprefix(prefix).strip("/") for name in found]
        return names

    def _listed(self, series: SeriesKey, kind: str, start: int, end: int) -> list[Remote]:
        prefix = series.prefix(kind)
        if isinstance(self.source, FolderSource):
            return list(self.source.files(prefix))
        name = month_of(start) if kind == "monthly" else day_of(start)
        marker = f"{prefix}{series.symbol}-{series.interval}-{name}" if start > _BIRTH else ""
        last = f"{prefix}{series.symbol}-{series.interval}-{day_of(end)}"
        if self.lists is not False:
            pages = self._ask(prefix, marker, last)
            self.lists = bool(pages)
            if pages:
                return [r for page in pages for r in _contents(page)]
        return self._probe(series, kind, start, end)

    def _ask(self, prefix: str, marker: str, last: str) -> list[ET.Element]:
        """Return the listing's pages; a bucket host that is blocked does not mean that the files are."""
        assert isinstance(self.source, HttpSource)
        try:
            return list(_pages(self.source, prefix, marker, last))
        except Unreachable:
            if self.source.listing == self.source.base:
                raise
            return []

    def _probe(self, series: SeriesKey, kind: str, start: int, end: int) -> list[Remote]:
        """Ask for every name the files could have."""
        assert isinstance(self.source, HttpSource)
        periods = (months if kind == "monthly" else days)(max(start, _BIRTH), end)
        keys = [series.file(period).key for period in periods]
        ask = self.probe_with.map if self.probe_with else map
        return [remote for remote in ask(self.source.head, keys) if remote]


def _pages(source: HttpSource, prefix: str, marker: str, last: str) -> Iterator[ET.Element]:
    """Yield the listing's pages up to the key `last`; nothing at all if the server has no listing."""
    while True:
        query = {"delimiter": "/", "prefix": prefix} | ({"marker": marker} if marker else {})
        body = source.list_page(query)
        if body is None or not body.lstrip().startswith(b"<?xml") or b"ListBucketResult" not in body:
            return
        try:
            page = ET.fromstring(body)
        except ET.ParseError:
            return
        yield page
        keys = [r.key for r in _contents(page)]
        following = page.findtext(f"{_NS}NextMarker") or (keys[-1] if keys else "")
        more = page.findtext(f"{_NS}IsTruncated") == "true" and following > marker
        if not more or (last and following > last):
            return
        marker = following


def _contents(page: ET.Element) -> list[Remote]:
    rows = []
    for entry in page.iter(f"{_NS}Contents"):
        size = int(entry.findtext(f"{_NS}Size") or -1)
        etag = (entry.findtext(f"{_NS}ETag") or "").strip('"')
        rows.append(
            Remote(entry.findtext(f"{_NS}Key") or "", etag, size, entry.findtext(f"{_NS}LastModified") or "")
        )
    return rows
