"""Scores what is due, and keeps the live record of a market: `ledger/summary.json`, for page, API and `cpb ledger`.

The record's size does not grow with time: it contains an entry or two for each series, recipe and recent version. Live
forecasts and replays are never added up, nor are different versions. It is computed from daily sums of the losses,
`daily.parquet` beside a series' scores: a scan of all rows takes 0.2 s a year of an hourly series. The sums are
computed again for each month whose files have changed, so an hourly scoring reads only the month that it wrote to.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from cpbmodels.data import INTERVAL_SECONDS
from schemas.failure import Failure
from schemas.forecast_rows import CHAMPION
from schemas.identity import SIM, SeriesId, stored_series, tree_of
from schemas.ledger import BANDS, LedgerEntry, LedgerSummary, Score
from tasks.forecasting.chain import ANY_ERROR
from tasks.forecasting.daily_sums import daily_sums
from tasks.forecasting.issue import failure, store_batch
from tasks.forecasting.months import (
    LEDGER,
    series_with_forecasts,
)
from tasks.forecasting.score import scores_due
from tasks.judging.live_interval import ratio_interval
from tasks.storage.records import find_record, write_record

SUMMARY = "summary.json"

MAX_VERSIONS = 4
"""Versions of a series in the summary, newest first; nightly refreshes make 365 versions a year."""


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
    # Also where nothing came due: days become complete by time alone.
    for market in dict.fromkeys(s.market for s in series):
        try:
            if series_with_forecasts(home, market):
                write_summary(home, market, now)
        except ANY_ERROR as error:  # scores are stored; the next scoring updates the record
            failures.append(Failure.of(None, "score", f"the record of {market} is not updated: {error}"))
    return Score(rows=sum(stored.values()), failures=tuple(failures))


def read_summary(home: Path, market: str) -> LedgerSummary | None:
    """Return a market's record as last written; None if it is missing or damaged: `cpb ledger` makes it again."""
    return find_record(tree_of(home, LEDGER.name, market) / SUMMARY, LedgerSummary)


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
    # All series of the market: the pooled figures are over every coin that was ever forecast, not over
    # those asked for.
    sums = [
        daily_sums(home, s).with_columns(symbol=pl.lit(s.symbol), timeframe=pl.lit(s.timeframe))
        for s in stored_series(home, LEDGER.name)
        if s.market == market
    ]
    entries: list[LedgerEntry] = []
    for (timeframe,), rows in pl.concat(sums).group_by("timeframe", maintain_order=True) if sums else ():
        ended = pl.col("day").cast(pl.Datetime("us", "UTC")) + timedelta(days=1)
        # The last forecast of a day comes true a horizon after its end; before that the day's sums would
        # still change.
        last = ended + pl.duration(seconds=pl.col("horizon") * INTERVAL_SECONDS[str(timeframe)])
        for names, part in _groups(rows.with_columns(complete=last <= moment)):
            # Apart: a replay knew, or could have known, what came.
            for live in (True, False):
                shown = part.filter(pl.col("live") == live)
                if not shown.is_empty():
                    entries.append(_entry(shown, timeframe=str(timeframe), live=live, **names))
    summary = LedgerSummary(market=market, made_at=moment, entries=tuple(entries))
    write_record(tree_of(home, LEDGER.name, market) / SUMMARY, summary, compact=True)
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
    # Over several coins in units of each coin's own volatility: else the loudest coin would decide.
    names_of = ("paired_{}", "ref_{}") if single_coin else ("scaled_{}", "scaled_ref_{}")
    losses = [name.format("crps") for name in names_of]
    tail, ref_tail = (total[name.format("tail")] for name in names_of)
    complete = sums.filter(pl.col("complete"), pl.col("ref_rows") > 0)
    days = complete.group_by("day", maintain_order=True).agg(pl.col(losses).sum()).sort("day")
    # Only days of which both have scores: the interval is of a ratio of paired sums.
    model, reference = days.select(losses).to_numpy().T
    horizon = int(sums["horizon"].to_numpy().max(initial=0))
    # From five sums, so that a daily reading costs nothing; `loss_days`: losses of overlapping horizons
    # share information.
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
