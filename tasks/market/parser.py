"""From the CSV of published files to checked candles: any bytes give complete candles or a `BadFile`, never a null.

The files of a series are read in one call (0.75 s of CPU instead of 1.19 s file by file), without joining their bytes,
which would take 20 MB more. Only if that fails is each file read separately, to find the faulty file. Handled pitfalls
of polars' reader: a truncated last line gives nulls, a BOM turns the first candle into a header, files without a final
newline merge two candles.

Binance has published each of the faults that `check` finds, and a checksum detects none of them. All files of a batch
are checked together, in a single frame with a column `file`: file by file it would take twenty times as long. First
each candle by itself (`_values`), then each file by itself (`_intervals`, `_grid`), then files against their neighbours
(`_levels`). A faulty file is excluded from later checks: its data cannot make a good neighbour look faulty.
"""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Any

import numpy as np
import polars as pl

from cpbmodels.data.candles import OFF_GRID
from cpbmodels.data.raw_tables import BINANCE_COLUMNS
from cpbmodels.data.series import instant
from schemas.candles import CANDLE_FAULTS, KLINES, NOT_INCREASING
from schemas.contract import Contract
from schemas.identity import OWN, SeriesId
from tasks.market.client import BadFile
from tasks.market.fetch import Fetched
from tasks.market.layout import DAY, Grid, grid_of, utc_text

_SCHEMA = dict.fromkeys(BINANCE_COLUMNS, pl.Float64) | {
    "open_time": pl.Int64,
    "close_time": pl.Int64,
    "count": pl.Int64,
    "ignore": pl.String,
}
_HEADERS = {
    ",".join(BINANCE_COLUMNS).encode(),
    b"open_time,open,high,low,close,volume,close_time,quote_asset_volume,number_of_trades,"
    b"taker_buy_base_asset_volume,taker_buy_quote_asset_volume,ignore",
    b"open time,open,high,low,close,volume,close time,quote asset volume,number of trades,"
    b"taker buy base asset volume,taker buy quote asset volume,ignore",
}
_BOM = b"\xef\xbb\xbf"
_MICRO = 10**14  # the year 5138 in milliseconds, 1973 in microseconds: decided per row
# the year 2255; larger numbers, in milliseconds those below _MICRO, are not valid times
_LAST_US = 9 * 10**15
_FIRST_LINE = re.compile(rb"-?\d")

FILE_JUMP = 1.1
"""|ln(open / previous close)| between two adjacent source files above which one file has another symbol's data.

About ln 3; a separate constant from `cpbmodels.data.SEGMENT_JUMP`: it decides which files are refused, not how
features are cut.
"""

_MAX_PAUSE = 2 * DAY  # after a longer pause, or two candles, a different price level is not evidence

Edge = tuple[int, int, float, float]
"""A contiguous run of candles: from, until (µs), first open, last close."""

Faults = dict[int, BadFile]
"""The faulty files of a batch, by index."""


def to_microseconds(time: int) -> int:
    """Return a time of Binance's, in milliseconds or microseconds since 1970, in microseconds."""
    return time if time >= _MICRO else time * 1000


def trim(file: Fetched) -> Fetched:
    """Strip BOM, header and carriage returns, and terminate the last line; raises `BadFile` if no candle is left."""
    csv = file.csv
    if csv.startswith(_BOM):
        csv = csv.removeprefix(_BOM)
        file.notes.append("byte order mark dropped")
    if b"\r" in csv:
        csv = csv.replace(b"\r\n", b"\n")
    end = csv.find(b"\n")
    first = csv[:end] if end >= 0 else csv
    if first and not _FIRST_LINE.match(first):
        if first.strip().lower() not in _HEADERS:
            shown = first[:60].decode("ascii", "replace")
            raise BadFile(f"header {shown!r} is not Binance's kline header")
        csv = csv[len(first) + 1 :]
        file.notes.append("header line dropped")
    if not csv.endswith(b"\n") or csv.endswith(b"\n\n") or csv == b"\n":  # most files need no copy
        csv = csv.rstrip(b"\n") + b"\n"
    if csv == b"\n":
        raise BadFile("holds no candle")
    file.csv, file.lines = csv, csv.count(b"\n")
    return file


