"""The progress of work: reported by steps, displayed by a listener (bars on a terminal, lines in a log).

As in logging, a step reports without knowing the listener, which is optional. The listener is in a context variable, so
that calls started by `run_each` find the listener of their own flow.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

NOT_ENDED = 1e-6
"""The share of a piece of work that is left open where all its units are done but it has not ended."""


@dataclass(frozen=True)
class Progress:
    """The progress of one piece of work.

    step: its name, such as `ingest` or `train gru`; reports with the same name replace each other.
    done, total: in units, fractions allowed; total 0: not known yet. `done == total` ends it. Up to `NOT_ENDED` of the
        total below it all units are displayed as done.
    unit: a plural noun, such as `files`.
    facts: further facts, most important first, such as `loss 2.310 / 2.402`.
    """

    step: str
    done: float
    total: float
    unit: str
    facts: tuple[str, ...] = ()


PrintLine = Callable[[str], None]
"""Displays or prints a sentence."""


class Listener(Protocol):
    """Displays progress; its methods are called from any thread."""

    def progress(self, report: Progress) -> None:
        """Receive a report."""

    def line(self, text: str) -> None:
        """Display a sentence once, for example the device of a training."""


_listener: ContextVar[Listener | None] = ContextVar("cpb_progress", default=None)


@contextmanager
def reports_to(listener: Listener) -> Iterator[None]:
    """Send reports of the block, and of calls that it starts, to `listener`."""
    # A context variable, not a global: two flows in one process, as in a Prefect worker, have a display each.
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def has_listener() -> bool:
    """Whether there is a listener."""
    return _listener.get() is not None


def report_progress(step: str, done: float, total: float, unit: str, *facts: str) -> None:
    """Report the progress of a piece of work; the arguments are those of `Progress`."""
    if listener := _listener.get():
        listener.progress(Progress(step, done, total, unit, facts))


def report_line(text: str) -> None:
    """Report a sentence that is displayed whether or not bars are drawn."""
    if listener := _listener.get():
        listener.line(text)


@contextmanager
def reporting(step: str, total: float, unit: str) -> Iterator[None]:
    """Report the start of a piece of work, and its end even if the block raises."""
    report_progress(step, 0, total, unit)
    try:
        yield
    finally:
        # Also after an error: a bar that never ends would stay on the terminal. At least 1, as a total of 0 means
        # unknown.
        report_progress(step, max(total, 1), max(total, 1), unit)
