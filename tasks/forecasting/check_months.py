"""Finds damaged files of forecasts and scores, and lines, rows or files that do not match the chain."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import polars as pl

from schemas.errors import DamagedError, MemberError
from schemas.identity import SeriesId, market_home
from tasks.forecasting.chain import chain_lock, pending_path
from tasks.forecasting.lines import Chain, FileRecord, chain_path, first_misfit
from tasks.forecasting.months import Tree, files_of_market, owner_of, parse_rows, read_bytes

_THREADS = 2  # Python threads; polars and hashing use further threads


class _Month(NamedTuple):
    """A month file of a series; `name`: its path below the market's home."""

    name: str
    path: Path
    series: SeriesId
    tree: Tree


def check_months(home: Path, market: str) -> Iterator[tuple[Path, str]]:
    """Yield a market's months of forecasts and scores, and a damaged chain, each with its fault ("" for none)."""
    read_only = not os.access(market_home(home, market), os.W_OK)  # then there are no writers
    if pending_path(home, market).exists() and not read_only:
        with chain_lock(home, market, begin=False):  # completes the pending batch
            pass
    chain = Chain.read(chain_path(home, market))
    months, sound = _months(home, market, chain), set()
    for month, fault in _check(months, chain):
        if not fault:
            sound.add(month.name)
            yield month.path, ""
    if not _chain_fault(chain, months) and len(sound) == len(months):
        return
    with nullcontext() if read_only else chain_lock(home, market, begin=False):
        # Check again under the lock: a writer may have replaced files between the two reads.
        chain = Chain.read(chain_path(home, market))
        months = _months(home, market, chain)
        faults = [*_check([month for month in months if month.name not in sound], chain)]
    if damage := _chain_fault(chain, months):
        yield chain_path(home, market), damage
    yield from ((month.path, fault) for month, fault in faults)


def _months(home: Path, market: str, chain: Chain | None) -> list[_Month]:
    """Return all month files of a market, also missing files recorded in the chain."""
    base = market_home(home, market)
    names = set(chain.files if chain and not chain.fault else ())
    names |= {path.relative_to(base).as_posix() for _, _, path in files_of_market(home, market)}
    return [_Month(name, base / name, *owner) for name in sorted(names) if (owner := owner_of(name, market))]


def _chain_fault(chain: Chain | None, months: list[_Month]) -> str:
    if chain is None:
        return "the file is missing, though rows were stored with lines in it" if months else ""
    return chain.fault if months or chain.lines else ""  # else the file may not be cpb's


def _check(months: list[_Month], chain: Chain | None) -> Iterator[tuple[_Month, str]]:
    """Yield each month file with its fault, "" for none."""
    usable = None if chain is None or chain.fault else chain
    pool = ThreadPoolExecutor(_THREADS)
    try:
        yield from zip(months, pool.map(lambda month: _fault(month, usable), months), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def _fault(month: _Month, chain: Chain | None) -> str:
    """Return the fault of a month file; `chain` is None if it is missing or damaged."""
    record = chain.files.get(month.name, FileRecord()) if chain else FileRecord()
    try:
        rows = parse_rows(month.tree, read_bytes(month.path))
    except FileNotFoundError:
        return "the file is missing"
    except DamagedError as error:
        lines = (
            [f"line {record.slices[0].line} of the chain records its first batch"] if record.slices else []
        )
        return "; ".join([str(error), *lines])
    misfit = first_misfit(rows, record.slices) if chain else None
    faults = (_contract_fault(rows, month), _described(rows, *misfit) if misfit else "")
    return "; ".join(filter(None, faults))


def _contract_fault(rows: pl.DataFrame, month: _Month) -> str:
    """Return why rows are not valid rows of a series' month; empty if they are valid."""
    _, path, series, tree = month
    try:
        tree.check(rows)
    except MemberError as error:
        return str(error)
    if rows.select("symbol", "timeframe").unique().rows() != [(series.symbol, series.timeframe)]:
        return f"it contains rows of another series than {series.symbol} {series.timeframe}"
    if rows["issued_at"].dt.strftime("%Y-%m").unique().to_list() != [path.stem]:
        return f"it contains rows of another month than {path.stem}"
    return ""


def _described(rows: pl.DataFrame, start: int, line: int) -> str:
    """Return a sentence about the first invalid row; `line` 0: it is in no line."""
    if start >= len(rows):
        return f"row {start + 1} and the rows after it, of line {line} of the chain, are missing"
    issued, step = rows["issued_at"][start], rows["step"][start]
    row = f"row {start + 1} (issued {issued:%Y-%m-%d %H:%M}, step {step})"
    if line:
        return f"{row}, or a later row of the same batch, differs from line {line} of the chain"
    return f"{row} and the rows after it have no line in the chain"
