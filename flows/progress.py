"""Progress for people, from the first second: bars where stderr is a terminal, else a line every 30 seconds.

What is shown is what steps tell (`tasks.running.progress`). A bar says how far, how long still, and what else there
is room for: columns leave a narrow terminal from the least important on. Finished bars disappear; what came of the
work is a line that stays.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from flows.console import say
from schemas.errors import UsageError
from tasks.running.progress import Pace, Progress, heard_by, is_heard, tell

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY_S = 30.0
EPOCHS_VARIABLE = "CPB_LOG_EPOCHS"
"""Where no bar is drawn, a training prints a line every so many epochs; 0: none. Default 20."""

_BAR, _GAP = (8, 24), 2
"""Columns of a bar, at least and at most, and between two cells."""


@contextmanager
def shown_progress(command: str, first: str = "loading libraries") -> Iterator[None]:
    """Show what is told in the block; within another such block, that one goes on showing.

    Args:
        command, first: what is at work, and on what, for the time before the first step tells anything.
    """
    if is_heard():
        yield
        return
    with _display() as display, heard_by(display):
        tell(command, 0, 0, "", first)
        yield


def _display() -> "Bars | Lines":
    if sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True)
        if not console.is_dumb_terminal:
            return Bars(console)
    return Lines(say, LINE_EVERY_S, _epochs_per_line())


def _epochs_per_line() -> int:
    text = os.environ.get(EPOCHS_VARIABLE, "20")
    if not text.isdecimal():
        raise UsageError(
            f"{EPOCHS_VARIABLE}={text!r} is no number of epochs: give a whole number, 0 for no lines",
            code="log-epochs", field=EPOCHS_VARIABLE,
        )  # fmt: skip
    return int(text)


class Work:
    """One piece of work, with its pace."""

    def __init__(self, first: Progress, now: float) -> None:
        self._pace = Pace()
        self.take(first, now)

    def take(self, one: Progress, now: float) -> None:
        """Take a report in."""
        self.latest = one
        self._pace.take(one.done, one.total, now)

    def count(self) -> str:
        """Return how much is done, as in `12/50 epochs`."""
        one = self.latest
        if not one.unit:
            return ""
        return (
            f"{int(one.done):,}/{int(one.total):,} {one.unit}"
            if one.total
            else f"{int(one.done):,} {one.unit}"
        )

    def left(self, now: float) -> str:
        """Return the time that is left, as in `4:05 left`; else the time it has taken, as in `0:07`."""
        left = self._pace.left(now)
        return clock(self._pace.taken(now)) if left is None else f"{clock(left)} left"


def clock(seconds: float) -> str:
    """Return a duration as `0:07`, `12:34` or `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Display:
    """Keeps the work that is under way, in the order in which it began; reports may come from any thread."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.clock_s, self.works = clock_s, dict[str, Work]()
        self._lock = threading.Lock()

    def progress(self, one: Progress) -> None:
        """Take a report in; work that is done leaves, and so does the row of a command that has begun to work."""
        now = self.clock_s()
        with self._lock:
            if one.total and one.done >= one.total:
                self.works.pop(one.step, None)
                return
            if one.unit:
                self.works = {name: work for name, work in self.works.items() if work.latest.unit}
            if one.step in self.works:
                self.works[one.step].take(one, now)
            else:
                self.works[one.step] = Work(one, now)
        self.on_report(one)

    def on_report(self, one: Progress) -> None:
        """Do what a report makes necessary at once."""

    def line(self, text: str) -> None:
        """Show a sentence."""
        say(text)

    def under_way(self) -> list[Work]:
        """Return the work that has not ended."""
        with self._lock:
            return list(self.works.values())


class Bars(Display):
    """Draws a row for each piece of work, four times a second, on a terminal."""

    def __init__(self, console: "Console") -> None:
        from rich.live import Live

        super().__init__()
        self._console = console
        # Standard output is for results: they are printed after the bars, and never by way of stderr.
        self._live = Live(get_renderable=self.table, console=console, transient=True, redirect_stdout=False)

    def __enter__(self) -> "Bars":
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def table(self) -> Any:
        """Return the rows as they are to be drawn now."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        now = self.clock_s()
        works = self.under_way()
        rows = [[work.latest.step, work.count(), work.left(now), *work.latest.facts] for work in works]
        shown, bar = fitting(rows, self._console.width)
        table = Table.grid(padding=(0, _GAP, 0, 0))
        for work, row in zip(works, rows, strict=True):
            one, cells = work.latest, [*row, *[""] * (shown - len(row))][:shown]
            drawn = ProgressBar(total=one.total or None, completed=one.done, width=bar, pulse=not one.total)
            table.add_row(cells[0], *([drawn] if bar else []), *cells[1:])
        for column in table.columns:
            column.no_wrap, column.overflow = True, "ellipsis"
        return table


def fitting(rows: list[list[str]], width: int) -> tuple[int, int]:
    """Return how many cells of each row, the most important first, fit into `width` columns, and those of the bar.

    The bar leaves after all facts beside name, count and time left; the name stays whatever the width.
    """
    most = max((len(row) for row in rows), default=0)
    widths = [max(len(row[i]) if i < len(row) else 0 for row in rows) + _GAP for i in range(most)]
    for bar in (_BAR[0], 0):
        room = width - (bar + _GAP if bar else 0)
        shown = most
        while shown > 3 and sum(widths[:shown]) > room:
            shown -= 1
        if sum(widths[:shown]) <= room:
            return shown, min(_BAR[1], bar + room - sum(widths[:shown])) if bar else 0
    while shown > 1 and sum(widths[:shown]) > width:
        shown -= 1
    return shown, 0


class Lines(Display):
    """Prints what is under way every `every_s` seconds, and a line every `epochs` epochs of a training."""

    def __init__(self, say: Callable[[str], None], every_s: float, epochs: int) -> None:
        super().__init__()
        self._say, self._every_s, self._epochs = say, every_s, epochs
        self._printed: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Lines":
        # In this thread's context: what is said belongs into the log of the Prefect run that it works for.
        self._thread = threading.Thread(target=copy_context().run, args=(self._repeat,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: Any) -> None:
        self._ended.set()

    def line(self, text: str) -> None:
        """Show a sentence."""
        self._say(text)

    def on_report(self, one: Progress) -> None:
        """Print the line about the newest epoch where enough have passed since the last one."""
        step = one.epoch // self._epochs if self._epochs and one.epoch_line else 0
        if step > self._printed.get(one.step, 0):
            self._printed[one.step] = step
            self._say(one.epoch_line)

    def report(self) -> None:
        """Print a line for each piece of work that is under way."""
        now = self.clock_s()
        for work in self.under_way():
            parts = [work.count(), work.left(now), *work.latest.facts]
            self._say(f"{work.latest.step}: {', '.join(filter(None, parts))}")

    def _repeat(self) -> None:
        while not self._ended.wait(self._every_s):
            self.report()
