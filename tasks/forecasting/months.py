"""Month files of forecasts and scores: `HOME/forecasts/interval=IV/symbol=SYM/YYYY-MM.parquet`, also under `ledger`.

Rows are only appended (`chain.append`), by rename; one file per month (with a file per forecast, 40 hourly series would
make 350,000 files a year). A damaged file is reported and skipped on reading; writing to it fails until it is restored.

Each file holds its own digest, in its metadata: a reader then needs no second file, which a writer would have to
replace at the same moment. Bytes without a matching digest are never parsed: polars ends the process (SIGABRT, an
allocation of exabytes) for about one in a thousand flipped bits of a page, which no caller can catch.
"""

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from cpbmodels.files import read_regular
from schemas.contract import check_columns
from schemas.errors import DamagedError, MemberError
from schemas.forecast_rows import (
    ADDED_COLUMNS,
    FORECAST_SCHEMA,
    LEDGER_SCHEMA,
    check_forecasts,
    check_ledger,
    is_standstill,
    with_added_columns,
)
from schemas.identity import SeriesId, market_home, stored_series
from tasks.forecasting.lines import MONTH_FILE
from tasks.forecasting.published import way_back
from tasks.storage.model_folder import read_config
from tasks.storage.records import warn_once

NO_PARQUET = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError)
"""Errors of polars for bytes that are not a complete parquet file. Some of them cause a Rust panic."""

_KEY, _BLANK = "cpb.sha256", b"0" * 64
_MARK = b"\x18\x0a" + _KEY.encode() + b"\x18\x40"
"""The bytes before the 64 hex digits, in the footer's metadata: both texts with their lengths, as Thrift has them."""
_TAIL = 8  # a parquet file ends with the length of its footer, 4 bytes, and "PAR1"


CLOCK_STEP = timedelta(minutes=1)
"""A clock that is corrected by less, as a time service does, is no clock that was set back, and the exchange's may be
that much ahead: a live forecast may be stored so long before its last candle's close."""

IS_LIVE = (
    (pl.col("made_at") < pl.col("target_time")) & (pl.col("made_at") >= pl.col("issued_at") - CLOCK_STEP)
).fill_null(value=False)
"""Whether a forecast was made before its candle closed. One that was stored before its own last candle had closed was
stored by a clock that was set back, so it may be a replay, and is none."""


@dataclass(frozen=True)
class Tree:
    """One kind of month files: its folder below the home, the contract of its rows, and the columns to read (all)."""

    name: str
    schema: dict[str, Any]
    check: Callable[[pl.DataFrame], pl.DataFrame]
    columns: list[str] | None = None


LEDGER = Tree("ledger", LEDGER_SCHEMA, check_ledger)
FORECASTS = Tree("forecasts", FORECAST_SCHEMA, check_forecasts)
TREES = (LEDGER, FORECASTS)


def owner_of(name: str, market: str) -> tuple[SeriesId, Tree] | None:
    """Return the series and tree of a month file by its path below the market's home; None for any other path."""
    if match := MONTH_FILE.fullmatch(name):
        # The path alone decides: a chain's line names a file before it is read.
        tree = next(tree for tree in TREES if tree.name == match[1])
        return SeriesId(market, match[4], match[3]), tree  # type: ignore[arg-type]
    return None


def month_files(folder: Path) -> list[Path]:
    """Return the month files of a folder, oldest first."""
    return sorted(folder.glob("????-??.parquet"))


def files_of_market(home: Path, market: str) -> Iterator[tuple[SeriesId, Tree, Path]]:
    """Yield series, tree and path of all month files of a market."""
    for tree in TREES:
        for series in stored_series(home, tree.name):
            if series.market == market:
                for path in month_files(series.folder(home, tree.name)):
                    yield series, tree, path


