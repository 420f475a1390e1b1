"""Finds damaged files of forecasts and scores, and lines, rows or files that do not match the chain."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from schemas.errors import DamagedError
from schemas.identity import market_home
from tasks.forecasting.chain import chain_lock, pending_path
from tasks.forecasting.lines import Chain, FileRecord, Slice, chain_path, first_misfit
from tasks.forecasting.months import Tree, files_of_market, owner_of, parse_rows, read_bytes
from tasks.running.parallel import thread_pool

_THREADS = 2  # Python threads; polars and hashing use further threads


def check_months(home: Path, market: str) -> Iterator[tuple[Path, str]]:
    """Yield a market's chain, and its months of forecasts and scores, each with its fault ("" for none).

    Writers wait meanwhile. A home that cannot be written has none, and gets no lock.
    """
    base, path, pending = market_home(home, market), chain_path(home, market), pending_path(home, market)
    with ExitStack() as stack:
        if (pending.exists() or any(files_of_market(home, market))) and os.access(base, os.W_OK):
            try:
                stack.enter_context(chain_lock(home, market, begin=False))
            except DamagedError as error:
                yield pending, str(error)
        chain = Chain.read(path)
        there = {month.relative_to(base).as_posix() for _, _, month in files_of_market(home, market)}
        if chain is None:
            if there:
                yield path, "the file is missing, though rows were stored with lines in it"
        elif there or chain.lines:  # else the file may not be cpb's
            yield path, chain.fault
        records = None if chain is None or chain.fault else chain.files
        months, slices = [], []
        for name in sorted(there.union(records or ())):
            if owner := owner_of(name, market):
                months.append((base / name, owner[1]))
                slices.append(None if records is None else records.get(name, FileRecord()).slices)
        with thread_pool(_THREADS, "verify") as pool:
            faults = pool.map(_fault, months, slices)
            yield from zip((month for month, _ in months), faults, strict=True)


def _fault(month: tuple[Path, Tree], slices: list[Slice] | None) -> str:
    """Return the fault of a month file, "" for none; `slices`: the chain's, None if it is missing or damaged."""
    path, tree = month
    try:
        rows = parse_rows(tree, read_bytes(path))
    except FileNotFoundError:
        return "the file is missing"
    except DamagedError as error:
        return (
            f"{error}; line {slices[0].line} of the chain records its first batch" if slices else str(error)
        )
    misfit = None if slices is None else first_misfit(rows, slices)
    if not misfit:
        return ""
    start, line = misfit
    if not line:
        return f"row {start + 1} and the rows after it have no line in the chain"
    return f"row {start + 1}, or a later row of the same batch, is missing or differs from line {line} of the chain"
