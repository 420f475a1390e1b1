"""Events for notifications, the message composed of several events, and the record of sent events.

An event is sent once a day (UTC), or only once: a record in the home lists the sent events.
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
"""The kinds of events, most urgent first, which is their order in a message."""
_FAILURES = ("run failed", "run missing", "service dead")
_INFORMATION = ("champion changed", "test")

MAX_LINES = 20
"""Maximum number of lines per kind in a message; many services truncate longer messages."""
_MAX_LINE = 400
"""Maximum number of characters of a line."""

FILE_NAME = "notify.json"
_LOCK = ".notify.lock"
MAX_ONCE = 1000
"""Maximum number of stored keys of events that are sent only once; the oldest are removed first."""


@dataclass(frozen=True)
class Event:
    """An event. `about` stays the same while it lasts or repeats; `text` is a sentence.

    `once`: sent only once instead of once a day. `part_of`: `about` of a coarser event of the same kind, which need
    not be sent after this event.
    """

    kind: Kind
    about: str
    text: str
    part_of: str = ""
    once: bool = False

    @property
    def key(self) -> str:
        """The key by which events count as the same."""
        return f"{self.kind}: {self.about}"

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that count as sent with this event."""
        return (self.key, f"{self.kind}: {self.part_of}") if self.part_of else (self.key,)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Message:
    """A message to a service. `level`: its urgency."""

    title: str
    body: str
    level: Literal["info", "warning", "failure"]


def message(events: Sequence[Event]) -> Message:
    """Return a message for all events, without the credentials of any URL in them."""
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
    """Return a text on one line, truncated after credentials are removed: they are not recognised in a partial URL."""
    line = " ".join(without_credentials(text).split())
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 2]} …"


class Told(Record):
    """The keys of the events sent on a day (UTC, `2025-06-06`), and of events that are sent only once."""

    day: str
    events: tuple[str, ...] = ()
    once: tuple[str, ...] = ()


def claim(home: Path, events: Sequence[Event], now: datetime | None = None) -> list[Event]:
    """Return the unsent events and record them as sent, so that two runs never send the same event."""
    with locked(home / _LOCK):
        known = _known(home, now)
        sent = {*known.events, *known.once}
        new = {event.key: event for event in events if event.key not in sent}
        if new:
            today, once = (
                [k for e in new.values() if e.once == one for k in e.keys] for one in (False, True)
            )
            _write(home, known, (*known.events, *today), (*known.once, *once))
    return list(new.values())


def release(home: Path, events: Sequence[Event], now: datetime | None = None) -> None:
    """Record events as unsent: no service has accepted them, and the next run tries again."""
    with locked(home / _LOCK):
        keys, known = {key for event in events for key in event.keys}, _known(home, now)
        _write(home, known, *([k for k in sent if k not in keys] for sent in (known.events, known.once)))


def _known(home: Path, now: datetime | None) -> Told:
    found, day = find_record(home / FILE_NAME, Told), f"{now or datetime.now(UTC):%Y-%m-%d}"
    if found is None:
        return Told(day=day)
    return found if found.day == day else Told(day=day, once=found.once)


def _write(home: Path, known: Told, events: Sequence[str], once: Sequence[str]) -> None:
    kept = tuple(dict.fromkeys(once))[-MAX_ONCE:]
    write_record(home / FILE_NAME, Told(day=known.day, events=tuple(dict.fromkeys(events)), once=kept))
