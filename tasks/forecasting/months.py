"""Month files: `HOME/forecasts/interval=IV/symbol=SYM/YYYY-MM.parquet`, and the same under `ledger`.

Rows are only appended (`chain.append`), by rename; one file per month (with a file per forecast, 40 hourly series would
make 350,000 files a year). A damaged file is reported and skipped on reading, and set aside on writing.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from schemas.errors import DamagedError, MemberError
from schemas.forecasts import (
    FORECAST_SCHEMA,
    KEY,
    LEDGER_SCHEMA,
    check_columns,
    check_forecasts,
    check_ledger,
)
from schemas.identity import SeriesId
from tasks.forecasting.index import intact, log_once, month_files
from tasks.storage.verify import VERIFY

NO_PARQUET = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError)
"""Errors of polars for bytes that are not a complete parquet file. Some of them cause a Rust panic."""

UNREADABLE = "unreadable"
"""Code of the error for a file that this user has no permission to read."""

LOSS = "the forecasts in it are lost unless a backup has the file"
REMEDY = f"restore its folder from a backup, or set it aside with `{VERIFY}`"


@dataclass(frozen=True)
class Tree:
    """One kind of month files.

    `name` is its folder below the home, `schema` and `check` the contract of its rows, `key` the columns that identify
    a row. `companions` refer to this tree's rows: if a month is lost, their files of that month are useless.
    """

    name: str
    schema: dict[str, Any]
    key: tuple[str, ...]
    check: Callable[[pl.DataFrame], pl.DataFrame]
    companions: tuple["Tree", ...] = ()


LEDGER = Tree("ledger", LEDGER_SCHEMA, KEY, check_ledger)
FORECASTS = Tree("forecasts", FORECAST_SCHEMA, KEY, check_forecasts, companions=(LEDGER,))
TREES = (LEDGER, FORECASTS)


def month_of(moment: datetime) -> str:
    """Return the month of a UTC time, as `2024-01`."""
    return f"{moment.year:04d}-{moment.month:02d}"


def read_months(
    home: Path, series: SeriesId, tree: Tree, since: datetime | None = None, until: datetime | None = None
) -> pl.DataFrame:
    """Return the rows of a series with `issued_at` in the bounds (inclusive).

    A damaged file is skipped and logged once; the other months are still read.
    """
    first, last = month_of(since) if since else "", month_of(until) if until else "9999-12"
    files = [f for f in month_files(series.folder(home, tree.name)) if first <= f.stem <= last]
    parts = [rows for file in files if (rows := read_month(home, series, tree, file.stem)) is not None]
    frame = pl.concat(parts) if parts else pl.DataFrame(schema=tree.schema)
    if since:
        frame = frame.filter(pl.col("issued_at") >= since)
    return frame.filter(pl.col("issued_at") <= until) if until else frame


def read_month(home: Path, series: SeriesId, tree: Tree, month: str) -> pl.DataFrame | None:
    """Return a month's rows; None if the file is missing, or damaged, which is logged once."""
    path = series.folder(home, tree.name) / f"{month}.parquet"
    try:
        return load(home, series, tree, path)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        log_once(path, str(error))
        return None


def count_rows(path: Path) -> int:
    """Return the row count in a file's footer; -1 if the file is missing or damaged."""
    try:
        return int(
            pl.scan_parquet(path, glob=False, hive_partitioning=False).select(pl.len()).collect().item()
        )
    except NO_PARQUET:
        return -1


def load(home: Path, series: SeriesId, tree: Tree, path: Path) -> pl.DataFrame:
    """Return a month file's rows.

    Raises:
        FileNotFoundError: the file is missing.
        DamagedError: it is not the file written, or (code `UNREADABLE`) it may not be read; the message states the
            file, the reason and a command.
    """
    try:
        return parse_rows(tree, read_bytes(path))
    except DamagedError as error:
        place = path.relative_to(home)
        if error.code == UNREADABLE:
            raise DamagedError(f"{place} {error}; make it readable for this user", code=UNREADABLE) from error
        raise DamagedError(
            f"{place} is damaged: {error}; {consequence(series, tree, REMEDY)}", field=place.as_posix()
        ) from error


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a month file if they have the recorded digest, or if none is recorded.

    Raises:
        FileNotFoundError: the file is missing.
        DamagedError: the digest differs, or (code `UNREADABLE`) it may not be read; the message is only the reason.
    """
    try:
        return intact(path)
    except FileNotFoundError:
        raise
    except PermissionError as error:  # its content may be intact: it must not be set aside
        raise DamagedError(f"cannot be read ({error.strerror})", code=UNREADABLE) from error
    except OSError as error:
        raise _no_rows(error) from error


def parse_rows(tree: Tree, content: bytes) -> pl.DataFrame:
    """Return the rows in a month file's bytes; the message of a `DamagedError` is only the reason."""
    try:
        rows = pl.read_parquet(io.BytesIO(content), hive_partitioning=False)
        return check_columns(rows, tree.schema)
    except MemberError as error:
        raise DamagedError(str(error)) from error
    except NO_PARQUET as error:
        raise _no_rows(error) from error


def _no_rows(error: BaseException) -> DamagedError:
    text = (str(error).splitlines() or [type(error).__name__])[0][:80]
    return DamagedError(f"no rows can be read from it ({text})")


def consequence(series: SeriesId, tree: Tree, of_forecasts: str = LOSS) -> str:
    """Return how the loss of a month file is repaired: a command for scores, the given sentence for forecasts."""
    return f"`{forecast_command(series)}` scores its rows again" if tree is LEDGER else of_forecasts


def forecast_command(series: SeriesId) -> str:
    """Return the command that forecasts a series, which also scores due forecasts."""
    return f"cpb forecast {series.options}"
