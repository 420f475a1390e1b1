"""What must hold for the candles of a file before they enter the store.

Binance has published each of these faults; a checksum notices none of them. The checks run on all files of a
batch at once: per file they would cost twenty times as much.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from operator import itemgetter

import numpy as np
import polars as pl

from schemas.klines import KLINES, PRICES, TAKER_SLACK
from tasks.market.faults import BadFile
from tasks.market.grid import DAY, Grid
from tasks.market.layout import SeriesKey, period_bounds, text, to_datetime
from tasks.market.parser import Block

OFF_GRID = (period_bounds("2018-02-08")[0], period_bounds("2018-02-12")[0])
"""After the halt of February 2018 Binance's candles opened 28 minutes past the hour (binance-public-data#14, #77)."""

MICROSECONDS_SINCE = period_bounds("2025-01-01")[0]
"""From here on spot files are in microseconds; futures files stayed in milliseconds."""

_WICK, _WICK_SHARE, _CALM = 1.5, 0.01, 0.01
_CROWD = 3
_LEAP = 1.1  # |ln| of a price jump between neighbouring files that no market makes within an hour: threefold
_LONG_PAUSE = 2 * DAY  # after this, or two candles, a price may be another
_NUMBERS = [name for name, kind in KLINES.items() if kind == pl.Float64]
_VOLUMES = ("volume", "quote_volume", "count", "taker_buy_volume", "taker_buy_quote_volume")


Edge = tuple[int, int, float, float]


@dataclass
class Checked:
    """Candles fit for the store, those kept apart, and what was found on the way."""

    rows: (
        pl.DataFrame
    )  # KLINES columns plus `close_time` and `file`; open_time int64, sorted, unique, on the grid
    off_grid: pl.DataFrame
    duplicates: dict[int, int] = field(default_factory=dict)
    conflicts: list[tuple[int, int]] = field(default_factory=list)  # (file, open_time)


def check(
    series: SeriesKey, blocks: list[Block], frame: pl.DataFrame, stored: Sequence[Edge] = ()
) -> tuple[Checked, dict[int, BadFile]]:
    """Split the candles of a batch into good ones and files at fault (by index into `blocks`).

    `stored` are the unbroken stretches already in the store: `(from, until, first open, last close)`.
    """
    faults = _values(blocks, frame)
    ordered = bool((np.diff(frame["open_time"].to_numpy()) > 0).all())  # as published files are
    if not ordered:
        _note_disorder(blocks, frame)
        frame = frame.sort("file", "open_time", maintain_order=True)
    anchor = _anchor(series, frame, stored)
    opens = frame["open_time"].to_numpy()
    frame = frame.with_columns(on_grid=pl.Series(series.grid.floor(opens, anchor) == opens))
    for judge in (_intervals, _grid, _foreign, _wicks):
        faults = judge(series, blocks, _without(frame, faults)) | faults
    faults = _levels(series, blocks, _without(frame, faults), stored) | faults
    good = _without(frame, faults)
    if not ordered:
        good = good.sort("open_time", "file", maintain_order=True)
    on_grid, good = good["on_grid"], good.drop("on_grid")
    off_grid = good.filter(~on_grid)
    checked = Checked(good.filter(on_grid) if off_grid.height else good, off_grid)
    if not ordered:
        _deduplicate(checked)
        for index, count in checked.duplicates.items():
            blocks[index].notes.append(f"identical duplicates dropped: {count}")
    return checked, faults


def _note_disorder(blocks: list[Block], frame: pl.DataFrame) -> None:
    back = frame.group_by("file").agg((pl.col("open_time").diff() < 0).any().alias("back")).filter("back")
    for index in back["file"]:
        blocks[index].notes.append("candles out of order, sorted")


def _without(frame: pl.DataFrame, faults: dict[int, BadFile]) -> pl.DataFrame:
    return frame.filter(~pl.col("file").is_in(list(faults))) if faults else frame


