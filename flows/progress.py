"""The progress of a command on stderr: as bars if it is a terminal, otherwise as a line every 30 seconds.

It is shown from the first second; steps report it (`tasks.running.progress`). Finished bars disappear; results are
printed as lines, which stay, and so are those of a training's epochs (`tasks.training.progress`).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cpbmodels.errors import printable
from flows.console import echo
from tasks.running.progress import NOT_ENDED, Progress, has_listener, report_progress, reports_to

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

LINE_EVERY_S = 30.0
"""Seconds between two lines about each task where there is no terminal."""

_PACE_S = 600.0
"""Window, in seconds, from which the time left is estimated: shards report rarely."""


@contextmanager
def shown_progress(command: str, first: str = "loading libraries") -> Iterator[None]:
    """Show the progress reported in the block; inside another such block, the outer display continues.

    Args:
        command, first: name and first status text, shown before the first step reports progress.
    """
    if has_listener():
        yield
        return
    from rich.console import Console

    console = Console(stderr=True, markup=False)
    with Display(console) as display, reports_to(display):
        report_progress(command, 0, 0, "", first)
        yield


class Display:
    """Shows the tasks in progress: as bars on a terminal, else as lines; reports may come from any thread."""

    def __init__(self, console: "Console") -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        def cell(field: str) -> TextColumn:  # cut where the terminal is too narrow for it; facts shrink first
            column = Column(no_wrap=field != "facts", overflow="ellipsis")
            return TextColumn(f"{{task.fields[{field}]}}", markup=False, table_column=column)

        columns = cell("step"), BarColumn(24), cell("count"), TimeRemainingColumn(), cell("facts")
        # Standard output is for results, which are printed after the bars and must not be redirected to stderr.
        self.bars = Progress(
            *columns,
            console=console,
            transient=True,
            redirect_stdout=False,
            refresh_per_second=4,
            speed_estimate_period=_PACE_S,
        )
        self._tasks: dict[str, TaskID] = {}
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._on_terminal = console.is_terminal and not console.is_dumb_terminal

    def __enter__(self) -> "Display":
        if self._on_terminal:
            self.bars.start()
        else:  # in this thread's context, so that lines are logged to the Prefect run of this thread
            threading.Thread(target=copy_context().run, args=(self._print,), daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        if self._on_terminal:  # else it would print an empty line
            self.bars.stop()

    def progress(self, report: Progress) -> None:
        """Show a report; finished tasks are removed, and so is the command's row once a step reports progress."""
        # twice, as products are rounded; at most half, which leaves whole numbers as they are
        done = int(report.done + min(2 * NOT_ENDED * report.total, 0.5))
        # Of work that waits neither is known: "0 files" would say that there are none.
        of = f"{done:,}/{int(report.total):,}" if report.total else f"{done:,}" if done else ""
        fields: dict[str, Any] = {
            "count": f"{of} {report.unit}" if of and report.unit else "",
            "begun": bool(report.unit),
            "facts": printable("  ".join(report.facts)),
        }
        with self._lock:
            ended = {report.step} if report.total and report.done >= report.total else set()
            if report.unit:
                ended |= {task.fields["step"] for task in self.bars.tasks if not task.fields["begun"]}
            for step in ended & set(self._tasks):
                self.bars.remove_task(self._tasks.pop(step))
            if report.step in ended:
                return
            if report.step not in self._tasks:
                self._tasks[report.step] = self.bars.add_task(
                    "", total=None, step=printable(report.step), **fields
                )
            self.bars.update(
                self._tasks[report.step], total=report.total or None, completed=report.done, **fields
            )

    def line(self, text: str) -> None:
        """Show a line of text."""
        echo(text)

    def print_tasks(self) -> None:
        """Print a line for each task in progress."""
        for task in self.bars.tasks:
            left, fields = task.time_remaining, task.fields
            seconds = (task.elapsed or 0) if left is None else left
            time_text = f"{timedelta(seconds=round(seconds))}{'' if left is None else ' left'}"
            echo(
                f"{fields['step']}: {', '.join(filter(None, (fields['count'], time_text, fields['facts'])))}"
            )

    def _print(self) -> None:
        while not self._ended.wait(LINE_EVERY_S):
            self.print_tasks()
