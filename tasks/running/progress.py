"""How far the work is, told by steps and heard by whoever shows it: bars on a terminal, lines in a log.

Like logging: a step tells without knowing who listens, and nobody need. The listener stands in a context variable, so
that calls which `tasks.running.parallel.run_each` starts find the one of the flow that they work for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Progress:
    """How far one piece of work is.

    step: its name, as in `ingest` or `train gru`; two reports with the same one replace each other.
    done, total: in units, a part of one counts; total 0: not known yet. `done == total` ends it.
    unit: a noun in the plural, as in `files`.
    facts: what else is known, the most important first, as in `loss 2.310 / 2.402`.
    epoch, epoch_line: of a training, the epochs done and a line about the last one, for where no bar is drawn.
    """

    step: str
    done: float
    total: float
    unit: str
    facts: tuple[str, ...] = ()
    epoch: int = 0
    epoch_line: str = ""


class Pace:
    """How long a piece of work still takes, at its pace since the first report. Times in seconds on any one clock."""

    def __init__(self) -> None:
        self._first = self._latest = (0.0, 0.0)  # done, time
        self._total = -1.0

    def take(self, done: float, total: float, now: float) -> None:
        """Take a report in; where the total has changed, or the work begins anew, so does the pace."""
        if total != self._total or (done < self._latest[0] and done <= self._first[0]):
            self._first, self._total = (done, now), total
        self._latest = (done, now)

    def taken(self, now: float) -> float:
        """Return the seconds since the first report."""
        return now - self._first[1]

    def left(self, now: float) -> float | None:
        """Return the seconds that are left, None where that is not known."""
        (began, since), (done, at) = self._first, self._latest
        if self._total <= 0 or done <= began or at <= since:
            return None
        return max((at - since) / (done - began) * (self._total - done) - (now - at), 0.0)


class Listener(Protocol):
    """Shows progress; its methods are called from any thread."""

    def progress(self, one: Progress) -> None:
        """Take a report in."""

    def line(self, text: str) -> None:
        """Show a sentence once, as on what device a training runs."""


_listener: ContextVar[Listener | None] = ContextVar("cpb_progress", default=None)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Let `listener` hear what is told in the block and in calls that it starts."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def is_heard() -> bool:
    """Whether anybody listens."""
    return _listener.get() is not None


def tell(
    step: str, done: float, total: float, unit: str, *facts: str, epoch: int = 0, epoch_line: str = ""
) -> None:
    """Report how far a piece of work is; the arguments are those of `Progress`."""
    if listener := _listener.get():
        listener.progress(Progress(step, done, total, unit, facts, epoch, epoch_line))


def tell_line(text: str) -> None:
    """Report a sentence that is to be read whether or not bars are drawn."""
    if listener := _listener.get():
        listener.line(text)


@contextmanager
def telling(step: str, total: float, unit: str) -> Iterator[None]:
    """Report the start of a piece of work, and its end however the block ends."""
    tell(step, 0, total, unit)
    try:
        yield
    finally:
        tell(step, max(total, 1), max(total, 1), unit)
