"""Checks every stored candle against its digest, and fetches damaged months again.

Reading checks what it can afford (`cache.py`, `store.py`); this checks the rest. Digests of candles are in the
manifest and in each file's metadata; a cache file has a CRC of its bytes in its name.
"""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import polars as pl

from schemas.errors import CpbError
from schemas.handover import Damage
from schemas.identity import APART, SIM, SPOT, SeriesId, market_home
from schemas.scope import Scope
from tasks.market import cache
from tasks.market.ingest import ingest
from tasks.market.layout import period_bounds, to_datetime
from tasks.market.manifest import MANIFEST, Manifest, Part, manifest_damage, set_manifest_aside
from tasks.market.own import is_own, own_files
from tasks.market.store import DIGEST, damage_of, ingest_command, part_path, part_paths, writer_lock
from tasks.market.writer import set_part_aside
from tasks.storage.damage import REPAIRED, VERIFY, Seen, damage_at, unseen
from tasks.storage.records import set_aside

log = logging.getLogger("cpb")


def verify(
    home: Path,
    market: str = SPOT,
    *,
    repair: bool = False,
    source: str | None = None,
    seen: Seen = unseen,
) -> Iterator[Damage]:
    """Yield each damaged file of a market: candles, provisional and off-grid ones, cache, manifest.

    Args:
        home: CPB_HOME.
        repair: delete damaged cache files, set damaged months aside and fetch them from `source` again (None:
            Binance Vision; the simulator's come from the simulator). What could not be fetched is not `repaired`.
        source: a URL or a folder, as of every command.
        seen: called with each file that is checked.

    Raises:
        BusyError: another process writes in the market's home.
    """
    root = market_home(home, market)
    if not (root / MANIFEST).exists() or not is_own(root):
        return
    seen(root / MANIFEST)
    found: list[Found] = []
    read_only = not os.access(root, os.W_OK)  # then nothing writes there, and SQLite needs to be told
    with nullcontext() if read_only else writer_lock(root):
        broken = manifest_damage(root / MANIFEST, read_only)
        if broken and repair:
            set_manifest_aside(root / MANIFEST, broken)
        if not broken:
            with Manifest(root / MANIFEST, read_only) as manifest:
                found = _check(home, manifest, market, repair, seen)
    if broken and market in (SPOT, *APART):  # spot's is that of um and cm too, and is named once
        reason = f"it is no sound database ({broken}): every file is fetched again without it"
        outcome = "set aside; the next ingest fetches every file again"
        yield damage_at(home, root / MANIFEST, reason, VERIFY, repair, outcome=outcome)
    for series, group in groupby(found, itemgetter(0)):
        damages = list(group)
        if repair:
            _fetch_again(home, series, [month for _, _, month, _ in damages if month], source)
        for _, damage, month, path in damages:
            if not damage.repaired and repair and month and not damage_of(path):
                damage = damage.model_copy(update={"repaired": True, "outcome": REPAIRED})
            yield damage


def record_damage(home: Path, series: SeriesId) -> None:
    """Put the damaged months of a series, which a step could not read, on record: the next ingest fetches them again.

    The files stay until then: without them the step after this one would go on with a hole in its candles. Where
    another process is writing in the store, or it cannot be written, nothing is done.
    """
    root = market_home(home, series.market)
    try:
        with writer_lock(root), Manifest(root / MANIFEST) as manifest:
            for path in part_paths(home, series):
                if reason := damage_of(path):
                    manifest.fail_files(series, path.stem, f"stored part is damaged: {reason}")
    except (CpbError, OSError, sqlite3.Error) as error:
        log.info("damage of %s is not put on record: %s", series, error)


Found = tuple[SeriesId, Damage, str, Path]
"""The series of a damaged file, what is wrong, the month to fetch again (empty: nothing to fetch), the file."""


def _check(home: Path, manifest: Manifest, market: str, repair: bool, seen: Seen) -> list[Found]:
    found: list[Found] = []
    for series in (s for s in manifest.series() if s.market == market):
        for month, part in manifest.parts(series).items():
            path = part_path(home, series, month)
            seen(path)
            if reason := _part_damage(path, part):
                # Without a repair: an ingest by itself looks at a file's size only.
                command = ingest_command(series) if repair else VERIFY
                found.append((series, damage_at(home, path, reason, command), month, path))
                if repair:
                    set_part_aside(home, manifest, series, month, reason)
        for path in _files(home, series, "offgrid"):
            seen(path)
            if reason := damage_of(path):
                found.append((series, damage_at(home, path, reason, VERIFY), path.stem, path))
                if repair:
                    set_aside(path, reason)
                    manifest.fail_files(
                        series, path.stem, f"off-grid candles were damaged: {reason}", part_is_gone=True
                    )
        found += [(series, damage, "", path) for damage, path in _check_derived(home, series, repair, seen)]
    return found


def _part_damage(path: Path, part: Part) -> str:
    """Return what is wrong with a month; unlike a reader's check, this compares it with the manifest too."""
    if reason := damage_of(path):
        return reason
    own = pl.read_parquet_metadata(path).get(DIGEST)
    return "" if own == part.digest else "its candles are not those on record"


def _check_derived(home: Path, series: SeriesId, repair: bool, seen: Seen) -> Iterator[tuple[Damage, Path]]:
    """Check what cpb makes again by itself: the cache, and the provisional candles."""
    for path in _files(home, series, "cache"):
        seen(path)
        if cache.is_damaged(path):
            if repair:
                path.unlink(missing_ok=True)
            outcome = "removed; the next read of its series makes it anew"
            reason = "its bytes are not those that were written"
            yield damage_at(home, path, reason, VERIFY, repair, outcome=outcome), path
    for path in _files(home, series, "provisional"):
        seen(path)
        if reason := damage_of(path):
            if repair:
                set_aside(path, reason)
            command = f"{ingest_command(series)} --tail"
            outcome = f"set aside; `{command}` fetches it again"
            yield damage_at(home, path, reason, command, repair, outcome=outcome), path


def _files(home: Path, series: SeriesId, tree: str) -> list[Path]:
    folder = series.folder(home, tree)
    return [path for path in own_files(market_home(home, series.market), tree) if path.parent == folder]


def _fetch_again(home: Path, series: SeriesId, months: list[str], source: str | None) -> None:
    """Ingest the months of a series; where the source cannot be reached they stay missing, and are reported so."""
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
