"""Finds damaged files of forecasts and scores, and what the chain does not vouch for: lines, rows, whole files."""

import hashlib
import re
import shlex
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import DamagedError
from schemas.handover import Damage
from schemas.identity import SPOT, SeriesId, market_home, stored_series
from tasks.forecasting.chain import adopt, chain_lock, lose, restart
from tasks.forecasting.commit import pending_path
from tasks.forecasting.index import INDEX, MonthIndex, index_subject, month_files, record_missing
from tasks.forecasting.lines import Chain, FileRecord, chain_path, first_misfit
from tasks.forecasting.months import (
    LEDGER,
    TREES,
    UNREADABLE,
    Tree,
    consequence,
    forecast_command,
    parse_rows,
    read_bytes,
)
from tasks.forecasting.suspects import described, inspect, rows_fault
from tasks.storage.damage import REPAIRED, VERIFY, Seen, damage_at, unseen
from tasks.storage.records import parse_record, set_aside

_THREADS = 2  # of Python; polars and the hashes run beside them
_PLACE = re.compile(r"interval=\w+/symbol=\w+/[0-9]{4}-[0-9]{2}\.parquet")


@dataclass(frozen=True)
class _MonthFile:
    """A month file of a series, by its place in the store."""

    series: SeriesId
    tree: Tree
    path: Path


@dataclass(frozen=True)
class _Fault:
    """What is wrong with a file.

    `of` is None for a record of digests and for the chain. `is_whole`: its rows keep their contract and those that
    have a line fit it, so that a line for the rest is all it needs.
    """

    path: Path
    reason: str
    of: _MonthFile | None = None
    code: str = ""
    is_whole: bool = False


def verify(
    home: Path,
    market: str = SPOT,
    *,
    repair: bool = False,
    seen: Seen = unseen,
    before: Callable[[int], None] = lambda _rows: None,
) -> Iterator[Damage]:
    """Yield what is damaged in a market's forecasts, its scores and their chain.

    Args:
        repair: set damaged files aside, with a line that says so; scores are then made again by the next
            `cpb forecast`, forecasts are lost. Rows without a line get one that says that they were there before it.
            In place of a damaged chain a new one begins. Files without a digest, written before digests were
            recorded, get one.
        seen: called with each file that is checked.
        before: called with the number of rows that the chain only found there, where there are any.
    """
    if pending_path(home, market).exists():
        with chain_lock(home, market, begin=False):  # finishes it
            pass
    files = _month_files(home, market)
    faults, chain = _find(home, market, files, seen)
    if faults or (repair and files):
        with chain_lock(home, market, begin=False):
            if faults:  # again while no writer is at work: one may have replaced files between two looks
                suspects = {fault.path for fault in faults}
                faults, chain = _find(home, market, _month_files(home, market), only=suspects)
            if repair:
                _repair(home, market, faults, chain)
    if chain and chain.rows_before:
        before(chain.rows_before)
    yield from (_damage(home, fault, repair and fault.code != UNREADABLE) for fault in faults)


def _month_files(home: Path, market: str) -> dict[str, _MonthFile]:
    """Return all month files of a market, by their path below the market's home."""
    base = market_home(home, market)
    return {
        path.relative_to(base).as_posix(): _MonthFile(series, tree, path)
        for tree in TREES
        for series in stored_series(home, tree.name)
        if series.market == market
        for path in month_files(series.folder(home, tree.name))
    }


def _find(
    home: Path,
    market: str,
    files: dict[str, _MonthFile],
    seen: Seen = unseen,
    only: Collection[Path] | None = None,
) -> tuple[list[_Fault], Chain | None]:
    """Return all that is wrong (with the files `only`, whose rows are then looked for), and what the chain says."""
    path = chain_path(home, market)
    chain = Chain.read(path)
    faults = [*_index_faults(home, market, files, chain)]
    if chain is None and files:
        faults.append(_Fault(path, "the file is missing, though rows were stored with lines in it"))
    elif chain is not None and chain.fault and (files or chain.lines):  # else nothing says that it is cpb's
        faults.append(_Fault(path, chain.fault))
    looked = [name for name, file in files.items() if only is None or file.path in only]
    with ThreadPoolExecutor(_THREADS) as pool:
        for name, fault in zip(
            looked,
            pool.map(lambda name: _look(home, name, files[name], chain, only is not None), looked),
            strict=True,
        ):
            seen(files[name].path)
            faults += [fault] if fault else []
    return faults, chain


def _index_faults(
    home: Path, market: str, files: dict[str, _MonthFile], chain: Chain | None
) -> Iterator[_Fault]:
    """Yield records of digests that cannot be read, and files that they or the chain speak of, but that are gone."""
    base = market_home(home, market)
    gone: dict[str, _MonthFile] = {}
    for tree in TREES:
        for series in stored_series(home, tree.name):
            if series.market != market:
                continue
            folder = series.folder(home, tree.name)
            try:
                known = parse_record(folder / INDEX, MonthIndex, of=index_subject(folder))
            except FileNotFoundError:
                continue
            except DamagedError as error:
                yield _Fault(folder / INDEX, f"the record of digests cannot be read: {error}")
                continue
            # Without an older digest a file may never have been written: the index is written first.
            for month in (month for month, entry in known.months.items() if entry.previous):
                path = folder / f"{month}.parquet"
                gone[path.relative_to(base).as_posix()] = _MonthFile(series, tree, path)
    if chain is not None and not chain.fault:
        gone |= {name: file for name in chain.files if (file := _place(base, market, name))}
    for name in sorted(gone.keys() - files.keys()):
        yield _Fault(gone[name].path, "the file is missing", gone[name])


