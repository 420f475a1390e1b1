"""Checks stored features against their records. They are derived: what is damaged is deleted and computed again."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from schemas.errors import CpbError, DamagedError
from schemas.handover import Damage, SeriesRecord
from schemas.identity import SPOT, stored_series
from tasks.market.own import TREES
from tasks.signals.store import write_features
from tasks.storage.damage import REPAIRED, VERIFY, Seen, damage_at, unseen
from tasks.storage.digests import file_digest
from tasks.storage.records import parse_record

log = logging.getLogger("cpb")

_REMOVED = "removed; the next run computes it anew"


def verify(home: Path, market: str = SPOT, *, repair: bool = False, seen: Seen = unseen) -> Iterator[Damage]:
    """Yield each damaged feature file of a market, and each damaged record of one.

    A feature file without a record is no damage: a run was stopped between the two, and the next one writes both.

    Args:
        repair: delete a damaged file and its record, and compute it again where its record says from which candles.
        seen: called with each file that is checked.
    """
    for series in stored_series(home, "features"):
        if series.market == market:
            for path, reason, record in _damaged(home, series.folder(home, "features"), seen):
                outcome = _repair(home, path, record) if repair else ""
                yield damage_at(home, path, reason, VERIFY, repair, outcome=outcome)


def _repair(home: Path, path: Path, record: SeriesRecord | None) -> str:
    """Delete a damaged file with its record, compute it again if possible, and return what was done."""
    path.with_suffix(".parquet").unlink(missing_ok=True)
    path.with_suffix(".json").unlink(missing_ok=True)
    if record is None:
        return _REMOVED
    first, last = (datetime.fromtimestamp(us / 1e6, UTC) for us in (record.first_us, record.last_us))
    end = last + timedelta(seconds=record.series.seconds)
    try:
        again = write_features(home, record.series, since=first, as_of=end)
    except CpbError as error:  # its candles are damaged or gone, which their own check names
        log.info("%s cannot be computed now: %s", record.path, error)
        return _REMOVED
    return REPAIRED if again.path == record.path else _REMOVED  # other candles or other code since then


def _damaged(home: Path, folder: Path, seen: Seen) -> Iterator[tuple[Path, str, SeriesRecord | None]]:
    """Yield each damaged file of a folder, the reason, and its record where that can be read."""
    for record_path in sorted(folder.glob("*.json")):
        path = record_path.with_suffix(".parquet")
        if not TREES["features"].fullmatch(path.name):
            continue
        seen(record_path)
        try:
            record = parse_record(record_path, SeriesRecord, of=path.relative_to(home).as_posix())
        except FileNotFoundError:  # removed by a run that has newer features
            continue
        except DamagedError as error:
            yield record_path, f"the record is not what was written: {error}", None
            continue
        seen(path)
        if reason := _fault(path, record):
            yield path, reason, record


def _fault(path: Path, record: SeriesRecord) -> str:
    try:
        return "" if file_digest(path) == record.file_digest else "its sha256 is not the recorded one"
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