def read_months(
    home: Path, series: SeriesId, tree: Tree, since: datetime | None = None, until: datetime | None = None
) -> pl.DataFrame:
    """Return the rows of a series with `issued_at` in the bounds (inclusive).

    A damaged file is skipped and logged once; the other months are still read.
    """
    first, last = f"{since:%Y-%m}" if since else "", f"{until:%Y-%m}" if until else "9999-12"
    # Names sort as their months: no file outside of the bounds is opened.
    files = [file for file in month_files(series.folder(home, tree.name)) if first <= file.stem <= last]
    parts = [rows for file in files if (rows := read_month(home, series, tree, file)) is not None]
    schema = {name: tree.schema[name] for name in tree.columns or tree.schema}
    frame = pl.concat([pl.DataFrame(schema=schema), *parts])
    if since:
        frame = frame.filter(pl.col("issued_at") >= since)
    return frame.filter(pl.col("issued_at") <= until) if until else frame


def read_month(home: Path, series: SeriesId, tree: Tree, path: Path) -> pl.DataFrame | None:
    """Return a month file's rows; None if it is missing, or damaged, which is logged once."""
    try:
        return load(home, series, tree, path)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        warn_once(str(error))
        return None


def load(home: Path, series: SeriesId, tree: Tree, path: Path) -> pl.DataFrame:
    """Return a month file's rows.

    Raises:
        FileNotFoundError: the file is missing.
        DamagedError: it is not the file written, or may not be read; the message states the file, the reason and what
            to do.
    """
    try:
        return parse_rows(path, tree.schema, tree.columns)
    except DamagedError as error:
        place = path.relative_to(home).as_posix()
        back = way_back(home, series.market, path.relative_to(market_home(home, series.market)).as_posix())
        remedy = f"{back}: until then {series} stores nothing in that month"
        raise DamagedError.of(place, error, remedy) from error


def parse_rows(path: Path, schema: dict[str, Any], columns: list[str] | None = None) -> pl.DataFrame:
    """Return the rows of a file written by `month_bytes`; errors as in `load`, but the message is only the reason.

    Args:
        columns: those to read; default all, which must then be exactly those of the schema.
    """
    try:
        # Read whole, then parsed from memory: digest and rows are of the same bytes, whatever replaces the
        # file meanwhile.
        content = read_regular(path)
        if not (start := _digest_start(content)) or content[start : start + 64] != _digest(
            path, content, start
        ):
            raise DamagedError("its sha256 differs from the recorded sha256")
        asked = columns or list(schema)
        # A file of before lacks the added columns, and polars refuses to read columns that are not there.
        readable = None if ADDED_COLUMNS.keys() & set(asked) else columns
        rows = pl.read_parquet(content, columns=readable, hive_partitioning=False)
        rows = with_added_columns(rows, schema)
        return check_columns(rows if columns is None else rows.select(columns), {n: schema[n] for n in asked})
    except FileNotFoundError:
        raise
    except MemberError as error:
        raise DamagedError(str(error)) from error
    except OSError as error:
        raise DamagedError(f"it cannot be read ({error.strerror})") from error
    except NO_PARQUET as error:
        text = (str(error).splitlines() or [type(error).__name__])[0][:80]
        raise DamagedError(f"no rows can be read from it ({text})") from error


def count_rows(path: Path) -> int:
    """Return the row count in a file's footer; -1 if the file is missing or damaged."""
    try:
        # From the footer, without the digest: it decides only whether a month is worth reading.
        return int(
            pl.scan_parquet(path, glob=False, hive_partitioning=False).select(pl.len()).collect().item()
        )
    except NO_PARQUET:
        return -1


def month_bytes(path: Path, rows: pl.DataFrame) -> bytes:
    """Return the content of the file at `path` with these rows, its digest included."""
    buffer = io.BytesIO()
    # Without statistics, which no reader uses: they are 6 kB of a file and a third of the time.
    rows.write_parquet(buffer, compression="zstd", statistics=False, metadata={_KEY: _BLANK.decode()})
    content = bytearray(buffer.getbuffer())
    # The digest lies within the file: a separate file could be lost, or be of another state than its rows.
    start = _digest_start(content)
    content[start : start + 64] = _digest(path, content, start)
    return bytes(content)


def _digest_start(content: bytes | bytearray) -> int:
    """Return where the digest begins in a file's bytes; 0 if it has none."""
    footer = max(0, len(content) - _TAIL - int.from_bytes(content[-_TAIL:][:4], "little"))
    # In the footer only: the mark may occur in the rows by chance.
    mark = content.rfind(_MARK, footer)
    return 0 if mark < 0 else mark + len(_MARK)


