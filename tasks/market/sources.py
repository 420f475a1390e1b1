"""Sources of candles: Binance Vision, a mirror's URL or folder, a user's tables, or the simulator; and their files.

The files are those of the bucket's paginated XML listing, or of requests for each possible name. The listing decides
which files are fetched, not the calendar: files are published late, twice, or not at all.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path

from schemas.errors import UsageError
from schemas.identity import APART, MARKET_FOLDERS, MONTH, OWN, SIM, SYMBOL, SeriesId
from schemas.scope import Scope, check_url
from schemas.tables import is_table
from tasks.market.client import (
    BINANCE,
    BINANCE_BUCKET,
    BINANCE_REST,
    HttpSource,
    Limits,
    NotFound,
    SourceFault,
    Unreachable,
    whole_number,
)
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
from tasks.market.tables import TableSource
from tasks.storage.files import public_url


@dataclass
class FolderSource:
    """A folder with Binance Vision's layout.

    Links inside the folder are followed only within it: a mirror filled by other users must not make cpb read, and
    quarantine, other files of this machine.
    """

    root: Path
    requests: int = 0
    waits: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name, self._real_root = str(self.root), self.root.resolve()

    def get(self, key: str, max_bytes: int = 0) -> bytes:
        """Return a file's bytes; raises `NotFound` or `SourceFault`."""
        self.requests += 1
        path = self.root / key
        try:
            if not path.resolve(strict=True).is_relative_to(self._real_root):
                raise SourceFault(
                    f"{path} is a link that leads out of the mirror folder, and is not followed"
                )
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotFound(f"{path} does not exist") from error
        except (OSError, RuntimeError) as error:  # RuntimeError: a link loop
            raise SourceFault(
                f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
            ) from error

    def files(self, prefix: str) -> Iterable[Remote]:
        """Yield the files of a folder; modification time and size are used as ETag."""
        self.requests += 1
        folder = self.root / prefix
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.suffix == ".zip" and path.is_file():
                info = path.stat()
                modified = formatdate(info.st_mtime, usegmt=True)
                yield Remote(
                    prefix + path.name, f"{info.st_mtime_ns:x}-{info.st_size}", info.st_size, modified
                )

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders in a folder."""
        folder = self.root / prefix
        return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []


Source = HttpSource | FolderSource | TableSource


def check_source(scope: Scope) -> None:
    """Raise `UsageError` if a scope's source is neither a URL nor a folder or table of this machine."""
    source = scope.source
    if scope.market == OWN and not is_table(source):
        raise UsageError(
            f"market own is read from a table: give the table it came from, as in --source candles.csv "
            f"(now {public_url(source) if source else 'none'})",
            code="source", field="source",
        )  # fmt: skip
    if scope.market in APART or not source or Path(source).is_dir():
        return
    if "://" in source:
        check_url(source)
        return
    raise UsageError(
        f"source {public_url(source)!r} is neither a URL nor a folder or table; give one, or sim, or leave it out",
        code="source", field="source",
    )  # fmt: skip


@contextmanager
def open_source(scope: Scope, limits: Limits | None = None) -> Iterator[Source]:
    """Open Binance Vision, a mirror, a user's tables, or the simulator, as in `scope`; errors as in `check_source`.

    Offline, opens the store itself.
    """
    check_source(scope)
    limits = limits or Limits()
    with ExitStack() as stack:
        source = scope.source or ""
        if scope.offline:
            opened: Source = FolderSource(scope.root)  # nothing is fetched from it
        elif scope.market == SIM:
            from tasks.market import simulator

            url = stack.enter_context(simulator.serve(until=scope.as_of, since=scope.since))
            opened = HttpSource(url, limits=limits, name="the market simulator")
        elif not source:
            opened = HttpSource(
                BINANCE, BINANCE_BUCKET, BINANCE_REST[scope.market], limits=limits, name="Binance Vision"
            )
        elif scope.market == OWN:
            opened = TableSource(Path(source), ",".join(scope.symbols) or "all")
        elif "://" in source:
            opened = HttpSource(source, limits=limits)
        else:
            opened = FolderSource(Path(source))
        if isinstance(opened, HttpSource):
            stack.callback(opened.close)
        yield opened


_FIRST_MONTH = period_bounds("2017-08")[0]  # Binance's
_PAGE = 1000  # keys on a page of a listing, unless fewer are requested