def _values(blocks: list[Block], frame: pl.DataFrame) -> dict[int, BadFile]:
    """Each candle by itself: finite, positive, ordered, inside the file's period."""
    bounds = pl.DataFrame(
        [(i, *b.file.bounds) for i, b in enumerate(blocks)],
        schema={"file": pl.UInt32, "from": pl.Int64, "until": pl.Int64},
        orient="row",
    )
    frame = frame.join(bounds, on="file", how="left", maintain_order="left")
    rules = {f"{c} is not finite": ~pl.col(c).is_finite() for c in _NUMBERS}
    rules |= {f"{c} is not positive": pl.col(c) <= 0 for c in PRICES}
    rules |= {f"{c} is negative": pl.col(c) < 0 for c in _VOLUMES}
    rules |= {
        "low is above open or close": pl.col("low") > pl.min_horizontal("open", "close"),
        "high is below open or close": pl.col("high") < pl.max_horizontal("open", "close"),
        "taker volume exceeds the total": _exceeds("taker_buy_volume", "volume")
        | _exceeds("taker_buy_quote_volume", "quote_volume"),
        "open_time is outside the file's period": ~pl.col("open_time").is_between(
            "from", "until", closed="left"
        ),
    }
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


def _exceeds(part: str, whole: str) -> pl.Expr:
    return pl.col(part) > pl.col(whole) * (1 + TAKER_SLACK) + 1e-7


def _intervals(series: SeriesKey, blocks: list[Block], frame: pl.DataFrame) -> dict[int, BadFile]:
    """The usual distance between candles, and their usual length, must be the interval."""
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
        opened = series.grid.floor(row["open_time"])
        step = series.grid.end(opened) - opened  # of a month: a file holds one
        odd = [v for v in (row["gap"] if row["len"] > 2 else None, row["span"]) if v and abs(v - step) > 1]
        if odd and (row["gap"] != step or row["len"] <= 2):
            faults[row["file"]] = BadFile(
                f"expected {step / 1e6:.9g} s between candles, found {odd[0] / 1e6:.9g} s: another interval"
            )
    return faults


def _anchor(series: SeriesKey, frame: pl.DataFrame, stored: Sequence[Edge]) -> int:
    """Return an instant at which a candle of the grid opens."""
    if series.interval != "3d":
        return series.grid.phase
    if stored or not frame.height:  # where the grid of three days is anchored is not documented
        return stored[0][0] if stored else 0
    phases = frame["open_time"] % (3 * DAY)
    return phases.mode().min()  # type: ignore[return-value]


def _grid(series: SeriesKey, blocks: list[Block], frame: pl.DataFrame) -> dict[int, BadFile]:
    """Off-grid candles are refused, except those that the exchange is known to have made."""
    known = pl.col("open_time").is_between(*OFF_GRID, closed="left") & (series.market == "spot")
    strays = frame.filter(~pl.col("on_grid") & ~known).unique("file", keep="first", maintain_order=True)
    return {
        row["file"]: BadFile(
            f"line {row['line']}: candle opens off the grid, at {to_datetime(row['open_time'])}"
        )
        for row in strays.iter_rows(named=True)
    }


def _foreign(series: SeriesKey, blocks: list[Block], frame: pl.DataFrame) -> dict[int, BadFile]:
    """A futures file under a spot name: header, milliseconds after 2024, other decimals or volume; two convict."""
    if series.market != "spot":
        return {}
    late_ms = frame.filter(pl.col("open_time") >= MICROSECONDS_SINCE).group_by("file").agg(pl.col("ms").all())
    in_ms = set(late_ms.filter(pl.col("ms"))["file"])
    usual, votes = max(Counter(b.decimals for b in blocks).items(), key=itemgetter(1), default=(0, 0))
    odd = [i for i, b in enumerate(blocks) if votes > 1 and usual >= 0 <= b.decimals != usual]
    stands_out = _volume_stands_out(frame) if odd else set()
    faults = {}
    for index, block in enumerate(blocks):
        signs = ["a header line"] if block.header else []
        signs += ["milliseconds after 2024"] if index in in_ms else []
        busy = index in odd and index in stands_out
        # one digit, or none, may be all that somebody's `to_csv` left of eight
        signs += [f"{block.decimals} decimals"] if index in odd and (block.decimals > 1 or busy) else []
        signs += ["another volume than its neighbours"] if busy else []
        if len(signs) > 1:
            faults[index] = BadFile(f"looks like a futures file under a spot name ({', '.join(signs)})")
    return faults


