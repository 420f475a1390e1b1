"""Checks every stored candle against its digest, and fetches damaged months again.

Reading performs only cheap checks (`klines.py`); this module checks the rest. Digests of candles are in the manifest
and in each file's metadata.
"""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import polars as pl

from schemas.errors import CpbError
from schemas.identity import SIM, SeriesId, market_home
from schemas.scope import Scope
from tasks.market.ingest import ingest
from tasks.market.klines import (
    DIGEST,
    damage_of,
    ingest_command,
    is_own,
    own_files,
    part_path,
    part_paths,
    writer_lock,
)
from tasks.market.layout import period_bounds, to_datetime
from tasks.market.manifest import MANIFEST, Manifest, Part, manifest_damage, set_manifest_aside
from tasks.market.writer import SET_ASIDE_PART, set_part_aside
from tasks.storage.checked_files import REPAIRED, VERIFY, Asked, Stored, aside, checked
from tasks.storage.records import set_aside

log = logging.getLogger("cpb")


def candles(asked: Asked) -> Iterator[Stored]:
    """Yield the manifest of a market, its candles, provisional and off-grid candles.

    A repair sets damaged months aside, and fetches them again once all have been checked.

    Raises:
        BusyError: another process is writing in the market's home.
    """
    root = market_home(asked.home, asked.market)
    path = root / MANIFEST
    if not path.exists() or not is_own(root):
        return
    no_access = not os.access(root, os.W_OK)  # then there are no writers
    damaged: list[tuple[SeriesId, Path, str]] = []
    with nullcontext() if no_access else writer_lock(root):
        # On opening SQLite writes beside the file, which a full disk refuses: for a repair, and after a kill, it must.
        killed = path.with_name(f"{path.name}-wal").exists()
        read_only = no_access or not (asked.repair or killed)
        if broken := manifest_damage(path, read_only):
            if asked.repair:
                set_manifest_aside(path, broken)
            reason = f"the database is damaged ({broken}): every file is fetched again without it"
            yield checked(path, reason, outcome="set aside; the next ingest fetches every file again")
            return
        yield checked(path, "")
        with Manifest(path, read_only) as manifest:
            for series in (s for s in manifest.series() if s.market == asked.market):
                for month, reason in _months(asked, manifest, series):
                    if reason:
                        damaged.append((series, month, reason))
                    else:
                        yield checked(month, "")
                yield from _derived(asked.home, series)
    for series, group in groupby(damaged, itemgetter(0)):
        found = list(group)
        if asked.repair:
            _fetch_again(asked.home, series, [month.stem for _, month, _ in found], asked.source)
        # Without repair, ingesting does not help: it compares only a file's size.
        command = ingest_command(series) if asked.repair else VERIFY
        for _, month, reason in found:
            yield checked(month, reason, command, "" if damage_of(month) else REPAIRED)


def record_damage(home: Path, series: SeriesId) -> None:
    """Record the damaged months of a series that a step could not read: the next ingest fetches them again.

    The files stay until then: without them the next step would continue with a hole in its candles. If another process
    is writing in the store, or it cannot be written, nothing is done.
    """
    root = market_home(home, series.market)
    try:
        with writer_lock(root), Manifest(root / MANIFEST) as manifest:
            for path in part_paths(home, series):
                if reason := damage_of(path):
                    manifest.fail_files(series, path.stem, f"stored part is damaged: {reason}")
    except (CpbError, OSError, sqlite3.Error) as error:
        log.info("damage of %s could not be recorded: %s", series, error)


def _months(asked: Asked, manifest: Manifest, series: SeriesId) -> Iterator[tuple[Path, str]]:
    """Yield each month's candles and off-grid candles with their fault; a repair sets damaged files aside.

    A month that an earlier repair set aside, and could not fetch again, is missing until it is fetched.
    """
    parts = manifest.parts(series)
    lost = {
        period[:7]
        for period, file in manifest.files(series).items()
        if file.status == "failed" and file.reason.startswith(SET_ASIDE_PART)
    }
    for month in sorted({*parts, *lost}):
        path = part_path(asked.home, series, month)
        reason = _part_damage(path, parts[month]) if month in parts else damage_of(path)
        if reason and asked.repair:
            set_part_aside(asked.home, manifest, series, month, reason)
        yield path, reason
    for path in _files(asked.home, series, "offgrid"):
        reason = damage_of(path)
        if reason and asked.repair:
            set_aside(path, reason)
            fault = f"off-grid candles were damaged: {reason}"
            manifest.fail_files(series, path.stem, fault, part_is_gone=True)
        yield path, reason


def _part_damage(path: Path, part: Part) -> str:
    """Return the damage of a month; unlike a reader's check, this also compares it with the manifest."""
    if reason := damage_of(path):
        return reason
    own = pl.read_parquet_metadata(path).get(DIGEST)
    return "" if own == part.digest else "its candles differ from those on record"


def _derived(home: Path, series: SeriesId) -> Iterator[Stored]:
    """Yield the files that cpb recreates by itself: the provisional candles."""
    command = f"{ingest_command(series)} --tail"
    for path in _files(home, series, "provisional"):
        mend = aside(path, f"set aside; `{command}` fetches it again")
        yield Stored(path, None, command, mend, partial(damage_of, path))


def _files(home: Path, series: SeriesId, tree: str) -> list[Path]:
    folder = series.folder(home, tree)
    return [path for path in own_files(market_home(home, series.market), tree) if path.parent == folder]


def _fetch_again(home: Path, series: SeriesId, months: list[str], source: str | None) -> None:
    """Ingest the months of a series; if the source cannot be reached they stay missing and are reported as such."""
    if not months:
        return
    scope = Scope(
        symbols=(series.symbol,), timeframes=(series.timeframe,), market=series.market, home=home,
        source=SIM if series.market == SIM else source,
        since=to_datetime(period_bounds(min(months))[0]), as_of=to_datetime(period_bounds(max(months))[1]),
    )  # fmt: skip
    try:
        ingest(scope)
    except CpbError as error:
        log.warning("%s: could not be fetched again: %s", series, error)
