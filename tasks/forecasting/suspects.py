"""Looks at a month's bytes that are not the recorded ones, in a process of its own: they may kill it.

Polars ends the whole process on some bytes that are no parquet file of its own (an allocation of exabytes after one
flipped bit), so what a digest does not vouch for is parsed nowhere else.
"""

import io
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from schemas.errors import DamagedError, MemberError
from schemas.identity import SeriesId
from tasks.forecasting.lines import Slice, first_misfit
from tasks.forecasting.months import NO_PARQUET, TREES, Tree, parse_rows

_MODULE = "tasks.forecasting.suspects"
_LIMIT_S = 60
"""A month is read in milliseconds; damaged bytes must not keep a check waiting for ever."""


@dataclass(frozen=True)
class Finding:
    """What a child process could say of a suspect file.

    `contract`: why its rows are none of its series' and month's (empty where they are). `misfit`: as of `first_misfit`.
    `row`: a sentence about the first row that does not fit (empty where all do, or none can be read).
    """

    readable: bool
    contract: str = ""
    misfit: tuple[int, int] | None = None
    row: str = ""


def rows_fault(rows: pl.DataFrame, series: SeriesId, tree: Tree, month: str) -> str:
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


def described(rows: pl.DataFrame, start: int, line: int) -> str:
    """Return a sentence about the first row that does not fit; `line` 0: no line speaks of it."""
    if start >= len(rows):
        return f"row {start + 1} and those after it, of line {line} of the chain, are missing"
    row = f"row {start + 1}"
    if {"issued_at", "step"} <= set(rows.columns):
        row += f" (issued {rows['issued_at'][start]:%Y-%m-%d %H:%M}, step {rows['step'][start]})"
    if line:
        return f"{row}, or one of those after it of the same batch, is not what line {line} of the chain says"
    return f"{row} and those after it have no line in the chain"


def inspect(path: Path, slices: Sequence[Slice], of: tuple[Path, SeriesId, Tree] | None = None) -> Finding:
    """Return what is wrong with the rows of a suspect file, as far as a child process lives to tell.

    Args:
        slices: what the chain says of its rows, line by line.
        of: home, series and tree of a stored month, whose contract is checked too.
    """
    asked = {"path": str(path), "slices": list(slices)}
    if of:
        home, series, tree = of
        asked |= {"home": str(home), "series": series.name, "tree": tree.name}
    try:
        done = subprocess.run(
            [sys.executable, "-m", _MODULE], input=json.dumps(asked), capture_output=True, text=True,
            timeout=_LIMIT_S, check=False,
        )  # fmt: skip
        found = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):  # it died before it said anything
        return Finding(readable=False)
    misfit = found.pop("misfit")
    return Finding(**found, misfit=tuple(misfit) if misfit else None)


def _look(asked: dict[str, object]) -> Finding:
    path, slices = Path(str(asked["path"])), [Slice(*one) for one in asked["slices"]]  # type: ignore[attr-defined]
    contract = ""
    try:
        content = path.read_bytes()
        if "tree" in asked:
            tree = next(tree for tree in TREES if tree.name == asked["tree"])
            series = SeriesId.parse(str(asked["series"]))
            rows = parse_rows(tree, content)
            contract = rows_fault(rows, series, tree, path.stem)
        else:
            rows = pl.read_parquet(io.BytesIO(content), hive_partitioning=False)
        misfit = first_misfit(rows, slices)
        return Finding(True, contract, misfit, described(rows, *misfit) if misfit else "")
    except DamagedError as error:
        return Finding(True, str(error))
    except NO_PARQUET:
        return Finding(readable=False)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # its death is expected: no core dump
    print(json.dumps(_look(json.load(sys.stdin)).__dict__))
