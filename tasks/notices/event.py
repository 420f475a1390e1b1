"""One thing that people are told of, the message that several make, and what was told.

An event is told once a day (UTC), or once: a record in the home says which were.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from schemas.handover import Record
from tasks.storage.locks import locked
from tasks.storage.records import find_record, write_record
from tasks.storage.urls import without_credentials

Kind = Literal[
    "run failed", "run partial", "run missing", "service dead", "deployment", "champion drifted",
    "data stale", "file quarantined", "file changed upstream", "champion changed", "test",
]  # fmt: skip
"""The kinds of events, the most urgent first: in this order they stand in a message."""
_FAILURES = ("run failed", "run missing", "service dead")
_INFORMATION = ("champion changed", "test")

MAX_LINES = 20
"""Lines of a message per kind; many services cut longer messages off."""
_MAX_LINE = 400
"""Characters of a line."""

FILE_NAME = "notify.json"
_LOCK = ".notify.lock"
MAX_ONCE = 1000
"""Keys of events told once that are kept; the oldest go first."""


@dataclass(frozen=True)
class Event:
    """Something that happened. `about` stays the same for as long as it lasts or repeats; `text` is one sentence.

    `once`: it is told once, not once a day. `part_of`: what a coarser event of the same kind is about, which need
    not be told after this one.
    """

    kind: Kind
    about: str
    text: str
    part_of: str = ""
    once: bool = False

    @property
    def key(self) -> str:
        """What is told once a day, or once."""
        return f"{self.kind}: {self.about}"

    @property
    def keys(self) -> tuple[str, ...]:
        """What counts as told with it."""
        return (self.key, f"{self.kind}: {self.part_of}") if self.part_of else (self.key,)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Message:
    """What a service is sent. `level`: how urgent it is."""

    title: str
    body: str
    level: Literal["info", "warning", "failure"]


def message(events: Sequence[Event]) -> Message:
    """Return one message for all events, without the credentials of any URL in them."""
    kinds: list[Kind] = [kind for kind in get_args(Kind) if any(e.kind == kind for e in events)]
    parts = [_part(kind, [e.text for e in events if e.kind == kind]) for kind in kinds]
    level: Literal["info", "warning", "failure"] = "warning"
    if any(kind in _FAILURES for kind in kinds):
        level = "failure"
    elif all(kind in _INFORMATION for kind in kinds):
        level = "info"
    return Message(f"cpb on {socket.gethostname()}: {', '.join(kinds)}", "\n\n".join(parts), level)


def _part(kind: Kind, texts: list[str]) -> str:
    lines = [f"- {_line(text)}" for text in texts[:MAX_LINES]]
    if len(texts) > MAX_LINES:
        lines.append(f"- and {len(texts) - MAX_LINES} more; see the run's log")
    return "\n".join([f"{kind.capitalize()}:", *lines])


def _line(text: str) -> str:
    """Return a text on one line, cut after its credentials are removed: half a URL would not be recognised."""
    line = " ".join(without_credentials(text).split())
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 2]} …"


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
