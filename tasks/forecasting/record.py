"""Scores what is due, and keeps the live record of a market: `ledger/summary.json`, for page, API and `cpb ledger`.

The record's size does not grow with time: it contains an entry or two for each series, recipe and recent version. Live
forecasts and replays are never added up, nor are different versions. It is computed from daily sums of the losses,
`daily.parquet` beside a series' scores: a scan of all rows takes 0.2 s a year of an hourly series. The sums are
computed again for each month whose files have changed, so an hourly scoring reads only the month that it wrote to.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from cpbmodels.data import INTERVAL_SECONDS
from schemas.errors import DamagedError
from schemas.failure import Failure
from schemas.forecast_rows import CHAMPION
from schemas.identity import SIM, SeriesId, stored_series, tree_of
from schemas.ledger import BANDS, LedgerEntry, LedgerSummary, Score
from tasks.forecasting.chain import ANY_ERROR
from tasks.forecasting.issue import failure, store_batch
from tasks.forecasting.months import (
    FORECASTS,
    LEDGER,
    month_bytes,
    month_files,
    parse_rows,
    read_month,
    series_with_forecasts,
)
from tasks.forecasting.score import nothing_scored, scored_rows, scores_due, with_scale
from tasks.judging.live_interval import ratio_interval
from tasks.storage.files import write_bytes
from tasks.storage.locks import locked
from tasks.storage.records import find_record, write_record

DAILY, SUMMARY = "daily.parquet", "summary.json"

MAX_VERSIONS = 4
"""Versions of a series in the summary, newest first; nightly refreshes make 365 versions a year."""

KEY = ("day", "model_version", "weights_sha256", "live")
ROLLING_DAYS = 30
"""Window of `rolling` and of the coverage, in days."""

DAYS_SCHEMA = {
    "day": pl.Date,
    **dict.fromkeys(("ratio", "low", "high", "rolling", *(f"coverage_{band}" for band in BANDS)), pl.Float64),
}


def score_due(home: Path, series: Sequence[SeriesId], now: datetime | None = None) -> Score:
    """Write the realised closes of the series' due forecasts, and update the live records of their markets.

    An error in one series becomes its `Failure`; the others are still scored.

    Args:
        now: UTC; default the current time. Candles that close later are not used.
    """
    now = now or datetime.now(UTC)
    due: dict[SeriesId, pl.DataFrame] = {}
    failures: list[Failure] = []
    for s in series:
        try:
            rows = scores_due(home, s, now)
            if not rows.is_empty():
                due[s] = rows
        except ANY_ERROR as error:
            failures.append(failure(s, "score", error))
    stored, more = store_batch(home, "scores", due)
    failures += more
    for market in dict.fromkeys(s.market for s in series):
        try:
            if series_with_forecasts(home, market):
                write_summary(home, market, now)
        except ANY_ERROR as error:  # scores are stored; the next scoring updates the record
            failures.append(Failure.of(None, "score", f"the record of {market} is not updated: {error}"))
    return Score(rows=sum(stored.values()), failures=tuple(failures))


def day_sums(scored: pl.DataFrame) -> pl.DataFrame:
    """Return the daily sums of scored rows of one series (`scored_rows` of rows `with_scale`).

    One row per UTC day of `issued_at`, model version, its weights, and live or replay. `horizon`: steps of a forecast.
    Sums over the scored rows: `crps` over all rows; `paired_…` and `ref_…` of the model and of the reference over the
    `ref_rows` rows with a reference; `scaled_…` in units of the reference's width at the origin, additive across coins.
    """
    paired = pl.col("ref_crps").is_not_null()
    champions = scored.filter(pl.col("role") == CHAMPION)  # older versions stored others' forecasts, too
    days = champions.with_columns(day=pl.col("issued_at").dt.date()).group_by(KEY)
    return days.agg(
        pl.col("horizon").max(),
        pl.col("issued_at").n_unique().alias("forecasts"),
        pl.len().alias("rows"),
        paired.sum().alias("ref_rows"),
        pl.col("direction_hit").count().alias("moved"),
        pl.col("direction_hit").sum().alias("direction_hits"),
        *(pl.col(f"{whose}covered_{band}").sum() for band in BANDS for whose in ("", "ref_")),
        pl.col("crps", "ref_crps", "ref_tail").sum(),
        pl.col("crps", "tail").filter(paired).sum().name.prefix("paired_"),
        (pl.col("crps", "ref_crps", "tail", "ref_tail") / pl.col("ref_width"))
        .filter(paired)
        .sum()
        .name.prefix("scaled_"),
    ).sort(KEY)


@cache
def _no_sums() -> pl.DataFrame:
    return day_sums(with_scale(nothing_scored())).with_columns(source=pl.lit(""))


def daily_sums(home: Path, series: SeriesId) -> pl.DataFrame:
    """Return a series' daily sums, oldest first, updated from its month files; empty if it has no month files.

    `source` tells from which state of the month's files a row was computed. Sums of a month that is damaged or missing,
    as `cpb verify` tells, stay.
    """
    folder = series.folder(home, LEDGER.name)
    if not folder.is_dir():
        return _no_sums()
    with locked(folder / ".lock"):  # guards the sums only; the month files may be written concurrently
        stored, parts = read_sums(home, series), [_no_sums()]
        names = {file.name for file in month_files(folder)} | {
            f"{day:%Y-%m}.parquet" for day in stored["day"]
        }
        for name in sorted(names):
            forecasts, ledger = series.folder(home, FORECASTS.name) / name, folder / name
            states = (path.stat() for path in (forecasts, ledger) if path.exists())
            source = " ".join(f"{state.st_ino}/{state.st_mtime_ns}/{state.st_size}" for state in states)
            part = stored.filter(pl.col("source") == source)
            if part.is_empty():
                rows = read_month(home, series, FORECASTS, forecasts)
                scores = read_month(home, series, LEDGER, ledger)
                if rows is None or scores is None:
                    part = stored.filter(pl.col("day").dt.strftime("%Y-%m.parquet") == name)
                else:
                    part = day_sums(scored_rows(with_scale(rows), scores)).with_columns(source=pl.lit(source))
            parts.append(part)
        sums = pl.concat(parts).sort(KEY)
        if not sums.equals(stored):
            write_bytes(folder / DAILY, month_bytes(folder / DAILY, sums))
    return sums


def read_sums(home: Path, series: SeriesId) -> pl.DataFrame:
    """Return a series' daily sums as last written, without updating them; empty if they are missing or damaged."""
    try:
        return parse_sums(series.folder(home, LEDGER.name) / DAILY)
    except (FileNotFoundError, DamagedError):  # computed again at the next scoring
        return _no_sums()