def _place(base: Path, market: str, name: str) -> _MonthFile | None:
    """Return the month file that a line of the chain speaks of; None where the name is none that cpb gives."""
    top, _, rest = name.partition("/")
    tree = next((tree for tree in TREES if top.partition("-")[0] == tree.name), None)
    if tree is None or not _PLACE.fullmatch(rest):
        return None
    interval, symbol, _ = (part.partition("=")[2] for part in rest.split("/"))
    series = SeriesId(market, symbol, interval)  # type: ignore[arg-type]
    return _MonthFile(series, tree, base / name)


def _look(home: Path, name: str, file: _MonthFile, chain: Chain | None, explain: bool) -> _Fault | None:
    """Return what is wrong with a month file. Bytes that are not the recorded ones are not parsed in this process.

    Args:
        explain: let a child process look for the row that does not fit in such bytes.
    """
    record = chain.files.get(name) if chain and not chain.fault else None
    try:
        content = read_bytes(file.path)
    except DamagedError as error:
        row = (
            ""
            if record is None or error.code == UNREADABLE or not explain
            else _suspect(home, file, record)[0]
        )
        return _Fault(file.path, "; ".join(filter(None, (str(error), row))), file, error.code)
    if record and hashlib.sha256(content).hexdigest() != record.file_sha256:
        reason, is_whole = _suspect(home, file, record) if explain else ("", False)
        return _Fault(file.path, reason, file, is_whole=is_whole)
    try:
        rows = parse_rows(file.tree, content)
    except DamagedError as error:
        return _Fault(file.path, str(error), file, error.code)
    if reason := rows_fault(rows, file.series, file.tree, file.path.stem):
        return _Fault(file.path, reason, file)
    if chain is None or chain.fault:
        return None
    if record is None:
        return _Fault(file.path, "no line of the chain speaks of it", file, is_whole=True)
    if misfit := first_misfit(rows, record.slices):
        return _Fault(file.path, described(rows, *misfit), file, is_whole=misfit[1] == 0)
    return None


def _suspect(home: Path, file: _MonthFile, record: FileRecord) -> tuple[str, bool]:
    """Return what is wrong with a file that is not as the chain left it, and whether its rows are whole."""
    first, last = record.slices[0].line, record.slices[-1].line
    found = inspect(file.path, record.slices, (home, file.series, file.tree))
    if not found.readable:
        return f"no rows can be read from it; line {first} of the chain tells of its first batch", False
    if found.contract or found.misfit:
        is_whole = not found.contract and found.misfit is not None and found.misfit[1] == 0
        return "; ".join(filter(None, (found.contract, found.row))), is_whole
    return f"its rows are those of the chain, but its bytes are not those of line {last}", True


def _repair(home: Path, market: str, faults: list[_Fault], chain: Chain | None) -> None:
    """Mend what can be; the caller holds the chain's lock."""
    for fault in faults:
        if fault.path.name == INDEX:
            set_aside(fault.path, fault.reason)
    if chain is None or chain.fault:
        restart(home, market)
    of = [(fault.of, fault) for fault in faults if fault.of and fault.code != UNREADABLE]
    lost = [(file.series, file.tree, file.path.stem) for file, fault in of if not fault.is_whole]
    if lost:
        lose(home, market, lost, "it is damaged, as `cpb verify` says")
    adopt(home, market, [(file.series, file.tree, file.path) for file, fault in of if fault.is_whole])
    for folder in {file.path.parent for file in _month_files(home, market).values()}:
        record_missing(folder)


def _damage(home: Path, fault: _Fault, mended: bool) -> Damage:
    of = fault.of
    if fault.code == UNREADABLE:
        return damage_at(home, fault.path, fault.reason, f"chmod u+r {shlex.quote(str(fault.path))}")
    if of is None:
        outcome = REPAIRED if fault.path.name == INDEX else "a new chain begins with the rows that are whole"
        return damage_at(home, fault.path, fault.reason, VERIFY, mended, outcome=outcome)
    if fault.is_whole:
        outcome = "a line of the chain says that its rows were there before it"
        return damage_at(home, fault.path, fault.reason, VERIFY, mended, outcome=outcome)
    command = forecast_command(of.series) if mended or of.tree is LEDGER else VERIFY
    outcome = f"{'set aside' if fault.reason != 'the file is missing' else 'its digest is removed'}; "
    outcome += consequence(of.series, of.tree)
    return damage_at(home, fault.path, fault.reason, command, mended, outcome=outcome)
