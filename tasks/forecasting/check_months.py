"""Finds damaged files of forecasts and scores, and lines, rows or files that do not match the chain."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl

from schemas.errors import DamagedError, MemberError
from schemas.identity import SeriesId, market_home
from tasks.forecasting.chain import begin_chain, chain_lock, pending_path, quarantine, register_rows
from tasks.forecasting.lines import Chain, FileRecord, chain_path, first_misfit
from tasks.forecasting.months import (
    LEDGER,
    UNREADABLE,
    Tree,
    consequence,
    files_of_market,
    forecast_command,
    owner_of,
    parse_rows,
    read_bytes,
)
from tasks.forecasting.summary import write_summary
from tasks.storage.checked_files import VERIFY, Asked, Stored, allow_reading, checked

_THREADS = 2  # Python threads; polars and hashing use further threads
_GONE = "the file is missing"


class _Month(NamedTuple):
    """A month file of a series; `name`: its path below the market's home."""

    name: str
    path: Path
    series: SeriesId
    tree: Tree


class _Fault(NamedTuple):
    """The fault of a month file, and its repair."""

    month: _Month
    reason: str
    remedy: Literal["quarantine", "register", "allow reading"] = "quarantine"


def forecasts(asked: Asked) -> Iterator[Stored]:
    """Yield a market's months of forecasts and scores, and their chain.

    A repair copies a damaged month back from the published folder, or sets it aside and records this in the chain:
    scores are then computed again by the next `cpb forecast`, forecasts are lost. Rows that are in no line get a line
    stating that they existed before it. A damaged chain is replaced by a new chain.
    """
    home, market = asked.home, asked.market
    read_only = not os.access(market_home(home, market), os.W_OK)  # then there are no writers
    if pending_path(home, market).exists() and not read_only:
        with chain_lock(home, market, begin=False):  # completes the pending batch
            pass
    chain = Chain.read(chain_path(home, market))
    months, sound = _months(asked, chain), set()
    for month, fault in _check(months, chain):
        if fault is None:
            sound.add(month.name)
            yield checked(month.path, "")
    damage, faults = _chain_fault(chain, months), list[_Fault]()
    if damage or len(sound) < len(months):
        with nullcontext() if read_only else chain_lock(home, market, begin=False):
            # Check again under the lock: a writer may have replaced files between the two reads.
            chain = Chain.read(chain_path(home, market))
            damage = _chain_fault(chain, months := _months(asked, chain))
            months = [month for month in months if month.name not in sound]
            faults = [fault for _, fault in _check(months, chain) if fault]
            if asked.repair:
                _repair(asked, damage, faults)
    if damage:
        outcome = "a new chain begins with the intact rows"
        yield checked(chain_path(home, market), damage, outcome=outcome)
    yield from (_stored(asked, fault) for fault in faults)
    if chain and chain.rows_before:
        asked.rows_before[market] = chain.rows_before


def _months(asked: Asked, chain: Chain | None) -> list[_Month]:
    """Return all month files of a market, also missing files recorded in the chain."""
    base = market_home(asked.home, asked.market)
    names = set(chain.files if chain and not chain.fault else ())
    stored = files_of_market(asked.home, asked.market)
    names |= {path.relative_to(base).as_posix() for _, _, path in stored}
    return [
        _Month(name, base / name, *owner) for name in sorted(names) if (owner := owner_of(name, asked.market))
    ]


def _chain_fault(chain: Chain | None, months: list[_Month]) -> str:
    if chain is None:
        return "the file is missing, though rows were stored with lines in it" if months else ""
    return chain.fault if months or chain.lines else ""  # else the file may not be cpb's


def _check(months: list[_Month], chain: Chain | None) -> Iterator[tuple[_Month, _Fault | None]]:
    """Yield each month file with its fault or None."""
    usable = None if chain is None or chain.fault else chain
    pool = ThreadPoolExecutor(_THREADS)
    try:
        yield from zip(months, pool.map(lambda month: _fault(month, usable), months), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def _fault(month: _Month, chain: Chain | None) -> _Fault | None:
    """Return the fault of a month file; `chain` is None if it is missing or damaged."""
    record = chain.files.get(month.name, FileRecord()) if chain else FileRecord()
    try:
        rows = parse_rows(month.tree, read_bytes(month.path))
    except FileNotFoundError:
        return _Fault(month, _GONE)
    except DamagedError as error:
        if error.code == UNREADABLE:
            return _Fault(month, str(error), "allow reading")
        first = (
            f"; line {record.slices[0].line} of the chain records its first batch" if record.slices else ""
        )
        return _Fault(month, f"{error}{first}")
    fault = _contract_fault(rows, month)
    misfit = first_misfit(rows, record.slices) if chain else None
    if not fault and misfit is None:
        return None
    reason = "; ".join(filter(None, (fault, _described(rows, *misfit) if misfit else "")))
    return _Fault(month, reason, "register" if not fault and misfit and misfit[1] == 0 else "quarantine")


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


def _repair(asked: Asked, chain_fault: str, faults: list[_Fault]) -> None:
    """Repair what can be repaired; the caller holds the chain's lock."""
    home, market = asked.home, asked.market
    if chain_fault:
        begin_chain(home, market)
    lost = [(f.month.series, f.month.tree, f.month.path.stem) for f in faults if f.remedy == "quarantine"]
    if lost:
        quarantine(home, market, lost, "`cpb verify` found it damaged")
        write_summary(home, market)  # the record no longer counts their rows
    whole = [f.month for f in faults if f.remedy == "register"]
    register_rows(home, market, [(m.series, m.tree, parse_rows(m.tree, read_bytes(m.path))) for m in whole])


def _stored(asked: Asked, fault: _Fault) -> Stored:
    _, path, series, tree = fault.month
    if fault.remedy == "allow reading":
        return checked(path, fault.reason, allow_reading(path))
    if fault.remedy == "register":
        return checked(
            path, fault.reason, VERIFY, "a new line of the chain records its rows as stored before it"
        )
    command = forecast_command(series) if asked.repair or tree is LEDGER else VERIFY
    done = "recorded in the chain" if fault.reason == _GONE else "set aside"
    return checked(path, fault.reason, command, f"{done}; {consequence(series, tree)}")
