"""Checks of a file's candles before they enter the store.

Binance has published each of the faults checked here, and a checksum detects none of them. The checks run on all files
of a batch together, in a single frame with a column `file`: file by file they would take twenty times as long.

Order of the checks: each candle by itself (`_values`), then each file by itself (`_intervals`, `_grid`), then files
against their neighbours (`_levels`). A faulty file is excluded from later checks, so that its data cannot make a good
neighbour look faulty.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log

import numpy as np
import polars as pl

from schemas.frames import CANDLE_FAULTS, KLINES, NOT_INCREASING, Contract
from schemas.identity import OWN, SeriesId
from tasks.market.client import BadFile
from tasks.market.layout import DAY, Grid, grid_of, period_bounds, text, to_datetime
from tasks.market.parser import Block

OFF_GRID = (period_bounds("2018-02-08")[0], period_bounds("2018-02-12")[0])
"""After the halt of February 2018 Binance's candles opened 28 minutes past the hour (binance-public-data#14, #77)."""

FILE_JUMP = 1.1
"""|ln(open / previous close)| between two adjacent source files above which one file has another symbol's data.

About ln 3; a separate constant from `cpbmodels.data.SEGMENT_JUMP`: it decides which files are refused, not how
features are cut.
"""

_MAX_PAUSE = 2 * DAY  # after a longer pause, or two candles, a different price level is not evidence


Edge = tuple[int, int, float, float]
"""A contiguous run of candles: from, until (µs), first open, last close."""


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
    series: SeriesId, blocks: list[Block], frame: pl.DataFrame, stored: Sequence[Edge] = ()
) -> tuple[Checked, dict[int, BadFile]]:
    """Split the candles of a batch into good candles and faulty files (by index into `blocks`).

    `stored` are the contiguous runs already in the store, except runs that the batch replaces.
    """
    faults = _values(blocks, frame)
    ordered = bool((np.diff(frame["open_time"].to_numpy()) > 0).all())  # normal for published files
    if not ordered:
        _note_disorder(blocks, frame)
        frame = frame.sort("file", "open_time", maintain_order=True)
    anchor = _anchor(series, frame, stored)
    opens = frame["open_time"].to_numpy()
    # computed once, for the two checks that need it, before other checks drop files
    frame = frame.with_columns(on_grid=pl.Series(grid_of(series.timeframe).floor(opens, anchor) == opens))
    for find_faults in (_intervals, _grid):
        faults = find_faults(series, blocks, _without(frame, faults)) | faults  # the first reason is kept
    if series.market != OWN:  # the months of a table are one file
        faults = _levels(series, blocks, _without(frame, faults), stored) | faults
    good = _without(frame, faults)
    if not ordered:
        good = good.sort("open_time", "file", maintain_order=True)
    on_grid, good = good["on_grid"], good.drop("on_grid")
    off_grid = good.filter(~on_grid)
    checked = Checked(good.filter(on_grid) if off_grid.height else good, off_grid)
    if not ordered:
        _deduplicate(checked)  # strictly increasing times have no duplicates
        for index, count in checked.duplicates.items():
            blocks[index].notes.append(f"identical duplicates dropped: {count}")
        for index, conflicts in Counter(index for index, _ in checked.conflicts).items():
            blocks[index].notes.append(f"conflicting candles dropped: {conflicts}")
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


def _note_disorder(blocks: list[Block], frame: pl.DataFrame) -> None:
    backwards = (pl.col("open_time").diff() < 0).any().alias("backwards")
    for index in frame.group_by("file").agg(backwards).filter("backwards")["file"]:
        blocks[index].notes.append("candles out of order, sorted")


def _without(frame: pl.DataFrame, faults: dict[int, BadFile]) -> pl.DataFrame:
    return frame.filter(~pl.col("file").is_in(list(faults))) if faults else frame


def _values(blocks: list[Block], frame: pl.DataFrame) -> dict[int, BadFile]:
    """Check each candle by itself: finite, positive, ordered, inside the file's period."""
    bounds = pl.DataFrame(
        [(i, *b.file.bounds) for i, b in enumerate(blocks)],
        schema={"file": pl.UInt32, "from": pl.Int64, "until": pl.Int64},
        orient="row",
    )
    frame = frame.join(bounds, on="file", how="left", maintain_order="left")
    within = pl.col("open_time").is_between("from", "until", closed="left")
    rules = {**CANDLE_FAULTS, "open_time is outside the file's period": ~within}
    # One pass finds the broken rules (nearly always none); only those are evaluated per file.
    broken = frame.select(rule.any().alias(name) for name, rule in rules.items()).row(0, named=True)
    faults: dict[int, BadFile] = {}
    for name in (name for name, found in broken.items() if found):
        for row in (
            frame.filter(rules[name]).unique("file", keep="first", maintain_order=True).iter_rows(named=True)
        ):
            column = name.split(" ")[0]
            shown = f" ({row[column]:g})" if column in KLINES and column != "open_time" else ""
            when = text(row["open_time"])
            faults.setdefault(row["file"], BadFile(f"line {row['line']}, {when}: {name}{shown}"))
    return faults


