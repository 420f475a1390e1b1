"""Tables on stdout: a column is shown completely or not at all, so that no figure is truncated."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flows.console import printable, say
from schemas.errors import count

_GAP = 3
_FOLDED = 23
_PIPE_WIDTH = 300


@dataclass(frozen=True)
class Column:
    """A column: its title, whether it holds text, and whether it is shown even on a narrow terminal.

    `folds`: long texts wrap to the next line.
    """

    title: str
    text: bool = False
    stays: bool = False
    folds: bool = False


def print_table(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print the columns that fit the terminal, dropping the last columns first, and report how many are left out."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    shown = fitting(columns, rows, console.width)
    table = Table(title=printable(title), box=SIMPLE_HEAD, title_justify="left", padding=(0, 1))
    for i in shown:
        one = columns[i]
        justify: Literal["left", "right"] = "left" if one.text else "right"
        table.add_column(one.title, justify=justify, no_wrap=not one.folds, overflow="fold")
    for row in rows:
        table.add_row(*(printable(row[i]) for i in shown))
    console.print(table)
    if hidden := len(columns) - len(shown):
        say(f"{count(hidden, 'column')} left out: use a wider terminal, or --json")


def fitting(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the indices of the columns that fit into `width`; optional columns are dropped, last first."""
    widths = [max(map(len, cells)) + _GAP for cells in zip([c.title for c in columns], *rows, strict=True)]
    widths = [min(w, _FOLDED) if one.folds else w for w, one in zip(widths, columns, strict=True)]
    shown = list(range(len(columns)))
    for i in reversed(shown[:]):
        if sum(widths[j] for j in shown) <= width - 2:
            break
        if not columns[i].stays:
            shown.remove(i)
    return shown


def finding(verdict: str) -> str:
    """Return `better`, `worse` or `no different` from a verdict against the random walk."""
    return verdict.split(" (")[0].split(" the ")[0].removesuffix(" than").removesuffix(" from")


def price(value: float) -> str:
    """Return a price with six significant digits and no exponent: `104,321`, `2,512.34`, `0.0000123456`."""
    before_point = len(f"{value:.0f}") if value >= 1 else int(f"{value:e}".partition("e")[2]) + 1
    return f"{value:,.{max(0, 6 - before_point)}f}"
