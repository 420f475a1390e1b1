"""Output of a command: progress on stderr, results on stdout.

Progress is displayed from the first second: as bars if stderr is a terminal, otherwise as a line every 30 seconds.
Steps report it (`tasks.running.progress`). A bar shows the completed share, the time left and as many further columns
as fit: a narrow terminal drops the least important columns first. Finished bars disappear; results are printed as
lines, which stay.
"""

import json
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from schemas.errors import UsageError
from tasks.running.progress import Pace, Progress, heard_by, is_heard, tell

if TYPE_CHECKING:
    from rich.console import Console


def say(text: str) -> None:
    """Print a line on stderr (stdout is for results), and log it to the Prefect run, if any."""
    _write(f"{text}\n")
    prefect = sys.modules.get("prefect.context")  # not imported here: most commands do not need it
    if prefect and (prefect.FlowRunContext.get() or prefect.TaskRunContext.get()):
        from flows.run_log import log_to_run

        log_to_run(text)


def show(text: str) -> None:
    """Print a result on stdout."""
    print(printable(text))


def printable(text: str) -> str:
    """Return a text with its control and invisible characters escaped.

    Names and messages that come from files of a home, a mirror or a server must not reach the terminal as commands.
    """
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def _write(text: str) -> None:
    try:
        # a single write: other threads print too
        print(printable(text), end="", file=sys.stderr, flush=True)
    except BrokenPipeError:
        _drop_output()


def _drop_output(_console: Any = None) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)


def continue_without_reader() -> None:
    """Let this process continue if the reader of its output ends, as does a flow run whose worker is killed.

    A `rich` console, through which Prefect logs, would end the process (`Console.on_broken_pipe`).
    """
    from rich.console import Console

    Console.on_broken_pipe = _drop_output  # type: ignore[assignment, method-assign]


