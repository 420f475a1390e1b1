"""What a command prints: lines and log messages on stderr, results on stdout, as tables, lines or JSON.

A table's column is shown completely or not at all, so that no figure is truncated. Tables are as wide as the terminal;
in a file or pipe as wide as `COLUMNS` says, or else 80 characters.
"""

import json
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cpbmodels.errors import printable
from flows.typed import as_typed

LINES = logging.getLogger("cpb.lines")
"""Logger of the lines that `echo` prints; without a flow run nothing handles them."""
LINES.setLevel(logging.INFO)
LINES.propagate = False

_GAPS, _FOLDED = (3, 2, 1), 23  # characters: between columns, the widest that fits; least of a folded column


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


def print_table(
    title: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], *, continued: bool = False
) -> None:
    """Print the columns that fit the terminal, dropping the last columns first, and report which are left out.

    `continued`: they follow in further tables instead, each with the columns that stay.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    # $COLUMNS, else the terminal of stdout, else 80.
    width, left = shutil.get_terminal_size().columns, list(columns)
    if title:
        Console(markup=False, highlight=False, width=width).print(printable(title), style="italic")
    while True:
        shown, gap, needed = fitting(left, rows, width)
        table = Table(
            box=SIMPLE_HEAD,
            padding=(0, max(gap - 2, 0), 0, min(gap - 1, 1)),
            show_edge=False,
            pad_edge=False,
        )
        for column in shown:
            justify: Literal["left", "right"] = "right" if column.form else "left"
            table.add_column(column.title, justify=justify, no_wrap=not column.folds, overflow="fold")
        for row in rows:
            table.add_row(*(column.cell(row) for column in shown))
        # Where even the columns that stay are too wide, the terminal wraps lines: rich would cut figures.
        Console(markup=False, width=max(width, needed)).print(table, "")
        hidden = [column for column in left if column not in shown]
        if not (continued and hidden and len(shown) > sum(column.stays for column in shown)):
            break
        left = [*(column for column in shown if column.stays), *hidden]
    if hidden:
        names = ", ".join(column.title for column in hidden)
        echo(f"left out at {width} columns: {names}; use a wider terminal (in a pipe COLUMNS=200), or --json")


def fitting(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], width: int
) -> tuple[list[Column], int, int]:
    """Return the columns that fit into `width`, the gap between them, and the width they need, in characters.

    Optional columns are dropped, last first.
    """
    widths = {c: max(map(len, (c.title, *(c.cell(row) for row in rows)))) for c in columns}
    least = {c: min(widths[c], _FOLDED) if c.folds else widths[c] for c in columns}
    shown = list(columns)
    # The last column is the least important; each is dropped whole, since half a figure is a wrong one.
    for dropped in (None, *(column for column in reversed(columns) if not column.stays)):
        if dropped:
            shown.remove(dropped)
        for gap in _GAPS:
            needed = sum(least[c] + gap for c in shown) - gap
            if needed <= width:
                return shown, gap, needed
    return shown, gap, needed


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
    """Print a JSON object as the last line of stdout; times as HTTP writes them, NaN, which JSON lacks, as null."""
    from pydantic_core import to_jsonable_python

    print(json.dumps(to_jsonable_python(value, inf_nan_mode="null", fallback=str)), flush=True)


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
