"""Finds damaged files of forecasts and scores, and lines, rows or files that do not match the chain."""

import hashlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, NamedTuple

from schemas.errors import DamagedError
from schemas.identity import SeriesId, market_home
from tasks.forecasting.chain import chain_lock, quarantine, register_rows, restart
from tasks.forecasting.commit import below, pending_path
from tasks.forecasting.index import INDEX, MonthIndex, index_subject, month_files, record_missing
from tasks.forecasting.lines import Chain, FileRecord, chain_path
from tasks.forecasting.months import (
    LEDGER,
    TREES,
    UNREADABLE,
    Tree,
    consequence,
    forecast_command,
    read_bytes,
)
from tasks.forecasting.read_isolated import Finding, compare, compare_isolated
from tasks.storage.verify import (
    REPAIRED,
    VERIFY,
    Asked,
    Stored,
    allow_reading,
    checked,
    record_file,
    sound_record,
)

_THREADS = 2  # Python threads; polars and hashing use further threads
_PLACE = re.compile(r"(forecasts|ledger)(-\w+)?/interval=(\w+)/symbol=(\w+)/([0-9]{4}-[0-9]{2})\.parquet")
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
    """Yield a market's records of digests, its months of forecasts and scores, and their chain.

    A repair copies a damaged month back from the published folder, or sets it aside and records this in the chain:
    scores are then computed again by the next `cpb forecast`, forecasts are lost. Rows that are in no line get a line
    stating that they existed before it. A damaged chain is replaced by a new chain. Missing digests are recorded.
    """
    home, market = asked.home, asked.market
    read_only = not os.access(market_home(home, market), os.W_OK)  # then there are no writers
    if pending_path(home, market).exists() and not read_only:
        with chain_lock(home, market, begin=False):  # completes the pending batch
            pass
    for folder in (series.folder(home, tree.name) for tree in TREES for series in asked.series(tree.name)):
        yield record_file(folder / INDEX, MonthIndex, index_subject(folder), REPAIRED)
    chain = Chain.read(chain_path(home, market))
    months, sound = _months(asked, chain), set()
    for month, fault in _look(months, chain, explain=False):
        if fault is None:
            sound.add(month.name)
            yield checked(month.path, "")
    damage, faults = _chain_fault(chain, months), list[_Fault]()
    if damage or len(sound) < len(months) or (asked.repair and months):
        with nullcontext() if read_only else chain_lock(home, market, begin=False):
            if damage or len(sound) < len(months):
                # Check again under the lock: a writer may have replaced files between the two reads.
                chain = Chain.read(chain_path(home, market))
                damage = _chain_fault(chain, months := _months(asked, chain))
                months = [month for month in months if month.name not in sound]
                faults = [fault for _, fault in _look(months, chain, explain=True) if fault]
            if asked.repair:
                _repair(asked, damage, faults)
    if damage:
        outcome = "a new chain begins with the rows that are whole"
        yield checked(chain_path(home, market), damage, outcome=outcome)
    yield from (_stored(asked, fault) for fault in faults)
    if chain and chain.rows_before:
        asked.rows_before[market] = chain.rows_before


def _months(asked: Asked, chain: Chain | None) -> list[_Month]:
    """Return all month files of a market, also missing files recorded in the chain or in an index."""
    found = set()
    for tree in TREES:
        for series in asked.series(tree.name):
            folder = series.folder(asked.home, tree.name)
            index = sound_record(folder / INDEX, MonthIndex, index_subject(folder)) or MonthIndex()
            # Without a previous digest the file may never have been written: the index is written first.
            written = {month for month, entry in index.months.items() if entry.previous}
            found |= {(series, tree.name, month) for month in written | {p.stem for p in month_files(folder)}}
    for match in map(_PLACE.fullmatch, chain.files if chain and not chain.fault else ()):
        if match:
            series = SeriesId(asked.market, match[4], match[3])  # type: ignore[arg-type]
            found.add((series, match[1], match[5]))
    trees, base = {tree.name: tree for tree in TREES}, market_home(asked.home, asked.market)
    paths = {one: one[0].folder(asked.home, one[1]) / f"{one[2]}.parquet" for one in found}
    return sorted(
        (_Month(below(base, path), path, series, trees[name]) for (series, name, _), path in paths.items()),
        key=lambda month: month.name,
    )