def emit(value: Any) -> None:
    """Print a JSON object as the last line of stdout; dates and paths become strings, NaN becomes null."""
    print(json.dumps(_plain(value), default=str), flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


class ConsoleHandler(logging.Handler):
    """Prints log records as `cpb: …`, like errors, on the current `sys.stderr`, which a progress bar may replace."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; credentials in URLs are removed."""
        from tasks.storage.urls import without_credentials

        _write(without_credentials(f"cpb: {self.format(record)}\n"))


def log_to_console() -> None:
    """Print all warnings in the same format. Call this before importing Prefect, which keeps existing handlers."""
    root = logging.getLogger()
    if not any(isinstance(handler, ConsoleHandler) for handler in root.handlers):
        handler = ConsoleHandler(logging.WARNING)
        handler.setFormatter(logging.Formatter("%(message)s"))
        root.addHandler(handler)


def quiet_libraries() -> None:
    """Hide notices of libraries (migrations, deprecations)."""
    for name in ("alembic", "mlflow", "prefect", "httpx", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning, module="mlflow")


LINE_EVERY_S = 30.0
EPOCHS_VARIABLE = "CPB_LOG_EPOCHS"
"""Without bars, a training prints a line after this many epochs; 0: no lines. Default 20."""

_BAR, _GAP = (8, 24), 2
"""Minimum and maximum width of a bar, and the gap between two cells, in terminal columns."""

_AHEAD = 3
"""Cells that are dropped after the bar: name, count and time left."""


@contextmanager
def shown_progress(command: str, first: str = "loading libraries") -> Iterator[None]:
    """Show the progress reported in the block; inside another such block, the outer display continues.

    Args:
        command, first: name and first status text, shown before the first step reports progress.
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

        console = Console(stderr=True, markup=False)
        if not console.is_dumb_terminal:
            return Bars(console)
    return Lines(say, LINE_EVERY_S, _epochs_per_line())


def _epochs_per_line() -> int:
    text = os.environ.get(EPOCHS_VARIABLE, "20")
    if not text.isdecimal():
        raise UsageError(
            f"{EPOCHS_VARIABLE}={text!r} is not a number of epochs: give an integer, 0 for no lines",
            code="log-epochs", field=EPOCHS_VARIABLE,
        )  # fmt: skip
    return int(text)


class Work:
    """A task in progress, with its speed."""

    def __init__(self, first: Progress, now: float) -> None:
        self._pace = Pace()
        self.take(first, now)

    def take(self, one: Progress, now: float) -> None:
        """Update the task from a report."""
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
        """Return the remaining time, as in `4:05 left`, or the elapsed time if that is unknown, as in `0:07`."""
        left = self._pace.left(now)
        return clock(self._pace.taken(now)) if left is None else f"{clock(left)} left"


def clock(seconds: float) -> str:
    """Return a duration as `0:07`, `12:34` or `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Display:
    """Keeps the tasks in progress, in order of their start; reports may come from any thread."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.clock_s, self.works = clock_s, dict[str, Work]()
        self._lock = threading.Lock()

    def progress(self, one: Progress) -> None:
        """Process a report; finished tasks are removed, and so is the command's row once a step reports progress."""
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
        """React to a report immediately."""

    def line(self, text: str) -> None:
        """Show a line of text."""
        say(text)

    def under_way(self) -> list[Work]:
        """Return the tasks in progress."""
        with self._lock:
            return list(self.works.values())


class Bars(Display):
    """Draws a row for each task on a terminal, four times a second."""

    def __init__(self, console: "Console") -> None:
        from rich.live import Live

        super().__init__()
        self._console = console
        # Standard output is for results, which are printed after the bars and must not be redirected to stderr.
        self._live = Live(get_renderable=self.table, console=console, transient=True, redirect_stdout=False)

    def __enter__(self) -> "Bars":
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def table(self) -> Any:
        """Return the table with the current rows."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        now = self.clock_s()
        works = self.under_way()
        rows = [
            [printable(cell) for cell in (work.latest.step, work.count(), work.left(now), *work.latest.facts)]
            for work in works
        ]
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
    """Return how many cells of each row, most important first, fit into `width` columns, and the width of the bar.

    The bar is dropped after all cells but name, count and time left; the name is always shown.
    """
    most = max((len(row) for row in rows), default=0)
    widths = [max(len(row[i]) if i < len(row) else 0 for row in rows) + _GAP for i in range(most)]
    needed = [*widths[:_AHEAD], _BAR[0] + _GAP, *widths[_AHEAD:]]
    while len(needed) > 1 and sum(needed) > width:
        needed.pop()
    if len(needed) <= min(most, _AHEAD):
        return len(needed), 0
    return len(needed) - 1, min(_BAR[1], _BAR[0] + width - sum(needed))


class Lines(Display):
    """Prints the tasks in progress every `every_s` seconds, and a line every `epochs` epochs of a training."""

    def __init__(self, say: Callable[[str], None], every_s: float, epochs: int) -> None:
        super().__init__()
        self._say, self._every_s, self._epochs = say, every_s, epochs
        self._printed: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Lines":
        # In this thread's context, so that lines are logged to the Prefect run of this thread.
        self._thread = threading.Thread(target=copy_context().run, args=(self._repeat,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: Any) -> None:
        self._ended.set()

    def line(self, text: str) -> None:
        """Show a line of text."""
        self._say(text)

    def on_report(self, one: Progress) -> None:
        """Print a line about the newest epoch if at least `epochs` epochs have passed since the last line."""
        step = one.epoch // self._epochs if self._epochs and one.epoch_line else 0
        if step > self._printed.get(one.step, 0):
            self._printed[one.step] = step
            self._say(one.epoch_line)

    def report(self) -> None:
        """Print a line for each task in progress."""
        now = self.clock_s()
        for work in self.under_way():
            parts = [work.count(), work.left(now), *work.latest.facts]
            self._say(f"{work.latest.step}: {', '.join(filter(None, parts))}")

    def _repeat(self) -> None:
        while not self._ended.wait(self._every_s):
            self.report()