def parse_sums(path: Path) -> pl.DataFrame:
    """Return the daily sums in a file; errors as in `months.parse_rows`."""
    return parse_rows(path, dict(_no_sums().schema))


def read_summary(home: Path, market: str) -> LedgerSummary | None:
    """Return a market's record as last written; None if it is missing or damaged: `cpb ledger` makes it again."""
    return find_record(tree_of(home, LEDGER.name, market) / SUMMARY, LedgerSummary, of=market)


def champion_records(summary: LedgerSummary | None) -> dict[SeriesId, dict[str, Any]]:
    """Return the record of each series' champions: of live forecasts if there are any, otherwise of replays."""
    if summary is None:
        return {}
    return {
        SeriesId(summary.market, entry.symbol, entry.timeframe): {
            "record_live": entry.live,
            "record_ratio": entry.crps_ratio,
            "record_low": entry.crps_ratio_low,
            "record_high": entry.crps_ratio_high,
            "record_verdict": entry.verdict,
            "record_days": entry.days,
        }
        for entry in sorted(summary.entries, key=lambda entry: entry.live)
        if entry.kind == "series"
    }


def write_summary(home: Path, market: str, now: datetime | None = None) -> LedgerSummary:
    """Compute a market's record from the daily sums of all its series, write and return it.

    Args:
        now: UTC; default the current time. Days with forecasts that may come due later are not complete.
    """
    before = read_summary(home, market)
    # a replay with an earlier as-of must not remove days scored since
    moment = max(now or datetime.now(UTC), before.made_at if before else datetime.min.replace(tzinfo=UTC))
    sums = [
        daily_sums(home, s).with_columns(symbol=pl.lit(s.symbol), timeframe=pl.lit(s.timeframe))
        for s in stored_series(home, LEDGER.name)
        if s.market == market
    ]
    entries: list[LedgerEntry] = []
    for (timeframe,), rows in pl.concat(sums).group_by("timeframe", maintain_order=True) if sums else ():
        ended = pl.col("day").cast(pl.Datetime("us", "UTC")) + timedelta(days=1)
        last = ended + pl.duration(seconds=pl.col("horizon") * INTERVAL_SECONDS[str(timeframe)])
        for names, part in _groups(rows.with_columns(complete=last <= moment)):
            for live in (True, False):
                shown = part.filter(pl.col("live") == live)
                if not shown.is_empty():
                    entries.append(_entry(shown, timeframe=str(timeframe), live=live, **names))
    summary = LedgerSummary(market=market, made_at=moment, entries=tuple(entries))
    write_record(tree_of(home, LEDGER.name, market) / SUMMARY, summary, of=market, compact=True)
    return summary