def _digest(path: Path, content: bytes | bytearray, start: int) -> bytes:
    """Return the sha256, in hex, of a file's path and of its bytes with zeros in place of the digest.

    The path below the market's home is included, so that exchanged files are found.
    """
    view = memoryview(content)
    digest = hashlib.sha256("/".join(path.parts[-4:]).encode())
    # Three slices of one buffer: a file is not copied to be hashed.
    for part in (view[:start], _BLANK, view[start + 64 :]):
        digest.update(part)
    return digest.hexdigest().encode()


def standing_note(rows: pl.DataFrame) -> str:
    """Return what to say of a forecast (its rows) before which the candles stand still; "" if they move."""
    standing = rows["standing"][0] if len(rows) else None
    if not is_standstill(standing):
        return ""
    return (
        f"the last {standing:,} candles before the forecast stand still (open = high = low = close, volume 0): the "
        "coin may not be traded, or its source repeats the last price"
    )


def forecast_command(series: SeriesId) -> str:
    """Return the command that forecasts a series, which also scores due forecasts."""
    return f"cpb forecast {series.options}"


def latest(home: Path, series: SeriesId, until: datetime | None = None, version: str = "") -> pl.DataFrame:
    """Return the newest forecast of one series (issued by `until`), its steps in order; empty without forecasts.

    Of several champions' forecasts at the same time that of `version`, by default of the packaged model; else the last
    written.

    Raises:
        DamagedError: its month is damaged: an older forecast is not the newest.
    """
    for path in _newest_first(home, series, until):
        rows = _issued_by(load(home, series, FORECASTS, path), until)
        if not rows.is_empty():
            newest = rows.filter(pl.col("issued_at") == pl.col("issued_at").max())
            shown = newest["model_version"][-1]
            # A champion that was replaced within the hour leaves two forecasts of one candle.
            if newest["model_version"].n_unique() > 1:
                with suppress(DamagedError):
                    # The packaged model: the page shows the forecast of what serves now.
                    wanted = version or read_config(series.packaged(home)).model_version
                    shown = wanted if wanted in newest["model_version"] else shown
            return newest.filter(pl.col("model_version") == shown).sort("step")
    return pl.DataFrame(schema=FORECAST_SCHEMA)


def issues(home: Path, series: SeriesId, limit: int, until: datetime | None = None) -> pl.DataFrame:
    """Return the newest `limit` forecasts of a series (issued by `until`), oldest first, the last written.

    Columns: `issued_at`, `model_version`, `role`, `made_at`, and `live`: made before the first target candle closed.
    Months are read from the newest backwards, only as many as needed; a damaged one is skipped and logged once.
    """
    columns = ["issued_at", "model_version", "role", "made_at"]
    live = IS_LIVE.alias("live")
    tree = replace(FORECASTS, columns=[*columns, "target_time", "step"])
    shown = pl.DataFrame(schema={**{name: FORECAST_SCHEMA[name] for name in columns}, "live": pl.Boolean})
    for path in _newest_first(home, series, until):
        if (rows := read_month(home, series, tree, path)) is None:
            continue
        first_steps = _issued_by(rows, until).filter(pl.col("step") == 1).select(*columns, live)
        issued = first_steps.sort("issued_at", maintain_order=True)
        # Older months in front, so that `tail` cuts the oldest.
        shown = pl.concat([issued.unique("issued_at", keep="last", maintain_order=True), shown])
        if len(shown) >= limit:
            break
    return shown.tail(limit)


def _newest_first(home: Path, series: SeriesId, until: datetime | None) -> list[Path]:
    files = month_files(series.folder(home, FORECASTS.name))
    return [path for path in reversed(files) if not until or path.stem <= f"{until:%Y-%m}"]


def _issued_by(rows: pl.DataFrame, until: datetime | None) -> pl.DataFrame:
    return rows.filter(pl.col("issued_at") <= until) if until else rows


def series_with_forecasts(home: Path, market: str | None = None) -> list[SeriesId]:
    """Return every series (of `market`, default of all) that has forecasts, in order."""
    return [
        series
        for series in stored_series(home, FORECASTS.name)
        if market in (None, series.market) and month_files(series.folder(home, FORECASTS.name))
    ]
