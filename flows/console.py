"""What a command prints: lines and log messages on stderr, results on stdout, as tables, lines or JSON.

A table's column is shown completely or not at all, so that no figure is truncated.
"""

import json
import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cpbmodels.errors import printable
from flows.typed import as_typed
from schemas.errors import counted

LINES = logging.getLogger("cpb.lines")
"""Logger of the lines that `echo` prints; without a flow run nothing handles them."""
LINES.setLevel(logging.INFO)
LINES.propagate = False

_GAP, _FOLDED, _PIPE_WIDTH = 3, 23, 300  # characters


@dataclass(frozen=True)
class Column:
    """A column: its title, its key in a row, the format of its cells, and whether a narrow terminal keeps it.

    `form`: without any, the cells are texts on the left. `folds`: long texts wrap to the next line.
    """

    title: str
    key: str
    form: str = ""
    stays: bool = False
    folds: bool = False

    def cell(self, row: Mapping[str, Any]) -> str:
        """Return the text of a row's cell; `-` without a value."""
        value = row.get(self.key)
        return "-" if value is None else printable(format(value, self.form))


def print_table(title: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the columns that fit the terminal, dropping the last columns first, and report how many are left out."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    # A pipe has no width: rows stay whole for grep, and a file reads as on a wide terminal.
    console = Console(markup=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    shown = fitting(columns, rows, console.width)
    table = Table(title=printable(title), box=SIMPLE_HEAD, title_justify="left", padding=(0, 1))
    for column in shown:
        justify: Literal["left", "right"] = "right" if column.form else "left"
        table.add_column(column.title, justify=justify, no_wrap=not column.folds, overflow="fold")
    for row in rows:
        table.add_row(*(column.cell(row) for column in shown))
    console.print(table)
    if hidden := len(columns) - len(shown):
        echo(f"{counted(hidden, 'column')} left out: use a wider terminal, or --json")


def fitting(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], width: int) -> list[Column]:
    """Return the columns that fit into `width`; optional columns are dropped, last first."""
    widths = {c: max(map(len, (c.title, *(c.cell(row) for row in rows)))) + _GAP for c in columns}
    shown = list(columns)
    # The last column is the least important; each is dropped whole, since half a figure is a wrong one.
    for column in reversed(columns):
        if sum(min(widths[c], _FOLDED) if c.folds else widths[c] for c in shown) <= width - 2:
            break
        if not column.stays:
            shown.remove(column)
    return shown


def interval(low: float | None, high: float | None) -> str | None:
    """Return a 95 % interval of a ratio: `[0.9890, 0.9983]`."""
    return None if low is None or high is None else f"[{low:.4f}, {high:.4f}]"


def finding(verdict: str) -> str:
    """Return `better`, `worse` or `no different` from a verdict against the random walk."""
    return verdict.split(" (")[0].split(" the ")[0].removesuffix(" than").removesuffix(" from")


def price(value: float) -> str:
    """Return a price with six significant digits and no exponent: `104,321`, `2,512.34`, `0.0000123456`."""
    # Six digits of any coin: BTC's five before the point and one after, PEPE's after five zeros.
    before_point = len(f"{value:.0f}") if value >= 1 else int(f"{value:e}".partition("e")[2]) + 1
    return f"{value:,.{max(0, 6 - before_point)}f}"


def echo(text: str) -> None:
    """Print a line on stderr (stdout is for results); a flow run sends it to its log too."""
    _write(f"{text}\n")
    LINES.info(text)


def show(text: str) -> None:
    """Print a result on stdout."""
    print(printable(as_typed(text)))


def _write(text: str) -> None:
    try:
        # a single write: other threads print too
        print(printable(as_typed(text)), end="", file=sys.stderr, flush=True)
    except BrokenPipeError:
        _drop_output()


def _drop_output(_console: Any = None) -> None:
    # By descriptor, so that libraries which kept the stream write nowhere too.
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)


def continue_without_reader() -> None:
    """Keep running when the reader of the output is gone, for example when the worker of a flow run was killed.

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
    # JSON has no NaN, and other programs refuse Python's.
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