def _groups(sums: pl.DataFrame) -> Iterator[tuple[dict[str, str], pl.DataFrame]]:
    """Yield the sums of each entry of a timeframe, with the entry's kind and names."""
    yield {"kind": "pooled"}, sums
    for (symbol,), part in sums.group_by("symbol", maintain_order=True):
        yield {"kind": "series", "symbol": str(symbol)}, part
        weights = pl.col("weights_sha256")
        # A store that began again gives a version's name to other weights. Rows of before do not name theirs: they are
        # of the version's, unless it has had several.
        is_single = weights.drop_nulls().n_unique().over("model_version") == 1
        of = part.with_columns(
            pl.when(is_single).then(weights.max().over("model_version")).otherwise(weights)
        )
        last = of.group_by("model_version", "weights_sha256").agg(pl.col("day").max()).rows()
        newest = sorted(
            last, key=lambda row: (row[2], int(row[0].rpartition("/")[2]), row[1] or ""), reverse=True
        )
        for version, digest, _ in newest[:MAX_VERSIONS]:
            names = {"kind": "version", "symbol": str(symbol), "model_version": version}
            yield (
                names | {"weights_sha256": digest or ""},
                of.filter(pl.col("model_version") == version, weights.eq_missing(pl.lit(digest))),
            )


def _entry(sums: pl.DataFrame, **names: str | bool) -> LedgerEntry:
    single_coin = names["kind"] in ("series", "version")
    total = sums.select(cs.numeric()).sum().row(0, named=True)
    names_of = ("paired_{}", "ref_{}") if single_coin else ("scaled_{}", "scaled_ref_{}")
    losses = [name.format("crps") for name in names_of]
    tail, ref_tail = (total[name.format("tail")] for name in names_of)
    complete = sums.filter(pl.col("complete"), pl.col("ref_rows") > 0)
    days = complete.group_by("day", maintain_order=True).agg(pl.col(losses).sum()).sort("day")
    model, reference = days.select(losses).to_numpy().T
    horizon = int(sums["horizon"].to_numpy().max(initial=0))
    low, high = ratio_interval(
        len(days),
        float(model.sum()),
        float(reference.sum()),
        float(model @ model),
        float(reference @ reference),
        float(model @ reference),
        loss_days=horizon * INTERVAL_SECONDS[str(names["timeframe"])] / 86_400,
    ) or (None, None)
    rows, paired = total["rows"], total["ref_rows"]
    return LedgerEntry.model_validate(
        {
            **names,
            "role": CHAMPION,
            "first": sums["day"].min(),
            "last": sums["day"].max(),
            "days": len(days),
            "forecasts": total["forecasts"],
            "rows": rows,
            "crps": total["crps"] / rows if single_coin else None,
            "ref_crps": _ratio(total["ref_crps"], paired) if single_coin else None,
            "crps_ratio": _ratio(model.sum(), reference.sum()),
            "crps_ratio_low": low,
            "crps_ratio_high": high,
            "tail_ratio": _ratio(tail, ref_tail),
            **{f"coverage_{band}": total[f"covered_{band}"] / rows for band in BANDS},
            **{f"ref_coverage_{band}": _ratio(total[f"ref_covered_{band}"], paired) for band in BANDS},
            "directional_accuracy": _ratio(total["direction_hits"], total["moved"]),
        }
    )


