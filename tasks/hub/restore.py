"""The way back: the chain and the months of forecasts and scores, from a published record.

The published folder holds the chain byte for byte and every row as a JSON line, so what is lost in a home is made from
them, and compared with the chain's digests before it takes its place. A file that is replaced is kept in
`HOME/set-aside`.
"""

import gzip
import json
import shutil
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from cpbmodels.files import open_regular
from schemas.contract import check_columns
from schemas.errors import CpbError, DamagedError
from schemas.forecast_rows import ADDED_COLUMNS, OF_BEFORE
from schemas.identity import SeriesId, market_home, tree_of
from tasks.forecasting.chain import complete_pending, pending_path, record_lock
from tasks.forecasting.lines import Chain, FileRecord, chain_path, first_misfit
from tasks.forecasting.months import (
    NO_PARQUET,
    Tree,
    files_of_market,
    month_bytes,
    owner_of,
    parse_rows,
)
from tasks.forecasting.published import CHAIN, RESTORE, merged_chain, published_rows, rows_name
from tasks.storage.files import write_bytes

_TIME = pl.Datetime("us", "UTC")  # a number of microseconds in the JSON lines

SET_ASIDE = "set-aside"
"""Folder below a market's home with what restored files replaced, by the time of the command."""

_ROW_BYTES = 20_000
"""Far more than the JSON line of a row: a file that unpacks to more than that for each of its rows is none of cpb's."""


@dataclass
class Restored:
    """What was restored: the number of lines that the chain lacked, the months, and where the replaced files are.

    `failures`: a sentence for each file that is still damaged.
    """

    lines: int = 0
    months: list[str] = field(default_factory=list)
    set_aside: Path | None = None
    failures: list[str] = field(default_factory=list)


def restore_record(
    home: Path, market: str, folder: Path | None = None, *, set_aside: bool = False
) -> Restored:
    """Bring a market's chain, forecasts and scores back from a published record; intact files stay as they are.

    Lines that were stored since the record was published are kept, with their rows. Killed at any moment, the same
    command goes on.

    Args:
        folder: with the published record, as fetched from the Hub; default the market's packaged folder.
        set_aside: go back to the record as published: what was stored since, or beside it, is moved away.

    Raises:
        CpbError: there is no record in the folder, or (code `other-record`) the stored chain is another one.
        DamagedError: the published chain is damaged, or of another market.
    """
    folder = folder or tree_of(home, "hub", market)
    data = _published_chain(folder, market)
    published = {name: record.rows for name, record in (Chain.read(folder / CHAIN) or Chain()).files.items()}
    stored, pending, base = chain_path(home, market), pending_path(home, market), market_home(home, market)
    done = Restored()
    aside = base / SET_ASIDE / f"{datetime.now(UTC):%Y-%m-%dT%H%M%S.%fZ}"

    def keep(path: Path) -> None:
        """Copy a file that is to be replaced or removed."""
        if path.is_file():
            done.set_aside = aside
            copy = aside / path.relative_to(base)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)

    with record_lock(home, market):
        # Under the record's lock alone: the chain's lock would refuse a home whose chain is lost, which is
        # why this runs.
        before = stored.read_bytes() if stored.is_file() else b""
        if set_aside:
            lines: bytes | None = data
        else:
            # A stored chain that goes on from the published one is kept: its newest lines are published
            # nowhere.
            lines = before if before.startswith(data) else merged_chain(before, data)
        if lines is None:
            raise CpbError(
                f"{stored} has lines of another chain than the record published in {folder}, so nothing was restored; "
                f"with --set-aside what is stored is moved to {base / SET_ASIDE}, and the published record takes its "
                "place",
                code="other-record",
                field=str(stored),
            )
        if set_aside and pending.exists():
            keep(pending)
            pending.unlink()
        if lines != before:
            done.lines = len(set(lines.splitlines()) - set(before.splitlines()))
            if not lines.startswith(before):
                keep(stored)
            # The chain first: after a kill the months that are missing are found by it again.
            write_bytes(stored, lines)
        try:
            complete_pending(home, market)
        except DamagedError as error:
            done.failures.append(f"{error}; or add --set-aside")
        chain = Chain.read(stored) or Chain()
        if chain.fault:
            done.failures.append(f"{stored} is damaged: {chain.fault}; {RESTORE}, or add --set-aside")
        for name, record in chain.files.items():
            if not (owner := owner_of(name, market)):
                continue
            path = base / name
            fault = _misfit(path, owner[1], record)
            # An intact month stays byte for byte, also where the published copy is older.
            if not fault:
                continue
            try:
                rows = _published_rows(folder, name, owner[1], record)
            except DamagedError as error:
                is_way = not set_aside and published_rows(folder, name) >= published.get(name, 0)
                back = ", or add --set-aside to go back to the record as it was published" if is_way else ""
                done.failures.append(f"{path.relative_to(home)}: {fault}, and {error}: {RESTORE}{back}")
                continue
            keep(path)
            write_bytes(path, month_bytes(path, rows))
            done.months.append(path.relative_to(home).as_posix())
        for _, _, path in list(files_of_market(home, market)) if set_aside else ():
            if path.relative_to(base).as_posix() not in chain.files:
                keep(path)
                path.unlink()
    return done


