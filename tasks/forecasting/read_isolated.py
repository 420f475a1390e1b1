"""Compares a month's rows with their contract and chain; bytes without a matching digest in a child process.

Polars aborts the whole process on some invalid parquet bytes (an allocation of exabytes after one flipped bit), so
bytes without a matching digest are parsed only here.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from schemas.errors import DamagedError, MemberError
from schemas.identity import SPOT, SeriesId
from tasks.forecasting.lines import Slice, first_misfit
from tasks.forecasting.months import Tree, owner_of, parse_rows

_LIMIT_S = 60
"""A month is read in milliseconds; damaged bytes must not block a check forever."""


class Finding(NamedTuple):
    """The reason why rows are invalid, "" for valid rows.

    `is_whole`: they satisfy their contract and all rows in a line match it; the rest only needs a line.
    """

    reason: str
    is_whole: bool = False


def compare(path: Path, content: bytes, slices: Sequence[Slice] | None) -> Finding:
    """Compare the rows in a month file's bytes with their contract and, line by line, with the chain.

    Args:
        path: stored, or of a published copy: its last four parts name the series and the month.
        slices: the chain's record of the file; None without a usable chain.

    Raises:
        DamagedError: the bytes contain no rows; the message is only the reason.
    """
    series, tree = owner_of("/".join(path.parts[-4:]), SPOT) or (None, None)
    if series is None or tree is None:
        raise DamagedError("its path is not that of a month file")
    rows = parse_rows(tree, content)
    fault = _contract_fault(rows, series, tree, path.stem)
    misfit = first_misfit(rows, slices) if slices is not None else None
    reasons = (fault, _described(rows, *misfit) if misfit else "")
    is_whole = not fault and misfit is not None and misfit[1] == 0
    return Finding("; ".join(filter(None, reasons)), is_whole)


def compare_isolated(path: Path, slices: Sequence[Slice] | None) -> Finding | None:
    """Run `compare` on a file in a child process; None if it crashes."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tasks.forecasting.read_isolated"], input=json.dumps([str(path), slices]),
            capture_output=True, text=True, timeout=_LIMIT_S, check=False,
        )  # fmt: skip
        return Finding(*json.loads(done.stdout))
    except (subprocess.TimeoutExpired, ValueError):
        return None


def _contract_fault(rows: pl.DataFrame, series: SeriesId, tree: Tree, month: str) -> str:
    """Return why rows are not valid rows of a series' month; empty if they are valid."""
    try:
        tree.check(rows)
    except MemberError as error:
        return str(error)
    if rows.select("symbol", "timeframe").unique().rows() != [(series.symbol, series.timeframe)]:
        return f"it contains rows of another series than {series.symbol} {series.timeframe}"
    if rows["issued_at"].dt.strftime("%Y-%m").unique().to_list() != [month]:
        return f"it contains rows of another month than {month}"
    return ""


def _described(rows: pl.DataFrame, start: int, line: int) -> str:
    """Return a sentence about the first invalid row; `line` 0: it is in no line."""
    if start >= len(rows):
        return f"row {start + 1} and the rows after it, of line {line} of the chain, are missing"
    row = f"row {start + 1}"
    if {"issued_at", "step"} <= set(rows.columns):
        row += f" (issued {rows['issued_at'][start]:%Y-%m-%d %H:%M}, step {rows['step'][start]})"
    if line:
        return f"{row}, or a later row of the same batch, differs from line {line} of the chain"
    return f"{row} and the rows after it have no line in the chain"


def _answer(asked: str) -> None:
    """Print the result of `compare` as JSON."""
    path, slices = json.loads(asked)
    try:
        found = compare(Path(path), Path(path).read_bytes(), slices and [Slice(*part) for part in slices])
    except DamagedError as error:
        found = Finding(str(error))
    print(json.dumps(found))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is expected: no core dump
    _answer(sys.stdin.read())
