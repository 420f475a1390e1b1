"""What was told today, so that an event is told once a day (UTC): a record in the home."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from schemas.handover import Record
from tasks.notices.event import Event
from tasks.storage.locks import locked
from tasks.storage.records import find_record, write_record

FILE_NAME = "notify.json"
_LOCK = ".notify.lock"


class Told(Record):
    """The keys of the events that were told on one day (UTC, `2025-06-06`)."""

    day: str
    events: tuple[str, ...] = ()


def claim(home: Path, events: Sequence[Event], now: datetime | None = None) -> list[Event]:
    """Return the events that nobody was told of today, and count them as told: two runs never tell the same."""
    with locked(home / _LOCK):
        known = _today(home, now)
        new = {event.key: event for event in events if event.key not in known}
        if new:
            told = dict.fromkeys([*known, *(key for event in new.values() for key in event.keys)])
            _write(home, list(told), now)
    return list(new.values())


def release(home: Path, events: Sequence[Event], now: datetime | None = None) -> None:
    """Count events as not told: no service has accepted them, and the next run tries again."""
    with locked(home / _LOCK):
        keys = {key for event in events for key in event.keys}
        _write(home, [key for key in _today(home, now) if key not in keys], now)


def _today(home: Path, now: datetime | None) -> tuple[str, ...]:
    found = find_record(home / FILE_NAME, Told)
    return found.events if found and found.day == _day(now) else ()


def _write(home: Path, keys: Sequence[str], now: datetime | None) -> None:
    write_record(home / FILE_NAME, Told(day=_day(now), events=tuple(keys)))


def _day(now: datetime | None) -> str:
    return f"{now or datetime.now(UTC):%Y-%m-%d}"