def _chain_fault(chain: Chain | None, months: list[_Month]) -> str:
    if chain is None:
        return "the file is missing, though rows were stored with lines in it" if months else ""
    return chain.fault if months or chain.lines else ""  # else the file may not be cpb's


def _look(months: list[_Month], chain: Chain | None, explain: bool) -> Iterator[tuple[_Month, _Fault | None]]:
    """Yield each month file with its fault or None; arguments as in `_fault`."""
    usable = None if chain is None or chain.fault else chain
    pool = ThreadPoolExecutor(_THREADS)
    try:
        yield from zip(months, pool.map(lambda month: _fault(month, usable, explain), months), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def _fault(month: _Month, chain: Chain | None, explain: bool) -> _Fault | None:
    """Return the fault of a month file. Bytes that do not match the recorded digest are not parsed in this process.

    Args:
        chain: None if it is missing or damaged.
        explain: find the row that does not match in such bytes, in a child process.
    """
    record = chain.files.get(month.name) if chain else None
    content, doubt = b"", ""
    try:
        content = read_bytes(month.path)
    except FileNotFoundError:
        return _Fault(month, _GONE)
    except DamagedError as error:
        if error.code == UNREADABLE:
            return _Fault(month, str(error), "allow reading")
        doubt = str(error)
    if doubt or (record and hashlib.sha256(content).hexdigest() != record.file_sha256):
        found = _explained(month, record) if explain and record else Finding("")
        found = Finding("; ".join(filter(None, (doubt, found.reason))), found.is_whole and not doubt)
    else:
        found = _compared(month, content, None if chain is None else record or FileRecord())
        if not found.reason:
            return None
    return _Fault(month, found.reason, "register" if found.is_whole else "quarantine")


def _compared(month: _Month, content: bytes, record: FileRecord | None) -> Finding:
    try:
        return compare(
            content, record.slices if record else None, (month.series, month.tree, month.path.stem)
        )
    except DamagedError as error:
        return Finding(str(error))


def _explained(month: _Month, record: FileRecord) -> Finding:
    """Return the fault of a file whose digest differs from the chain's."""
    found = compare_isolated(month.path, record.slices, (month.series, month.tree, month.path.stem))
    if found is None:
        line = record.slices[0].line
        return Finding(f"no rows can be read from it; line {line} of the chain tells of its first batch")
    same = f"its rows are those of the chain, but its bytes are not those of line {record.slices[-1].line}"
    return found if found.reason else Finding(same, is_whole=True)


def _repair(asked: Asked, chain_fault: str, faults: list[_Fault]) -> None:
    """Repair what can be repaired; the caller holds the chain's lock."""
    home, market = asked.home, asked.market
    if chain_fault:
        restart(home, market)
    lost = [(f.month.series, f.month.tree, f.month.path.stem) for f in faults if f.remedy == "quarantine"]
    if lost:
        quarantine(home, market, lost, "it is damaged, as `cpb verify` says")
    if whole := [(f.month.series, f.month.tree, f.month.path) for f in faults if f.remedy == "register"]:
        register_rows(home, market, whole)
    for tree in TREES:
        for series in asked.series(tree.name):
            if month_files(folder := series.folder(home, tree.name)):
                record_missing(folder)


def _stored(asked: Asked, fault: _Fault) -> Stored:
    _, path, series, tree = fault.month
    if fault.remedy == "allow reading":
        return checked(path, fault.reason, allow_reading(path))
    if fault.remedy == "register":
        return checked(
            path, fault.reason, VERIFY, "a line of the chain says that its rows were there before it"
        )
    command = forecast_command(series) if asked.repair or tree is LEDGER else VERIFY
    done = "its digest is removed" if fault.reason == _GONE else "set aside"
    return checked(path, fault.reason, command, f"{done}; {consequence(series, tree)}")