def read(files: list[Fetched]) -> tuple[pl.DataFrame, Faults]:
    """Return the candles of all readable files and the faults of the others.

    The frame has `BINANCE_COLUMNS` without `ignore`, times in microseconds since 1970 (`close_time` is the exclusive
    end of the candle), `file` (its index) and `line` (1 is a file's first candle).
    Rows are in file order; values are not checked yet.
    """
    try:
        return _read(files, range(len(files))), {}
    except BadFile:
        pass  # a file is faulty: read the files one at a time
    frames, faults = [_read([], [])], {}
    for index, file in enumerate(files):
        try:
            frames.append(_read([file], [index]))
        except BadFile as fault:
            faults[index] = fault
    return pl.concat(frames), faults


def _read(files: list[Fetched], indices: Sequence[int]) -> pl.DataFrame:
    counts = np.array([file.lines for file in files], dtype=np.int64)
    lines = int(counts.sum())
    try:
        frame = pl.read_csv(
            [file.csv for file in files] or b"",
            has_header=False,
            schema=_SCHEMA,
            quote_char=None,
            extra_columns="raise",
            raise_if_empty=False,
        ).rechunk()
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        reason, *_ = str(error).split(". ")  # what follows is advice on polars' own options
        raise BadFile(f"not twelve numbers per line: {reason[:120]}") from error
    if frame.height != lines:
        raise BadFile(f"{lines} lines hold {frame.height} candles")
    for name, nulls in frame.null_count().row(0, named=True).items():
        if nulls:
            line = int(frame[name].is_null().arg_max() or 0) + 1
            raise BadFile(f"line {line}: {name} is missing")
    opens, closes = (frame[name].to_numpy() for name in ("open_time", "close_time"))
    if any(len(t) and (t.min() < 0 or t.max() > _LAST_US) for t in (opens, closes)):
        raise BadFile("a time is out of range")
    starts, ms = np.cumsum(counts) - counts, opens < _MICRO
    if ms.any() and not ms.all():
        for file, start in zip(files, starts, strict=True):
            if len(set(ms[start : start + file.lines].tolist())) > 1:
                file.notes.append("milliseconds and microseconds in one file")
    return frame.drop("ignore").with_columns(
        pl.Series("open_time", np.where(ms, opens * 1000, opens)),
        pl.Series("close_time", np.where(closes < _MICRO, (closes + 1) * 1000, closes + 1)),
        pl.Series("file", np.repeat(np.array(indices, dtype=np.uint32), counts)),
        pl.Series("line", np.arange(lines) - np.repeat(starts, counts) + 1),
    )


@dataclass
class Checked:
    """Candles fit for the store, candles stored separately, and the anomalies found.

    `rows` has the columns of KLINES plus `close_time` and `file`; open_time is int64, sorted, unique, on the grid.
    """

    rows: pl.DataFrame
    off_grid: pl.DataFrame
    duplicates: dict[int, int] = field(default_factory=dict)  # identical candles dropped, by file
    conflicts: list[tuple[int, int]] = field(default_factory=list)  # (file, open_time)


def check(
    series: SeriesId, files: list[Fetched], frame: pl.DataFrame, stored: Sequence[Edge] = ()
) -> tuple[Checked, Faults]:
    """Split the candles of a batch into good candles and faulty files.

    `stored` are the contiguous runs already in the store, except runs that the batch replaces.
    """
    faults = _values(files, frame)
    ordered = bool((np.diff(frame["open_time"].to_numpy()) > 0).all())  # normal for published files
    if not ordered:
        backwards = (pl.col("open_time").diff() < 0).any().alias("backwards")
        for index in frame.group_by("file").agg(backwards).filter("backwards")["file"]:
            files[index].notes.append("candles out of order, sorted")
        frame = frame.sort("file", "open_time", maintain_order=True)
    grid, opens = grid_of(series.timeframe), frame["open_time"].to_numpy()
    # computed once, for the two checks that need it, before other checks drop files
    frame = frame.with_columns(on_grid=pl.Series(grid.floor(opens, _anchor(series, frame, stored)) == opens))
    faults = _intervals(grid, _without(frame, faults)) | faults  # the first reason is kept
    faults = _grid(series, _without(frame, faults)) | faults
    if series.market != OWN:  # the months of a table are one file
        faults = _levels(grid, _without(frame, faults), stored) | faults
    good = _without(frame, faults)
    if not ordered:
        good = good.sort("open_time", "file", maintain_order=True)
    on_grid, good = good["on_grid"], good.drop("on_grid")
    off_grid = good.filter(~on_grid)
    checked = Checked(good.filter(on_grid) if off_grid.height else good, off_grid)
    if not ordered:
        _deduplicate(checked)  # strictly increasing times have no duplicates
        conflicts = Counter(index for index, _ in checked.conflicts)
        for what, counts in (
            ("identical duplicates", checked.duplicates),
            ("conflicting candles", conflicts),
        ):
            for index, count in counts.items():
                files[index].notes.append(f"{what} dropped: {count}")
    return checked, faults


