"""What was told, so that an event is told once a day (UTC), or once: a record in the home."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from schemas.handover import Record
from tasks.notices.event import Event
from tasks.storage.locks import locked
from tasks.storage.records import find_record, write_record

FILE_NAME = "notify.json"
_LOCK = ".notify.lock"


MAX_ONCE = 1000
"""Keys of events told once that are kept; the oldest go first."""


class Told(Record):
    """The keys of the events that were told on one day (UTC, `2025-06-06`), and of those that are told only once."""

    day: str
    events: tuple[str, ...] = ()
    once: tuple[str, ...] = ()


def claim(home: Path, events: Sequence[Event], now: datetime | None = None) -> list[Event]:
    """Return the events that nobody was told of, and count them as told: two runs never tell the same."""
    with locked(home / _LOCK):
        known = _known(home, now)
        told = {*known.events, *known.once}
        new = {event.key: event for event in events if event.key not in told}
        if new:
            today, once = (
                [k for e in new.values() if e.once == one for k in e.keys] for one in (False, True)
            )
            _write(home, known, (*known.events, *today), (*known.once, *once))
    return list(new.values())


def release(home: Path, events: Sequence[Event], now: datetime | None = None) -> None:
    """Count events as not told: no service has accepted them, and the next run tries again."""
    with locked(home / _LOCK):
        keys, known = {key for event in events for key in event.keys}, _known(home, now)
        _write(home, known, *([k for k in told if k not in keys] for told in (known.events, known.once)))


def _known(home: Path, now: datetime | None) -> Told:
    found, day = find_record(home / FILE_NAME, Told), f"{now or datetime.now(UTC):%Y-%m-%d}"
    if found is None:
        return Told(day=day)
    return found if found.day == day else Told(day=day, once=found.once)


def _write(home: Path, known: Told, events: Sequence[str], once: Sequence[str]) -> None:
    kept = tuple(dict.fromkeys(once))[-MAX_ONCE:]
    write_record(home / FILE_NAME, Told(day=known.day, events=tuple(dict.fromkeys(events)), once=kept))