def _volume_stands_out(frame: pl.DataFrame) -> set[int]:
    """Return the files whose usual volume is thrice that of their neighbours, or a third of it."""
    files = frame.group_by("file", maintain_order=True).agg(pl.col("volume").median()).rows()
    found = set()
    for at, (index, volume) in enumerate(files):
        beside = [
            volume / max(other, 1e-9) for _, other in (*files[max(0, at - 1) : at], *files[at + 1 : at + 2])
        ]
        if beside and (min(beside) > _CROWD or max(beside) < 1 / _CROWD):
            found.add(index)
    return found


def _wicks(series: SeriesKey, blocks: list[Block], frame: pl.DataFrame) -> dict[int, BadFile]:
    """Test networks print wild wicks around calm candles; no live market does both."""
    top = pl.col("high") / pl.max_horizontal("open", "close")
    bottom = pl.min_horizontal("open", "close") / pl.col("low")
    wild = ((top > _WICK) | (bottom > _WICK)).mean()
    calm = (pl.col("close") / pl.col("open")).log().abs().median()
    shares = frame.group_by("file").agg(wild=wild, calm=calm, wilds=((top > _WICK) | (bottom > _WICK)).sum())
    odd = shares.filter((pl.col("wild") > _WICK_SHARE) & (pl.col("calm") < _CALM) & (pl.col("wilds") > 2))
    return {
        row["file"]: BadFile(
            f"{row['wild']:.0%} of the candles reach half as far again as they open or close: a test network's prices"
        )
        for row in odd.iter_rows(named=True)
    }


def _levels(
    series: SeriesKey, blocks: list[Block], frame: pl.DataFrame, stored: Sequence[Edge]
) -> dict[int, BadFile]:
    """A price level that leaps where two files meet: the file that fits neither side is another symbol's.

    A file at the end of the row has one side only; it is at fault if its neighbour fits on the other side.
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
    steps = [_leap(left, right, series.grid) for left, right in itertools.pairwise(row)]
    faults = {}
    for at, (*_, index) in enumerate(row):
        into = steps[at - 1] if at else None
        out = steps[at] if at < len(steps) else None
        beyond = [steps[at - 2] if at > 1 else None, steps[at + 1] if at + 1 < len(steps) else None]
        trusted = [at > 0 and row[at - 1][4] < 0, at + 1 < len(row) and row[at + 1][4] < 0]
        alone = [
            out is None and (beyond[0] == 0 or trusted[0]),
            into is None and (beyond[1] == 0 or trusted[1]),
        ]
        if index >= 0 and ((into and (out or alone[0])) or (out and alone[1])):
            told = [_times(into) + " at its start"] * bool(into) + [_times(out) + " at its end"] * bool(out)
            faults[index] = BadFile(f"prices leap {' and '.join(told)}: another symbol")
    return faults


def _leap(left: tuple, right: tuple, grid: Grid) -> float | None:
    """Return ln(open / close before) where it is a leap, 0 where it is none, None where the two do not meet."""
    reach = min(2 * (grid.end(left[1]) - left[1]), _LONG_PAUSE)
    if not 0 <= right[0] - left[1] <= reach:
        return None
    jump = log(right[2] / left[3])
    return jump if abs(jump) > _LEAP else 0.0


def _times(log_ratio: float | None) -> str:
    return f"× {exp(log_ratio or 0):.3g}"


def _deduplicate(checked: Checked) -> None:
    """Identical duplicates are dropped; of conflicting ones none is believed until a daily file decides."""
    rows = checked.rows
    repeated = rows.filter(rows["open_time"].is_duplicated()) if rows.height else rows
    if not repeated.height:
        return
    values = [name for name in rows.columns if name not in ("file", "line", "ms")]
    distinct = repeated.unique(values, keep="first", maintain_order=True)
    disputed = distinct.filter(distinct["open_time"].is_duplicated())
    checked.conflicts = list(dict.fromkeys(disputed.select("file", "open_time").iter_rows()))
    undisputed = repeated.filter(~repeated["open_time"].is_in(disputed["open_time"].implode()))
    surplus = undisputed.filter(~undisputed["open_time"].is_first_distinct())
    checked.duplicates = dict(surplus.group_by("file").len().iter_rows())
    kept = rows.filter(~rows["open_time"].is_in(disputed["open_time"].implode()))
    checked.rows = kept.unique("open_time", keep="first", maintain_order=True)