def validate_klines(rows: pl.DataFrame, timeframe: str) -> pl.DataFrame:
    """Return candles with the columns of the store if they meet its contract: what `check` returns always does.

    Raises:
        pandera.errors.SchemaError: naming the column or the check that failed.
    """
    opens, grid = rows["open_time"].to_physical().to_numpy(), grid_of(timeframe)
    # the origin of the 3d grid is not documented: the first candle defines it
    anchor = int(opens[0]) if timeframe == "3d" and len(opens) else grid.phase
    off_grid = pl.lit(pl.Series(grid.floor(opens, anchor) != opens))
    faults = {
        "open_time is not strictly increasing": NOT_INCREASING,
        f"open_time is off the grid of {timeframe}": off_grid,
    }
    return Contract(KLINES, {**CANDLE_FAULTS, **faults}).check(rows)


def _without(frame: pl.DataFrame, faults: Faults) -> pl.DataFrame:
    return frame.filter(~pl.col("file").is_in(list(faults))) if faults else frame


def _values(files: list[Fetched], frame: pl.DataFrame) -> Faults:
    """Check each candle by itself: finite, positive, ordered, inside the file's period."""
    bounds = np.array([file.file.bounds for file in files], dtype=np.int64).reshape(-1, 2)
    bounds, opens = bounds[frame["file"].to_numpy()], frame["open_time"].to_numpy()
    frame = frame.with_columns(outside=pl.Series((opens < bounds[:, 0]) | (opens >= bounds[:, 1])))
    rules = {**CANDLE_FAULTS, "open_time is outside the file's period": pl.col("outside")}
    # One pass finds the broken rules (nearly always none); only those are evaluated per file.
    broken = frame.select(rule.any().alias(name) for name, rule in rules.items()).row(0, named=True)
    faults: Faults = {}
    for name in (name for name, is_broken in broken.items() if is_broken):
        column = name.split(" ")[0]
        for row in _first_of_files(frame.filter(rules[name])):
            shown = f" ({row[column]:g})" if column in KLINES and column != "open_time" else ""
            when = utc_text(row["open_time"])
            faults.setdefault(row["file"], BadFile(f"line {row['line']}, {when}: {name}{shown}"))
    return faults


