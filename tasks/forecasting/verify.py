"""Finds damaged files of forecasts and scores, and what the chain does not vouch for: lines, rows, whole files."""

import re
import shlex
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from schemas.errors import DamagedError, MemberError
from schemas.forecasts import FORECAST_SCHEMA
from schemas.handover import Damage
from schemas.identity import SPOT, SeriesId, market_home, stored_series
from tasks.forecasting.chain import adopt, chain_lock, lose, pending_path, restart
from tasks.forecasting.index import INDEX, MonthIndex, month_files, record_missing
from tasks.forecasting.lines import Chain, chain_path, first_misfit
from tasks.forecasting.months import (
    FORECASTS,
    LEDGER,
    TREES,
    UNREADABLE,
    Tree,
    consequence,
    forecast_command,
    read_file,
)
from tasks.storage.damage import REPAIRED, VERIFY, Seen, damage_at, unseen
from tasks.storage.digests import file_digest
from tasks.storage.records import EARLIER, parse_record, set_aside

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
    earlier: Seen = unseen,
    before: Callable[[int], None] = lambda _rows: None,
) -> Iterator[Damage]:
    """Yield what is damaged in a market's forecasts, its scores and their chain.

    Args:
        repair: set damaged files aside, with a line that says so; scores are then made again by the next
            `cpb forecast`, forecasts are lost. Rows without a line get one that says that they were there before it.
            In place of a damaged chain a new one begins. Files without a digest, written before digests were
            recorded, get one.
        seen: called with each file that is checked.
        earlier: called with each record of digests that an earlier version wrote.
        before: called with the number of rows that the chain only found there, where there are any.
    """
    if pending_path(home, market).exists():
        with chain_lock(home, market, begin=False):  # finishes it
            pass
    files = _month_files(home, market)
    faults, chain = _find(home, market, files, seen, earlier)
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
    earlier: Seen = unseen,
    only: Collection[Path] | None = None,
) -> tuple[list[_Fault], Chain | None]:
    """Return all that is wrong (with the files `only`), and what the chain says."""
    path = chain_path(home, market)
    chain = Chain.read(path)
    faults = [*_index_faults(home, market, files, chain, earlier)]
    if chain is None and _was_chained(files):
        faults.append(_Fault(path, "the file is missing, though rows were stored with lines in it"))
    elif chain is not None and chain.fault:
        faults.append(_Fault(path, chain.fault))
    looked = [name for name, file in files.items() if only is None or file.path in only]
    with ThreadPoolExecutor(_THREADS) as pool:
        for name, fault in zip(
            looked, pool.map(lambda name: _look(home, name, files[name], chain), looked), strict=True
        ):
            seen(files[name].path)
            faults += [fault] if fault else []
    return faults, chain


def _was_chained(files: dict[str, _MonthFile]) -> bool:
    """Whether a file of forecasts has columns that only came with the chain."""
    for file in files.values():
        if file.tree is FORECASTS:
            try:
                if list(pl.read_parquet_schema(file.path)) == list(FORECAST_SCHEMA):
                    return True
            except (pl.exceptions.PolarsError, OSError):
                continue  # it is named as damaged by itself
    return False


def _index_faults(
    home: Path, market: str, files: dict[str, _MonthFile], chain: Chain | None, earlier: Seen
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
                known = parse_record(folder / INDEX, MonthIndex)
            except FileNotFoundError:
                continue
            except DamagedError as error:
                if error.code == EARLIER:
                    earlier(folder / INDEX)
                else:
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


def _look(home: Path, name: str, file: _MonthFile, chain: Chain | None) -> _Fault | None:
    """Return what is wrong with a month file."""
    try:
        rows = file.tree.check(read_file(home, file.series, file.tree, file.path))
    except (DamagedError, MemberError) as error:
        reason = "; ".join(text for text in (str(error), _damaged_row(file.path, name, chain)) if text)
        return _Fault(file.path, reason, file, error.code)
    if rows.select("symbol", "timeframe").unique().rows() != [(file.series.symbol, file.series.timeframe)]:
        return _Fault(file.path, f"it holds rows of another series than {file.series}", file)
    if rows["issued_at"].dt.strftime("%Y-%m").unique().to_list() != [file.path.stem]:
        return _Fault(file.path, f"it holds rows of another month than {file.path.stem}", file)
    if chain is None or chain.fault:
        return None
    if (record := chain.files.get(name)) is None:
        return _Fault(file.path, "no line of the chain speaks of it", file, is_whole=True)
    if misfit := first_misfit(rows, record.slices):
        return _Fault(file.path, _described(rows, *misfit), file, is_whole=misfit[1] == 0)
    if file_digest(file.path) != record.file_sha256:
        line = record.slices[-1].line
        text = f"its rows are those of the chain, but its bytes are not those of line {line}"
        return _Fault(file.path, text, file, is_whole=True)
    return None


def _damaged_row(path: Path, name: str, chain: Chain | None) -> str:
    """Return which row of a damaged file is not the chain's, as far as rows can be read from it; else an empty text."""
    record = chain.files.get(name) if chain and not chain.fault else None
    if record is None:
        return ""
    try:
        rows = pl.read_parquet(path.read_bytes(), hive_partitioning=False)
        misfit = first_misfit(rows, record.slices)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError):
        return ""
    return _described(rows, *misfit) if misfit else ""


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