def _intervals(series: SeriesId, blocks: list[Block], frame: pl.DataFrame) -> dict[int, BadFile]:
    """Check that the median distance between candles, and their median length, equal the interval.

    Medians, because a halt makes a distance longer, and a candle may be cut short by a halt. A file of one or two
    candles has no useful median distance: its length decides; otherwise a correct distance permits an odd length.
    """
    lengths = (
        frame.with_columns(
            gap=pl.col("open_time").diff().over("file"), span=pl.col("close_time") - pl.col("open_time")
        )
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
        opened = grid_of(series.timeframe).floor(row["open_time"])
        step = grid_of(series.timeframe).end(opened) - opened  # months differ in length, a file has only one
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
    phases = frame["open_time"] % (3 * DAY)
    return phases.mode().min()  # type: ignore[return-value]


def _grid(series: SeriesId, blocks: list[Block], frame: pl.DataFrame) -> dict[int, BadFile]:
    """Refuse off-grid candles, except the exchange's known off-grid candles."""
    known = pl.col("open_time").is_between(*OFF_GRID, closed="left") & (series.market == "spot")
    strays = frame.filter(~pl.col("on_grid") & ~known).unique("file", keep="first", maintain_order=True)
    return {
        row["file"]: BadFile(
            f"line {row['line']}: candle opens off the grid, at {to_datetime(row['open_time'])}"
        )
        for row in strays.iter_rows(named=True)
    }


def _levels(
    series: SeriesId, blocks: list[Block], frame: pl.DataFrame, stored: Sequence[Edge]
) -> dict[int, BadFile]:
    """Find files of another symbol: the price level jumps at every joint with their neighbours.

    With a single joint, as at the ends of a series, either side of it may be wrong: the file is faulty if the neighbour
    is stored already, or joined without a jump to the file on its other side.
    """
    edges = (
        frame.group_by("file", maintain_order=True)
        .agg(
            pl.col("open_time").min(),
            pl.col("close_time").max(),
            pl.col("open").first(),
            pl.col("close").last(),
        )
        .iter_rows()
    )
    row = sorted([(a, b, o, c, i) for i, a, b, o, c in edges] + [(*edge, -1) for edge in stored])
    # joints[k] is between row[k - 1] and row[k]: the jump, 0.0 for none, None if the two are not adjacent
    grid = grid_of(series.timeframe)
    joints = [None, *(_jump(left, right, grid) for left, right in itertools.pairwise(row)), None]
    faults = {}
    for at, (*_, index) in enumerate(row):
        before, after = joints[at], joints[at + 1]
        jumps = [jump for jump in (before, after) if jump is not None]
        if index < 0 or not jumps or not all(jumps):  # stored candles were checked before
            continue
        if len(jumps) == 1:
            neighbour, beyond = (
                (row[at - 1], joints[at - 1]) if after is None else (row[at + 1], joints[at + 2])
            )
            if neighbour[4] >= 0 and beyond != 0:
                continue
        shown = " and ".join(f"× {exp(jump):.3g}" for jump in jumps)
        faults[index] = BadFile(f"prices jump {shown} beside their neighbours: another symbol")
    return faults


def _jump(left: tuple, right: tuple, grid: Grid) -> float | None:
    """Return ln(open / previous close) if it is a jump, else 0; None if the two are not adjacent."""
    reach = min(2 * (grid.end(left[1]) - left[1]), _MAX_PAUSE)
    if not 0 <= right[0] - left[1] <= reach:
        return None
    jump = log(right[2] / left[3])
    return jump if abs(jump) > FILE_JUMP else 0.0


def _deduplicate(checked: Checked) -> None:
    """Drop identical duplicates; drop all conflicting candles, until a daily file decides."""
    rows = checked.rows
    repeated = rows.filter(rows["open_time"].is_duplicated()) if rows.height else rows
    if not repeated.height:
        return
    values = [name for name in rows.columns if name not in ("file", "line")]
    distinct = repeated.unique(values, keep="first", maintain_order=True)
    disputed = distinct.filter(distinct["open_time"].is_duplicated())
    checked.conflicts = list(dict.fromkeys(disputed.select("file", "open_time").iter_rows()))
    undisputed = repeated.filter(~repeated["open_time"].is_in(disputed["open_time"].implode()))
    surplus = undisputed.filter(~undisputed["open_time"].is_first_distinct())
    checked.duplicates = dict(surplus.group_by("file").len().iter_rows())
    kept = rows.filter(~rows["open_time"].is_in(disputed["open_time"].implode()))
    checked.rows = kept.unique("open_time", keep="first", maintain_order=True)
