"""A series of market `own` belongs to one table: another table of its symbol is refused, never joined to it.

A table goes on with what is stored where both have candles and most of these are the same: so it may grow at its ends,
lose its oldest candles and put some right. Two exchanges' candles of one coin are hardly ever equal.
"""

import polars as pl

from schemas.errors import UsageError
from schemas.identity import SeriesId
from tasks.market.layout import text
from tasks.market.manifest import FileRecord, Part
from tasks.market.run import Run
from tasks.market.store import damage_of, part_path, read_part
from tasks.market.tables import Month, TableSource

_PRICES = ["open", "high", "low", "close"]


def refuse_other_tables(run: Run) -> None:
    """Compare the tables of a run with what is stored of their series, before anything is.

    Raises:
        UsageError: naming both tables and what to do: one is not the table that its series came from.
    """
    if not isinstance(run.source, TableSource):
        return
    for series in run.scope.series:
        parts = run.manifest.parts(series)
        if not parts or (series.symbol, series.timeframe) not in run.source.tables.series:
            continue
        months = {month.file.period: month for month in run.source.months(series).values()}
        known = run.manifest.files(series)
        if why := _contradiction(run, series, months, known, parts):
            raise _another_table(run, series, months, known, why)


def _contradiction(
    run: Run, series: SeriesId, months: dict[str, Month], known: dict[str, FileRecord], parts: dict[str, Part]
) -> str:
    """Return why a table cannot go on with what is stored, empty if it does."""
    begin, end = (f(m.file.covered[i] for m in months.values()) for i, f in ((0, min), (1, max)))
    if lacking := [m for m in parts if m not in months and _lies_in(parts[m], begin, end)]:
        return f"lacks {', '.join(lacking)}, of which candles are stored"
    common = same = damaged = 0
    for name, month in months.items():
        if name in known and known[name].version == month.file.version:  # its digest: all are the same
            rows = max(1, known[name].rows)
            counts = rows, rows
        elif name not in parts or damage_of(part_path(run.home, series, name), parts[name].digest):
            counts, damaged = (0, 0), damaged + (name in parts)  # stored again: it speaks for no table
        else:
            counts = _compare(read_part(run.home, series, name), month)
        common, same = common + counts[0], same + counts[1]
    if not common and not damaged:
        return "has no candle at the time of one of these, by which it would be known as the same"
    return "" if 2 * same >= common else f"differs in {common - same:,} of the {common:,} candles to compare"


def _lies_in(part: Part, begin: int, end: int) -> bool:
    return any(start < end and begin < until for start, until in part.runs)


def _compare(stored: pl.DataFrame, month: Month) -> tuple[int, int]:
    """Return how many stored candles lie in the time of a table's month, and how many of them it has like that.

    A volume of 0 is one that a table did not have.
    """
    since, until = month.file.covered
    old = stored.filter(pl.col("open_time").to_physical().is_between(since, until, closed="left"))
    both = old.join(month.candles, on=["open_time", *_PRICES], suffix="_now")
    before, now = pl.col("volume"), pl.col("volume_now")
    return old.height, both.filter((before == now) | (before == 0) | (now == 0)).height


def _another_table(
    run: Run, series: SeriesId, months: dict[str, Month], known: dict[str, FileRecord], why: str
) -> UsageError:
    newest = known[max(known)]
    # Records of earlier versions name the file in their version only.
    stored = newest.facts.get("table") or newest.version.partition("@")[0]
    runs = [run for part in run.manifest.parts(series).values() for run in part.runs]
    table = next(iter(months.values())).file.table
    return UsageError(
        f"{series}: {table} {why}, so it is another table than {stored}, from which {text(runs[0][0])} to "
        f"{text(runs[-1][1])} are stored: give its coin another symbol, set CPB_HOME to another folder, or remove "
        f"{run.root} and all that was learned from it",
        code="another-table", field="source",
    )  # fmt: skip
