"""Sources of candles: Binance Vision, a mirror's URL or folder, a user's tables, or the simulator; and their files.

The files are those of the bucket's paginated XML listing, or of requests for each possible name. The listing decides
which files are fetched, not the calendar: files are published late, twice, or not at all. A zip is inflated only after
its checksum and its directory have been checked.
"""

import hashlib
import io
import re
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

from cpbmodels.files import read_regular
from schemas.coins import MONTH, SYMBOL
from schemas.errors import UsageError
from schemas.identity import MARKET_FOLDERS, OWN, SIM, SeriesId
from schemas.scope import Scope
from schemas.tables import is_table
from tasks.market import simulator
from tasks.market.client import (
    BINANCE,
    BINANCE_BUCKET,
    BINANCE_REST,
    BadFile,
    HttpSource,
    Limits,
    NotFound,
    SourceFault,
    Unreachable,
    whole_number,
)
from tasks.market.folder import FolderIndex
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

CHECKSUM = ".CHECKSUM"  # suffix of the file with a zip's sha256

_FIRST_MONTH = period_bounds("2017-08")[0]  # Binance's
MAX_PAGES, MAX_KEYS = 200, 200_000
"""Bounds of a listing. Binance's longest, the daily files of one series with their CHECKSUMs, has 7 pages of 1,000."""

MAX_CSV = 64 << 20
MAX_RATIO = 50  # candles deflate about 3 times; a zip bomb a thousand times
_MAX_ROW = 400  # bytes of a candle's line: a cap for intervals whose months exceed MAX_CSV
_SHA = re.compile(r"(?<!\w)[0-9a-fA-F]{64}(?!\w)")
_SMALL = 1 << 20  # bytes that are accepted regardless of the announced size
_TRIES = 3  # of a bad file
_MD5 = re.compile(r"[0-9a-f]{32}")


@dataclass
class FolderSource:
    """A folder with Binance's files; see `tasks.market.folder`.

    Links inside the folder are followed only within it: a mirror filled by other users must not make cpb read, and
    quarantine, other files of this machine.
    """

    root: Path
    requests: int = 0
    notes: list[str] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def __post_init__(self) -> None:
        self.name, self._real_root = str(self.root), self.root.resolve()
        self._index = FolderIndex(self.root, self.notes)
        self._paths: dict[str, Path] = {}  # of listed files, by their keys

    def _count_request(self) -> None:
        with self._lock:  # files are read by several threads
            self.requests += 1

    def get(self, key: str, max_bytes: int = 0) -> bytes:
        """Return a regular file's bytes, at most `max_bytes`; raises `NotFound` or `SourceFault`."""
        self._count_request()
        path = self._path(key)
        try:
            if not path.resolve(strict=True).is_relative_to(self._real_root):
                raise SourceFault(
                    f"{path} is a link that leads out of the mirror folder, and is not followed"
                )
            return read_regular(path, max_bytes or Limits().body)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotFound(f"{path} does not exist") from error
        except (OSError, RuntimeError) as error:  # RuntimeError: a link loop
            reason = getattr(error, "strerror", None) or error
            raise SourceFault(f"{path} cannot be read: {reason}") from error

    def files(self, series: SeriesId, kind: str) -> list[Remote]:
        """Return the `monthly` or `daily` files of a series; modification time and size are used as ETag.

        Raises:
            SourceFault: two files are of one period.
        """
        self._count_request()
        remotes = []
        for period, path in self._index.files(series, kind).items():
            key, info = source_file(series, period).key, path.stat()
            self._paths[key] = path
            remotes.append(Remote(key, f"{info.st_mtime_ns:x}-{info.st_size}", info.st_size))
        return remotes

    def symbols(self, market: str) -> set[str]:
        """Return the symbols of which the folder has files."""
        return self._index.symbols(market)

    def is_unzipped(self, key: str) -> bool:
        """Whether a listed file is a CSV instead of a zip."""
        return self._path(key).suffix == ".csv"

    def _path(self, key: str) -> Path:
        """Return the place of a listed file, or of its CHECKSUM."""
        zipped = key.removesuffix(CHECKSUM)
        path = self._paths.get(zipped, self.root / zipped)
        return path if zipped == key else path.with_name(path.name + CHECKSUM)


