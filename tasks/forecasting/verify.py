"""Finds damaged files of forecasts and scores, and sets them aside."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import CpbError, DamagedError, MemberError
from schemas.handover import Damage
from schemas.identity import SPOT, SeriesId, stored_series
from tasks.forecasting.index import INDEX, MonthIndex, forget, month_files, record_missing, writing
from tasks.forecasting.months import (
    LEDGER,
    TREES,
    UNREADABLE,
    Tree,
    consequence,
    forecast_command,
    read_file,
    set_month_aside,
)
from tasks.storage.damage import VERIFY, Seen, damage_at, unseen
from tasks.storage.records import EARLIER, parse_record, set_aside


def verify(
    home: Path, market: str = SPOT, *, repair: bool = False, seen: Seen = unseen, earlier: Seen = unseen
) -> Iterator[Damage]:
    """Yield what is damaged in a market's forecasts and scores.

    Args:
        repair: set damaged files aside; scores are then made again by the next `cpb forecast`, forecasts are lost.
            Files without a digest, written before digests were recorded, get one.
        seen: called with each file that is checked.
        earlier: called with each record of digests that an earlier version wrote.
    """
    for tree in TREES:
        for series in stored_series(home, tree.name):
            if series.market == market:
                yield from _verify_folder(home, series, tree, repair, seen, earlier)


def _verify_folder(
    home: Path, series: SeriesId, tree: Tree, repair: bool, seen: Seen, earlier: Seen
) -> Iterator[Damage]:
    folder = series.folder(home, tree.name)
    known = MonthIndex()
    try:
        known = parse_record(folder / INDEX, MonthIndex)
    except FileNotFoundError:
        pass
    except DamagedError as error:
        if error.code == EARLIER:
            earlier(folder / INDEX)
        else:
            if repair:
                with writing(folder):
                    set_aside(folder / INDEX, str(error))
            reason = f"the record of digests cannot be read: {error}"
            yield damage_at(home, folder / INDEX, reason, VERIFY, repair)
    present = month_files(folder)
    for path in present:
        seen(path)
        fault = _fault(home, series, tree, path)
        if fault is None:
            continue
        mended = repair and fault.code != UNREADABLE
        if mended:
            set_month_aside(home, series, tree, path.stem, str(fault))
        command = _command(series, tree, path, fault, mended)
        yield damage_at(
            home, path, str(fault), command, mended, outcome=f"set aside; {consequence(series, tree)}"
        )
    # Without an older digest a file may never have been written: the index is written first.
    lost = {m for m, entry in known.months.items() if entry.previous} - {path.stem for path in present}
    for month in sorted(lost):
        if repair:
            with writing(folder):
                forget(folder, month)
        command = forecast_command(series) if repair or tree is LEDGER else VERIFY
        lost_file = folder / f"{month}.parquet"
        outcome = f"its digest is removed; {consequence(series, tree)}"
        yield damage_at(home, lost_file, "the file is missing", command, repair, outcome=outcome)
    if repair and present:
        with writing(folder):
            record_missing(folder)


def _fault(home: Path, series: SeriesId, tree: Tree, path: Path) -> CpbError | None:
    """Return what is wrong with a month file."""
    try:
        rows = tree.check(read_file(home, series, tree, path))
    except (DamagedError, MemberError) as error:
        return error
    if rows.select("symbol", "timeframe").unique().rows() != [(series.symbol, series.timeframe)]:
        return DamagedError(f"it holds rows of another series than {series}")
    if rows["issued_at"].dt.strftime("%Y-%m").unique().to_list() != [path.stem]:
        return DamagedError(f"it holds rows of another month than {path.stem}")
    return None


def _command(series: SeriesId, tree: Tree, path: Path, fault: CpbError, mended: bool) -> str:
    if fault.code == UNREADABLE:
        return f"chmod u+r {shlex.quote(str(path))}"
    return forecast_command(series) if mended or tree is LEDGER else VERIFY