def _ratio(above: float, below: float) -> float | None:
    return float(above / below) if below > 0 else None


def ledger_rows(
    home: Path,
    market: str | None = None,
    symbols: Collection[str] | None = None,
    timeframes: Collection[str] | None = None,
) -> list[dict[str, Any]]:
    """Return the entries of the record as flat rows, for `cpb ledger`; a missing record is created.

    Args:
        market: default: all real markets, or the simulator if there are no others.
        symbols, timeframes: filters; with `symbols`, figures over several coins are left out.
    """
    stored = {s.market for s in stored_series(home, LEDGER.name)}
    markets = [market] if market else sorted(stored - {SIM}) or sorted(stored)
    rows: list[dict[str, Any]] = []
    for shown in markets:
        summary = (read_summary(home, shown) or write_summary(home, shown)) if shown in stored else None
        rows += [
            {"market": shown, **entry.model_dump(mode="json"), "verdict": entry.verdict}
            for entry in (summary.entries if summary else ())
            if (symbols is None or entry.symbol in symbols)
            and (timeframes is None or entry.timeframe in timeframes)
        ]
    return rows


def record_by_day(sums: pl.DataFrame, series: SeriesId, now: datetime, *, live: bool) -> pl.DataFrame:
    """Return a row per complete UTC day of the forecasts by a series' champions, oldest first.

    `ratio`: CRPS over the reference's CRPS from the first day to this day, with its anytime-valid 95 % interval `low`,
    `high` (null while there are too few days); `rolling`, `coverage_50 …`: over the last `ROLLING_DAYS` days only. The
    last day's values equal the live record.

    Args:
        sums: `read_sums` of the series.
        now: UTC; days with forecasts that may come due later are not complete.
        live: select the forecasts made before their candles closed, else the replays.
    """
    horizon = pl.col("horizon") * timedelta(seconds=series.seconds)
    ends = pl.col("day").cast(pl.Datetime("us", "UTC")) + timedelta(days=1) + horizon
    complete = sums.filter(pl.col("live") == live, pl.col("ref_rows") > 0, ends <= now)
    if complete.is_empty():
        return pl.DataFrame(schema=DAYS_SCHEMA)
    days = complete.group_by("day").agg(cs.numeric().sum(), steps=pl.col("horizon").max()).sort("day")
    model, reference = pl.col("paired_crps"), pl.col("ref_crps")
    totals = days.select(
        model.cum_sum().alias("model"),
        reference.cum_sum(),
        (model * model).cum_sum().alias("mm"),
        (reference * reference).cum_sum().alias("rr"),
        (model * reference).cum_sum().alias("mr"),
    )
    loss_days = int(days["steps"].to_numpy().max()) * series.seconds / 86_400
    bounds = [
        ratio_interval(count, *sums_to_day, loss_days=loss_days) or (None, None)
        for count, sums_to_day in enumerate(totals.rows(), 1)
    ]
    low, high = zip(*bounds, strict=True)

    def rolling(name: str) -> pl.Expr:
        return pl.col(name).rolling_sum_by("day", window_size=f"{ROLLING_DAYS}d")

    return days.select(
        "day",
        ratio=model.cum_sum() / reference.cum_sum(),
        low=pl.Series(low, dtype=pl.Float64),
        high=pl.Series(high, dtype=pl.Float64),
        rolling=rolling("paired_crps") / rolling("ref_crps"),
        **{f"coverage_{band}": rolling(f"covered_{band}") / rolling("rows") for band in BANDS},
    )