Source = HttpSource | FolderSource | TableSource


def check_source(scope: Scope) -> None:
    """Raise `UsageError` if a market of tables has no table as its source; the options check others."""
    if scope.market == OWN and not is_table(scope.source):
        raise UsageError(
            "market own is read from a table: give the table it came from, as in --source candles.csv",
            code="source",
        )


@contextmanager
def open_source(scope: Scope, limits: Limits | None = None) -> Iterator[Source]:
    """Open Binance Vision, a mirror, a user's tables, or the simulator, as in `scope`; errors as in `check_source`.

    Offline, opens the store itself, from which nothing is fetched.
    """
    check_source(scope)
    source, limits = scope.source or "", limits or Limits()
    if scope.offline:
        yield FolderSource(scope.root)
        return
    if scope.market == OWN:
        yield TableSource(
            Path(source), ",".join(scope.symbols) or "all", ",".join(scope.timeframes), scope.reading
        )
        return
    if source and scope.market != SIM and "://" not in source:
        yield FolderSource(Path(source))
        return
    with ExitStack() as stack:
        if scope.market == SIM:
            market = simulator.SimulatedMirror(scope.as_of, scope.since)
            url = stack.enter_context(simulator.serve(market))
            opened = HttpSource(url, limits=limits, name="the market simulator")
        elif source:
            opened = HttpSource(source, limits=limits)
        else:
            hosts = BINANCE, BINANCE_BUCKET, BINANCE_REST[scope.market]
            opened = HttpSource(*hosts, limits=limits, name="Binance Vision")
        stack.callback(opened.close)
        yield opened


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
                pages = _pages(self.source, {"prefix": prefix})
                names |= {folder.removeprefix(prefix).strip("/") for page in pages for folder in page.folders}
        self._symbols[market] = sorted(name for name in names if SYMBOL.fullmatch(name))
        return self._symbols[market]

    def other_units(self, series: SeriesId) -> list[str]:
        """Return the listed symbols that name the same pair by another number of coins, as 1000PEPEUSDT does PEPEUSDT.

        Empty where the source lists nothing or cannot be reached.
        """
        try:
            listed = self.symbols(series.market)
        except SourceFault:
            return []
        return [
            name for name in listed if name != series.symbol and _one_coin(name) == _one_coin(series.symbol)
        ]

    def _listed(self, source: HttpSource, series: SeriesId, kind: str, start: int, end: int) -> list[Remote]:
        prefix = listing_prefix(series, kind)
        periods = (months if kind == "monthly" else days)(max(start, _FIRST_MONTH), end)
        if self.lists:
            query = {"prefix": prefix}
            if start > _FIRST_MONTH:  # skips the files before
                first = month_of(start) if kind == "monthly" else day_of(start)
                query["marker"] = f"{prefix}{series.symbol}-{series.timeframe}-{first}"
            pages = list(_pages(source, query))
            self.lists = bool(pages)
            if pages:
                return [remote for page in pages for remote in page.files]
        ask = self.probe_with.map if self.probe_with else map
        return [r for r in ask(source.head, [source_file(series, p).key for p in periods]) if r]


def _one_coin(symbol: str) -> str:
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


def _pages(source: HttpSource, query: dict[str, str]) -> Iterator[_Page]:
    """Yield the listing's pages; nothing if the server has no listing.

    Raises:
        SourceFault: the listing breaks off, or does not end: the following entries are unknown.
    """
    query, begun = {"delimiter": "/"} | query, False
    seen: set[str] = set()
    for _ in range(MAX_PAGES):
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
        if foreign := next((name for name in page.names if not name.startswith(query["prefix"])), ""):
            raise SourceFault(
                f"the listing of {query['prefix']} holds {foreign[:200]!r}, which is not below it"
            )
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


@dataclass
class Fetched:
    """A downloaded file: its CSV with notes on irregularities of its format, or its fault."""

    file: SourceFile
    csv: bytes = b""
    sha256: str = ""
    verified: bool = True
    payload: bytes = b""
    fault: BadFile | SourceFault | None = None
    notes: list[str] = field(default_factory=list)
    lines: int = 0  # candle lines, counted by `tasks.market.parser.trim`


