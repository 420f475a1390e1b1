"""One thing that people are told of, and the message that several of them make."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.storage.urls import without_credentials

Kind = Literal[
    "run failed", "run partial", "run missing", "service dead", "deployment", "champion drifted",
    "data stale", "file quarantined", "file changed upstream", "champion changed", "test",
]  # fmt: skip
"""The kinds of events, the most urgent first: in this order they stand in a message."""

_ORDER: tuple[Kind, ...] = (
    "run failed", "run partial", "run missing", "service dead", "deployment", "champion drifted",
    "data stale", "file quarantined", "file changed upstream", "champion changed", "test",
)  # fmt: skip
_FAILURES = ("run failed", "run missing", "service dead")
_INFORMATION = ("champion changed", "test")

MAX_LINES = 20
"""Lines of a message per kind; many services cut longer messages off."""
_MAX_LINE = 400
"""Characters of a line."""


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
    kinds = [kind for kind in _ORDER if any(e.kind == kind for e in events)]
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
