"""Binance's own files in a folder, found by their names, zipped or not, wherever they lie below it.

`BTCUSDT-1h-2024-01.zip` names its series and its month, but not its market: that is told by Binance's own layout
(`spot/monthly/klines/…`, `futures/um/…`), else it is the market that the command asks for. Of two files for one series
and month none is chosen.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from cpbmodels.data import TABLE_SUFFIXES
from cpbmodels.files import read_regular
from schemas.coins import SYMBOL
from schemas.errors import UsageError
from schemas.file_names import BINANCE_NAME
from schemas.identity import MARKET_FOLDERS, SIM, SPOT, SeriesId, market_option
from tasks.market.client import Limits, NotFound, SourceFault
from tasks.market.layout import CHECKSUM, Remote, source_file

_LAYOUT = re.compile(r"(?:^|/)(spot|futures/um|futures/cm)/(?:monthly|daily)/klines(?:/|$)")
_MARKETS = {folder: market for market, folder in MARKET_FOLDERS.items() if market != SIM}
_OTHER_DATA = {
    "BVOLIndex",
    "EOHSummary",
    "aggTrades",
    "bookDepth",
    "bookTicker",
    "fundingRate",
    "indexPriceKlines",
    "liquidationSnapshot",
    "markPriceKlines",
    "metrics",
    "premiumIndexKlines",
    "trades",
}
"""Binance's folders of other data; files of prices at which nothing was traded are named as candles are."""
_MAX_ENTRIES = 2_000_000  # outside Binance's layout, of which only the series' own folders are read

Found = dict[tuple[str, str, str], dict[str, list[Path]]]
"""Files by symbol, interval and kind (`monthly`, `daily`), of each period."""