def _published_chain(folder: Path, market: str) -> bytes:
    path = folder / CHAIN
    chain = Chain.read(path)
    if chain is None or not (chain.lines or chain.fault):
        raise CpbError(
            f"there is no published record in {folder}: fetch it from where it was published, as in `hf download "
            "USER/NAME --local-dir copy`, then name that folder with --record",
            code="no-record",
            field=str(folder),
        )
    if chain.fault:
        remedy = "fetch the record anew from where it was published, and name its folder with --record"
        raise DamagedError.of(path, chain.fault, remedy)
    for name in chain.files:
        if (
            not (owner := owner_of(name, market))
            or not _is_place(name, *owner)
            or _is_other(folder, name, *owner)
        ):
            raise DamagedError(
                f"{path} is not the record of market {market}: its {name} is of another one; name that market, or the "
                "folder of this market's record",
                field=str(path),
            )
    return path.read_bytes()


def _is_other(folder: Path, name: str, series: SeriesId, _tree: Tree) -> bool:
    """Whether the published rows of a month are of another market's models; False if they cannot be read."""
    with suppress(OSError, EOFError, zlib.error, ValueError, KeyError, TypeError):
        with open_regular(folder / rows_name(name)) as packed, gzip.GzipFile(fileobj=packed) as file:
            first = json.loads(file.readline(_ROW_BYTES))
        return not str(first["model_version"]).startswith(f"{series.registered}/")
    return False


def _is_place(name: str, series: SeriesId, tree: Tree) -> bool:
    folder = series.folder(Path(), tree.name)
    return Path(name).parent == folder.relative_to(market_home(Path(), series.market))


def _misfit(path: Path, tree: Tree, record: FileRecord) -> str:
    """Return what of a stored month does not fit the chain, "" if it does."""
    try:
        misfit = first_misfit(parse_rows(path, tree.schema), record.slices)
    except FileNotFoundError:
        return "it is missing"
    except DamagedError as error:
        return str(error)
    if not misfit:
        return ""
    return (
        f"row {misfit[0] + 1} is not that of the chain" if misfit[1] else f"row {misfit[0] + 1} is in no line"
    )


def _published_rows(folder: Path, name: str, tree: Tree, record: FileRecord) -> pl.DataFrame:
    """Return a month's rows, as many as the chain has; raises `DamagedError` with the reason if they do not fit it."""
    place = rows_name(name)
    try:
        with open_regular(folder / place) as packed, gzip.GzipFile(fileobj=packed) as file:
            # Bounded, since the folder came from elsewhere: a small file may unpack to any size.
            content = file.read(_ROW_BYTES * record.rows)
        # A column that the rows of an older version lack is null.
        schema = pl.Schema(tree.schema)
        raw = {name: pl.Int64 if kind == _TIME else kind for name, kind in schema.items()}
        rows = check_columns(pl.read_ndjson(content, schema=raw).cast(schema), schema)[: record.rows]
    except FileNotFoundError:
        raise DamagedError("it is not among the published rows") from None
    except (*NO_PARQUET, EOFError, zlib.error, CpbError) as error:
        raise DamagedError(
            f"the published {place} cannot be read ({str(error).splitlines()[0][:100]})"
        ) from error
    if misfit := first_misfit(rows, record.slices):
        raise DamagedError(f"the published rows do not have those of line {misfit[1]}")
    if ADDED_COLUMNS.keys() <= schema.keys() and rows.select(OF_BEFORE.all()).item():
        return rows.drop(ADDED_COLUMNS)  # as an older version stored them
    return rows