@dataclass
class Catalogue:
    """Queries a source's files; remembers whether the source has a listing."""

    source: Source
    probe_with: Executor | None = None
    lists: bool | None = None

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
            found = self._listed(self.source, series, kind, start, end)
            files = [f for r in found if (f := listed_file(series, r))]
        once = {f.period: f for f in files if f.bounds[0] < end and f.bounds[1] > start}
        return sorted(once.values())

    def symbols(self, market: str) -> list[str]:
        """Return every symbol the source lists in a market; empty if the source has no listing.

        Symbols first listed this month have daily files only.

        Raises:
            SourceFault: the listing is incomplete, or the source cannot be reached.
        """
        names: set[str] = set()
        for kind in ("monthly", "daily"):
            prefix = f"data/{MARKET_FOLDERS[market]}/{kind}/klines/"
            if isinstance(self.source, TableSource):
                names |= set(self.source.tables.symbols)
            elif isinstance(self.source, FolderSource):
                names |= set(self.source.folders(prefix))
            else:
                pages = _pages(self.source, {"prefix": prefix})
                names |= {folder.removeprefix(prefix).strip("/") for page in pages for folder in page.folders}
        return sorted(name for name in names if SYMBOL.fullmatch(name))

    def _listed(
        self, source: HttpSource | FolderSource, series: SeriesId, kind: str, start: int, end: int
    ) -> list[Remote]:
        prefix = listing_prefix(series, kind)
        if isinstance(source, FolderSource):
            return list(source.files(prefix))
        periods = (months if kind == "monthly" else days)(max(start, _FIRST_MONTH), end)
        if self.lists is not False:
            query = {"prefix": prefix}
            name = f"{prefix}{series.symbol}-{series.timeframe}-"
            if start > _FIRST_MONTH:  # skips the files before
                query["marker"] = f"{name}{month_of(start) if kind == 'monthly' else day_of(start)}"
            if (keys := 2 * len(periods) + 1) < _PAGE:  # zips and their CHECKSUMs
                query["max-keys"] = str(keys)
            pages = list(_pages(source, query, last=f"{name}{day_of(end)}"))
            self.lists = bool(pages)
            if pages:
                return [remote for page in pages for remote in page.files]
        ask = self.probe_with.map if self.probe_with else map
        return [r for r in ask(source.head, [source_file(series, p).key for p in periods]) if r]


@dataclass(frozen=True)
class _Page:
    """A page of a bucket's listing."""

    files: list[Remote]
    folders: list[str]
    following: str  # the marker of the next page; empty if this is the last


def _pages(source: HttpSource, query: dict[str, str], last: str = "") -> Iterator[_Page]:
    """Yield the listing's pages up to the key `last`; nothing if the server has no listing.

    Raises:
        SourceFault: the listing breaks off: the following entries are unknown.
    """
    query, begun = {"delimiter": "/"} | query, False
    while True:
        try:
            body = source.list_page(query)
        except Unreachable:
            if begun or source.listing == source.base:
                raise
            body = None  # only the bucket's host is blocked: files may still be requested by name
        page = _read_page(body) if body is not None else None
        if page is None and not begun:
            return
        marker = query.get("marker", "")
        if page is None or "" < page.following <= marker:
            raise SourceFault(f"the listing breaks off after {marker or query['prefix']}")
        yield page
        if not page.following or (last and page.following > last):
            return
        query, begun = query | {"marker": page.following}, True


def _read_page(body: bytes) -> _Page | None:
    """Return a page of S3's XML, whatever its namespace; None for other content."""
    if b"ListBucketResult" not in body:
        return None
    try:
        page = ET.fromstring(body)
    except ET.ParseError:
        return None
    files = [_remote(entry) for entry in page.findall("{*}Contents")]
    folders = [p.findtext("{*}Prefix") or "" for p in page.findall("{*}CommonPrefixes")]
    names = [remote.key for remote in files] + folders  # NextMarker is optional
    following = page.findtext("{*}NextMarker") or max(names, default="")
    more = (page.findtext("{*}IsTruncated") or "").strip().lower() == "true"
    return _Page(files, folders, following if more else "")


def _remote(entry: ET.Element) -> Remote:
    key, etag, size, modified = (
        (entry.findtext(f"{{*}}{n}") or "") for n in ("Key", "ETag", "Size", "LastModified")
    )
    return Remote(key, etag.strip('"'), whole_number(size), modified)