@dataclass
class FolderIndex:
    """The files in a folder by series and kind (`monthly`, `daily`); it is searched when it is first asked.

    notes: links that are not followed, in a sentence each.
    """

    root: Path
    notes: list[str] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock, repr=False)
    _searched: tuple[Found, list[Path]] | None = field(default=None, repr=False)

    def files(self, series: SeriesId, kind: str) -> dict[str, Path]:
        """Return the file of each period of a series in its market.

        Raises:
            SourceFault: two files are of one period, or of one the market is not certain; the sentence names them.
        """
        found, layouts = self._search()
        periods = {
            period: [*paths]
            for period, paths in found.get((series.symbol, series.timeframe, kind), {}).items()
        }
        # only the series' own folder is read: a mirror of the exchange holds millions of files
        for layout in layouts:
            for path in _entries(layout / series.symbol / series.timeframe):
                name = BINANCE_NAME.fullmatch(path.name)
                if name and _key_of(name) == (series.symbol, series.timeframe, kind) and _is_published(path):
                    periods.setdefault(name["period"], []).append(path)
        chosen = {period: self._chosen(series, period, paths) for period, paths in periods.items()}
        return {period: path for period, path in chosen.items() if path}

    def symbols(self, market: str) -> set[str]:
        """Return the symbols of a market, with those of files whose market is not told."""
        found, layouts = self._search()
        names = {
            path.name
            for layout in layouts
            if self._market_of_layout(layout) == market
            for path in _entries(layout)
        }
        names |= {
            symbol
            for (symbol, _, _), periods in found.items()
            if any(
                self._market_of_layout(path) in ("", market) for paths in periods.values() for path in paths
            )
        }
        return {name for name in names if SYMBOL.fullmatch(name)}

    def _chosen(self, series: SeriesId, period: str, paths: list[Path]) -> Path | None:
        markets = {path: self._market_of_layout(path) for path in paths}
        certain = [path for path in paths if markets[path] == series.market]
        uncertain = [path for path in paths if not markets[path]]
        # a file and a link to it are one file
        if len(certain + uncertain) > 1 and len({path.resolve() for path in certain + uncertain}) > 1:
            remedy = _narrower_source(*(certain + uncertain)[:2])
            raise SourceFault(
                f"{_names(certain + uncertain)} are both {series} {period}: keep one of the two"
                f"{remedy and ', or '}{remedy}"
            )
        if uncertain and not certain:
            (path, *_), others = uncertain, [path for path in paths if markets[path]]
            if others:
                raise SourceFault(
                    f"{_names([path, *others])} are of the same series and month, and the market of the first is not "
                    f"certain: {_narrower_source(path, others[0]) or 'keep one of the two'}"
                )
            names = {part.lower() for part in (self.root.name, *path.relative_to(self.root).parts[:-1])}
            contradicting = names & ({"futures", "um", "cm"} if series.market == SPOT else {"spot"})
            if contradicting:
                raise SourceFault(
                    f"{path} lies in a folder {min(contradicting)!r}, and {series} is of the market {series.market}: "
                    + (
                        "add --market um or cm"
                        if series.market == SPOT
                        else f"leave{market_option(series.market)} out"
                    )
                )
        return next(iter(certain + uncertain), None)

    def _market_of_layout(self, path: Path) -> str:
        """Return the market that Binance's layout tells of a file, "" without it."""
        layout = _LAYOUT.search(path.relative_to(self.root).as_posix())
        return _MARKETS[layout[1]] if layout else ""

    def _search(self) -> tuple[Found, list[Path]]:
        """Return the files outside Binance's layout, and the layout's folders `klines`."""
        with self._lock:
            # several threads list series at once, and the tree is walked once
            if self._searched is None:
                found: Found = defaultdict(lambda: defaultdict(list))
                layouts: list[Path] = []
                for path in self._walk():
                    if name := BINANCE_NAME.fullmatch(path.name):
                        found[_key_of(name)][name["period"]].append(path)
                    else:
                        layouts.append(path)
                self._searched = found, layouts
            return self._searched

    def _walk(self) -> Iterator[Path]:
        """Yield the files with Binance's names and the layout's folders `klines`, which are not looked into.

        Each folder is read once, and none outside the root.

        Raises:
            SourceFault: a folder cannot be read, or too much lies in it.
            UsageError: something lies in it, and none of these.
        """
        if not self.root.is_dir():
            return
        # `seen` ends loops of links; outside `top` nothing is read, whoever made the link
        top, entries, first, is_empty = self.root.resolve(), 0, "", True
        table: Path | None = None
        waiting, seen = [self.root], set()
        while waiting:
            folder = waiting.pop()
            real = folder.resolve()
            if not real.is_relative_to(top):
                self.notes.append(
                    f"{folder} is a link that leads out of the mirror folder, and is not followed"
                )
                continue
            if real in seen:
                continue
            seen.add(real)
            if _LAYOUT.search(folder.relative_to(self.root).as_posix()):
                is_empty = False
                yield folder
                continue
            links: list[Path] = []
            folders: list[Path] = []
            try:
                # sorted: messages and the order of links must not depend on the file system
                for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                    entries, first = entries + 1, first or entry.name
                    path = folder / entry.name
                    if table is None and entry.name.lower().endswith(TABLE_SUFFIXES):
                        table = path
                    if BINANCE_NAME.fullmatch(entry.name) and _is_published(path):
                        is_empty = False
                        yield path
                    elif entry.name not in _OTHER_DATA and entry.is_dir():
                        (links if entry.is_symlink() else folders).append(folder / entry.name)
            except OSError as error:
                raise SourceFault(f"{folder} cannot be read: {error.strerror}") from error
            if entries > _MAX_ENTRIES:
                raise SourceFault(
                    f"{self.root} holds more than {_MAX_ENTRIES:,} files: name the folder in which Binance's lie"
                )
            waiting[:0] = links  # looked into last, so that a file's own path is found before a link's
            waiting += reversed(folders)
        if is_empty and entries:
            below = (
                f"; for {table.name}, which lies below, give {table.parent} as the source" if table else ""
            )
            raise UsageError(  # of the whole source, not of each series
                f"source: {self.root} holds none of Binance's files, as BTCUSDT-1h-2024-01.zip or .csv, and no table "
                f"of a kind that is read ({', '.join(TABLE_SUFFIXES)}): in it lies {first!r}{below}",
                code="source",
            )


@dataclass
class FolderSource:
    """A folder with Binance's files, as a source.

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
            # a local file has no ETag: modification time and size change when it is replaced
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


def _entries(folder: Path) -> list[Path]:
    """Return what lies in a folder, nothing if there is none; raises `SourceFault`."""
    try:
        return [*folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise SourceFault(f"{folder} cannot be read: {error.strerror}") from error


def _key_of(name: re.Match[str]) -> tuple[str, str, str]:
    return name["symbol"], name["interval"], "daily" if len(name["period"]) == 10 else "monthly"


def _is_published(path: Path) -> bool:
    """Whether there is a file, or what should be one: a pipe is named by its reader, or its month seems unpublished."""
    return path.exists() and not path.is_dir()


def _narrower_source(first: Path, second: Path) -> str:
    """Return how to read one of two files alone, "" where they lie in one folder."""
    for one, other in ((first, second), (second, first)):
        for folder in reversed(one.parents):
            if not other.is_relative_to(folder):
                return f"give the folder of one as the source, as {folder}"
    return ""


def _names(paths: list[Path]) -> str:
    return " and ".join(map(str, paths[:2]))
