"""Checks stored features against their records. They are derived: what is damaged is deleted and computed again."""

from collections.abc import Iterator
from pathlib import Path

from schemas.errors import DamagedError
from schemas.handover import Damage, SeriesRecord
from schemas.identity import SPOT, stored_series
from tasks.market.own import TREES
from tasks.storage.damage import VERIFY, Seen, damage_at, unseen
from tasks.storage.digests import file_digest
from tasks.storage.records import read_record


def verify(home: Path, market: str = SPOT, *, repair: bool = False, seen: Seen = unseen) -> Iterator[Damage]:
    """Yield each damaged feature file of a market, and each damaged record of one.

    A feature file without a record is no damage: a run was stopped between the two, and the next one writes both.

    Args:
        repair: delete a damaged file and its record; the next run that needs these features computes them again.
        seen: called with each file that is checked.
    """
    for series in stored_series(home, "features"):
        if series.market == market:
            for path, reason in _damaged(series.folder(home, "features"), seen):
                if repair:
                    path.with_suffix(".parquet").unlink(missing_ok=True)
                    path.with_suffix(".json").unlink(missing_ok=True)
                yield damage_at(home, path, reason, VERIFY, repair)


def _damaged(folder: Path, seen: Seen) -> Iterator[tuple[Path, str]]:
    for record_path in sorted(folder.glob("*.json")):
        path = record_path.with_suffix(".parquet")
        if not TREES["features"].fullmatch(path.name):
            continue
        seen(record_path)
        try:
            record = read_record(record_path, SeriesRecord)
        except FileNotFoundError:  # removed by a run that has newer features
            continue
        except DamagedError:
            yield record_path, "the record is not what was written"
            continue
        seen(path)
        if reason := _fault(path, record):
            yield path, reason


def _fault(path: Path, record: SeriesRecord) -> str:
    try:
        return "" if file_digest(path) == record.file_digest else "its sha256 is not the recorded one"
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