def fetch(source: Source, file: SourceFile) -> Fetched:
    """Return a file as downloaded, with its CSV, or with its fault.

    A month of a user's table has neither zip nor CHECKSUM. A bad file is fetched again together with its CHECKSUM:
    either may just have been replaced.
    """
    if isinstance(source, TableSource):
        csv = source.csv(file)
        return Fetched(file, csv, hashlib.sha256(csv).hexdigest())
    for _ in range(_TRIES):
        try:
            if isinstance(source, FolderSource) and source.is_unzipped(file.key):
                csv = source.get(file.key, _cap(file))
                return Fetched(file, csv, hashlib.sha256(csv).hexdigest(), verified=False, payload=csv)
            expected = _published_sha(source, file)
            announced = max(_SMALL, 2 * file.size) if file.size >= 0 else _cap(file)
            payload = source.get(file.key, min(announced, _cap(file)))
            return Fetched(file, *open_zip(payload, file, expected), payload)
        except BadFile as error:
            bad = Fetched(file, fault=error)
        except NotFound:
            return Fetched(file, fault=SourceFault("listed, but not found (404)"))
        except SourceFault as error:
            return Fetched(file, fault=error)
    return bad


def open_zip(payload: bytes, file: SourceFile, expected: str | None) -> tuple[bytes, str, bool]:
    """Return `(csv, sha256, verified)` of a zip; `expected` is the published sha256, None without one."""
    if not payload.startswith(b"PK"):
        kind = "HTML error page" if payload.lstrip()[:1] == b"<" else "other bytes" if payload else "empty"
        raise BadFile(f"not a zip ({kind})", payload)
    sha = hashlib.sha256(payload).hexdigest()
    if expected is not None and sha != expected:
        raise BadFile(f"checksum mismatch (expected {expected[:4]}…, got {sha[:4]}…)", payload)
    if file.size >= 0 and len(payload) != file.size:
        raise BadFile(f"wrong length ({len(payload)} bytes, the listing states {file.size})", payload)
    md5 = hashlib.md5(payload, usedforsecurity=False).hexdigest() if expected is None else ""
    if md5 and _MD5.fullmatch(file.etag) and md5 != file.etag:
        raise BadFile("no CHECKSUM published and the ETag is of other bytes", payload)
    try:
        return _inflate(payload, file), sha, expected is not None
    except (BadFile, MemoryError):
        raise
    except Exception as error:  # zipfile raises many types for damage, including struct.error and OSError
        raise BadFile(f"damaged zip ({str(error)[:120] or type(error).__name__})", payload) from error


def _inflate(payload: bytes, file: SourceFile) -> bytes:
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        members = archive.infolist()
        names = [member.filename for member in members]
        if names != [file.member]:
            shown = ", ".join(map(repr, names[:3])) or "nothing"
            raise BadFile(f"must hold only {file.member!r}, holds {shown}", payload)
        size, packed, cap = members[0].file_size, max(1, members[0].compress_size), _cap(file)
        if size > cap:
            raise BadFile(f"would inflate to {size >> 20} MB, more than {cap >> 20} MB", payload)
        if size > _SMALL and size / packed > MAX_RATIO:
            raise BadFile(f"would inflate {size // packed} times, more than {MAX_RATIO} times", payload)
        return archive.read(members[0])  # reads at most the declared size, then checks the CRC


def _cap(file: SourceFile) -> int:
    """Return the maximum size of a file's CSV in bytes."""
    return max(MAX_CSV, file.rows * _MAX_ROW)


def _published_sha(source: HttpSource | FolderSource, file: SourceFile) -> str | None:
    """Return the sha256 of the CHECKSUM file, None if none is published.

    Of several lines the line with the file's name is used; a lone hash is taken as the file's.
    """
    try:
        body = source.get(f"{file.key}{CHECKSUM}", _SMALL)
    except NotFound:
        return None
    lines = body.decode("ascii", "replace").splitlines()
    name = file.key.rsplit("/", 1)[-1]
    hashes = {h.lower() for line in [t for t in lines if name in t] or lines for h in _SHA.findall(line)}
    if len(hashes) != 1:
        raise BadFile("the CHECKSUM file holds no sha256", body)
    return str(hashes.pop())
