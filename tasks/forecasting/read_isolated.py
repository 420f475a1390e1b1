"""Compares a month's rows with their contract and their chain; bytes that no digest vouches for in another process.

Polars ends the whole process on some bytes that are no parquet file of its own (an allocation of exabytes after one
flipped bit), so what a digest does not vouch for is parsed nowhere else.
"""

import io
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from schemas.errors import DamagedError, MemberError
from schemas.identity import SeriesId
from tasks.forecasting.lines import Slice, first_misfit
from tasks.forecasting.months import NO_PARQUET, TREES, Tree, parse_rows

_LIMIT_S = 60
"""A month is read in milliseconds; damaged bytes must not keep a check waiting for ever."""

Owner = tuple[SeriesId, Tree, str]
"""Series, tree and month of a stored file, whose contract its rows must keep."""


class Finding(NamedTuple):
    """What is wrong with rows, "" for nothing.

    `is_whole`: they keep their contract, and those that have a line fit it; a line for the rest is all they need.
    """

    reason: str
    is_whole: bool = False


def compare(content: bytes, slices: Sequence[Slice] | None, owner: Owner | None = None) -> Finding:
    """Compare the rows in a file's bytes with what the chain says of them, line by line.

    Args:
        slices: None: there is no chain that could say something.
        owner: of a stored month; of other files any columns will do.

    Raises:
        DamagedError: the bytes hold no rows; the message is the bare reason.
        NO_PARQUET: the same, without an owner.
    """
    if owner:
        rows = parse_rows(owner[1], content)
        fault = _contract_fault(rows, *owner)
    else:
        rows, fault = pl.read_parquet(io.BytesIO(content), hive_partitioning=False), ""
    misfit = first_misfit(rows, slices) if slices is not None else None
    reasons = (fault, _described(rows, *misfit) if misfit else "")
    is_whole = not fault and misfit is not None and misfit[1] == 0
    return Finding("; ".join(filter(None, reasons)), is_whole)


def compare_isolated(path: Path, slices: Sequence[Slice], owner: Owner | None = None) -> Finding | None:
    """Return what `compare` says of a file, in a process of its own; None where that dies, or finds no rows."""
    about = owner and (owner[0].name, owner[1].name, owner[2])
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tasks.forecasting.read_isolated"], input=json.dumps([str(path), slices, about]),
            capture_output=True, text=True, timeout=_LIMIT_S, check=False,
        )  # fmt: skip
        return Finding(*json.loads(done.stdout))
    except (subprocess.TimeoutExpired, ValueError):
        return None


def _contract_fault(rows: pl.DataFrame, series: SeriesId, tree: Tree, month: str) -> str:
    """Return why rows are not those of a series' month, as their contract has them; empty where they are."""
    try:
        tree.check(rows)
    except MemberError as error:
        return str(error)
    if rows.select("symbol", "timeframe").unique().rows() != [(series.symbol, series.timeframe)]:
        return f"it holds rows of another series than {series}"
    if rows["issued_at"].dt.strftime("%Y-%m").unique().to_list() != [month]:
        return f"it holds rows of another month than {month}"
    return ""


def _described(rows: pl.DataFrame, start: int, line: int) -> str:
    """Return a sentence about the first row that does not fit; `line` 0: no line speaks of it."""
    if start >= len(rows):
        return f"row {start + 1} and those after it, of line {line} of the chain, are missing"
    row = f"row {start + 1}"
    if {"issued_at", "step"} <= set(rows.columns):
        row += f" (issued {rows['issued_at'][start]:%Y-%m-%d %H:%M}, step {rows['step'][start]})"
    if line:
        return f"{row}, or one of those after it of the same batch, is not what line {line} of the chain says"
    return f"{row} and those after it have no line in the chain"


def _answer(asked: str) -> None:
    """Print what `compare` finds; nothing where there are no rows."""
    path, slices, about = json.loads(asked)
    owner = about and (SeriesId.parse(about[0]), next(t for t in TREES if t.name == about[1]), about[2])
    try:
        print(json.dumps(compare(Path(path).read_bytes(), [Slice(*one) for one in slices], owner)))
    except DamagedError as error:
        print(json.dumps(Finding(str(error))))
    except NO_PARQUET:
        pass


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # its death is expected: no core dump
    _answer(sys.stdin.read())