def _first_of_files(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return frame.unique("file", keep="first", maintain_order=True).rows(named=True)


def _intervals(grid: Grid, frame: pl.DataFrame) -> Faults:
    """Check that the median distance between candles, and their median length, equal the interval.

    Medians, because a halt makes a distance longer, and a candle may be cut short by a halt. A file of one or two
    candles has no useful median distance: its length decides; otherwise a correct distance permits an odd length.
    """
    gap, span = pl.col("open_time").diff().over("file"), pl.col("close_time") - pl.col("open_time")
    lengths = (
        frame.with_columns(gap=gap, span=span)
        .group_by("file")
        .agg(
            pl.col("gap").filter(pl.col("gap") > 0).median(),
            pl.col("span").median(),
            pl.len(),
            pl.col("open_time").first(),
        )
    )
    faults = {}
    for row in lengths.iter_rows(named=True):
        opened = grid.floor(row["open_time"])
        step = grid.end(opened) - opened  # months differ in length, a file has only one
        # 1 µs: the close time of a file in milliseconds is rounded
        wrong = [v for v in (row["gap"] if row["len"] > 2 else None, row["span"]) if v and abs(v - step) > 1]
        if wrong and (row["gap"] != step or row["len"] <= 2):
            faults[row["file"]] = BadFile(
                f"expected {step / 1e6:.9g} s between candles, found {wrong[0] / 1e6:.9g} s: a different interval"
            )
    return faults


def _anchor(series: SeriesId, frame: pl.DataFrame, stored: Sequence[Edge]) -> int:
    """Return the open time of any candle on the grid."""
    if series.timeframe != "3d":
        return grid_of(series.timeframe).phase
    if stored or not frame.height:  # the anchor of the 3d grid is not documented
        return stored[0][0] if stored else 0
    return int((frame["open_time"] % (3 * DAY)).mode().min())  # type: ignore[arg-type]


def _grid(series: SeriesId, frame: pl.DataFrame) -> Faults:
    """Refuse off-grid candles, except the exchange's known off-grid candles."""
    permitted = pl.col("open_time").is_between(*OFF_GRID, closed="left") & (series.market == "spot")
    return {
        row["file"]: BadFile(f"line {row['line']}: candle opens off the grid, at {instant(row['open_time'])}")
        for row in _first_of_files(frame.filter(~pl.col("on_grid") & ~permitted))
    }


def _levels(grid: Grid, frame: pl.DataFrame, stored: Sequence[Edge]) -> Faults:
    """Find files of another symbol: the price level jumps at every joint with their neighbours.

    With a single joint, as at the ends of a series, either side of it may be wrong: the file is faulty if the neighbour
    is stored already, or joined without a jump to the file on its other side.
    """
    edges = frame.group_by("file", maintain_order=True).agg(
        pl.col("open_time").min(), pl.col("close_time").max(), pl.col("open").first(), pl.col("close").last()
    )
    runs = sorted(
        [*((*edge, index) for index, *edge in edges.iter_rows()), *((*edge, -1) for edge in stored)]
    )
    # joints[k] is between runs[k - 1] and runs[k]: the jump, 0.0 for none, None if the two are not adjacent
    joints = [None, *(_jump(left, right, grid) for left, right in itertools.pairwise(runs)), None]
    faults = {}
    for at, (*_, index) in enumerate(runs):
        before, after = joints[at], joints[at + 1]
        jumps = [jump for jump in (before, after) if jump is not None]
        if index < 0 or not jumps or not all(jumps):  # stored candles were checked before
            continue
        if len(jumps) == 1:
            neighbour, beyond = (at - 1, joints[at - 1]) if after is None else (at + 1, joints[at + 2])
            if runs[neighbour][-1] >= 0 and beyond != 0:
                continue
        shown = " and ".join(f"× {exp(jump):.3g}" for jump in jumps)
        faults[index] = BadFile(f"prices jump {shown} beside their neighbours: another symbol")
    return faults


def _jump(left: tuple[Any, ...], right: tuple[Any, ...], grid: Grid) -> float | None:
    """Return ln(open / previous close) if it is a jump, else 0; None if the two are not adjacent."""
    reach = min(2 * (grid.end(left[1]) - left[1]), _MAX_PAUSE)
    if not 0 <= right[0] - left[1] <= reach:
        return None
    jump = log(right[2] / left[3])
    return jump if abs(jump) > FILE_JUMP else 0.0


def _deduplicate(checked: Checked) -> None:
    """Drop identical duplicates; drop all conflicting candles, until a daily file decides."""
    rows = checked.rows
    values = [name for name in rows.columns if name not in ("file", "line")]
    distinct = rows.unique(values, keep="first", maintain_order=True)
    disputed = distinct.filter(distinct["open_time"].is_duplicated())
    checked.conflicts = list(dict.fromkeys(disputed.select("file", "open_time").iter_rows()))
    undisputed = rows.filter(~rows["open_time"].is_in(disputed["open_time"].implode()))
    surplus = undisputed.filter(~undisputed["open_time"].is_first_distinct())
    checked.duplicates = dict(surplus.group_by("file").len().iter_rows())
    checked.rows = undisputed.unique("open_time", keep="first", maintain_order=True)
