"""The live record of a market, `ledger/summary.json`, for page, API and `cpb ledger`; rewritten at each scoring.

Its size does not grow with time: it contains an entry or two for each series, recipe and recent version, computed from
daily sums. Live forecasts and replays are never added up, nor are different versions.

Also the record of a series day by day: the cumulative ratio with its interval, and the ratio of the last days.
"""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from schemas.errors import DamagedError
from schemas.forecasts import CHAMPION
from schemas.identity import INTERVAL_SECONDS, SIM, SeriesId, stored_series, tree_of
from schemas.ledger import LedgerEntry, LedgerSummary
from tasks.forecasting.daily import SUMS, daily_sums, recipes_of
from tasks.forecasting.losses import BANDS
from tasks.forecasting.months import LEDGER, log_once
from tasks.judging.evidence import ratio_interval
from tasks.storage.records import read_record, write_record

SUMMARY = "summary.json"

MAX_VERSIONS = 4
"""Versions of a series in the summary, newest first; nightly refreshes make 365 versions a year."""

MAX_RECIPES = 8
"""Recipes of a timeframe in the summary, those with the most recent forecasts."""


def read_summary(home: Path, market: str) -> LedgerSummary | None:
    """Return a market's record as last written; None if it is missing or damaged."""
    path = _path(home, market)
    try:
        return read_record(path, LedgerSummary, of=market)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        log_once(path, f"{error} (`cpb ledger` also recreates it)")
        return None


def champion_records(known: LedgerSummary | None) -> dict[SeriesId, dict[str, Any]]:
    """Return the record of each series' champions: of live forecasts if there are any, otherwise of replays."""
    own = [entry for entry in (known.entries if known else ()) if entry.kind == "series"]
    return {
        SeriesId(known.market, entry.symbol, entry.timeframe): {
            "record_live": entry.live,
            "record_ratio": entry.crps_ratio,
            "record_low": entry.crps_ratio_low,
            "record_high": entry.crps_ratio_high,
            "record_verdict": entry.verdict,
            "record_days": entry.days,
        }
        for entry in sorted(own, key=lambda entry: entry.live)
        if known
    }


def write_summary(home: Path, market: str, now: datetime | None = None) -> LedgerSummary:
    """Compute a market's record from the daily sums of all its series, write and return it.

    Args:
        now: UTC; default the current time. Days with forecasts that may come due later are not complete.
    """
    moment, before = now or datetime.now(UTC), read_summary(home, market)
    if before:  # a replay with an earlier as-of must not remove days scored since
        moment = max(moment, before.made_at)
    made = make_summary(home, market, moment)
    write_record(_path(home, market), made, of=market, compact=True)
    return made


def make_summary(home: Path, market: str, now: datetime) -> LedgerSummary:
    """Return a market's record."""
    parts = [_sums(home, s) for s in stored_series(home, LEDGER.name) if s.market == market]
    parts = [part for part in parts if not part.is_empty()]
    if not parts:
        return LedgerSummary(market=market, made_at=now)  # type: ignore[arg-type]
    sums = pl.concat(parts)
    found: list[LedgerEntry] = []
    for (timeframe,), of_frame in sums.partition_by("timeframe", as_dict=True).items():
        step = INTERVAL_SECONDS[str(timeframe)]
        ended = pl.col("day").cast(pl.Datetime("us", "UTC")) + timedelta(days=1)
        complete = ended + pl.duration(seconds=pl.col("horizon") * step) <= now
        found += _entries(of_frame.with_columns(complete=complete), str(timeframe))
    return LedgerSummary(market=market, made_at=now, entries=tuple(found))  # type: ignore[arg-type]


def _path(home: Path, market: str) -> Path:
    return tree_of(home, LEDGER.name, market) / SUMMARY


def _sums(home: Path, series: SeriesId) -> pl.DataFrame:
    recipes = recipes_of(home, series)
    return daily_sums(home, series).with_columns(
        symbol=pl.lit(series.symbol),
        timeframe=pl.lit(series.timeframe),
        recipe=pl.col("model_version").replace_strict(recipes, default="", return_dtype=pl.String),
    )


def _entries(sums: pl.DataFrame, timeframe: str) -> Iterator[LedgerEntry]:
    champions = sums.filter(pl.col("role") == CHAMPION)
    yield from _both(champions, "pooled", timeframe, role=CHAMPION)
    known = sums.filter(pl.col("recipe") != "")
    for (recipe, role), part in _newest(known, ("recipe", "role"), MAX_RECIPES):
        yield from _both(part, "recipe", timeframe, role=role, recipe=recipe)
    for (symbol,), part in sums.partition_by("symbol", as_dict=True).items():
        own = part.filter(pl.col("role") == CHAMPION)
        yield from _both(own, "series", timeframe, symbol=str(symbol), role=CHAMPION)
        for (version, role), rows in _newest(part, ("model_version", "role"), MAX_VERSIONS):
            named = {"symbol": str(symbol), "role": role, "model_version": version}
            yield from _both(rows, "version", timeframe, **named, recipe=rows["recipe"][0])


def _newest(
    sums: pl.DataFrame, key: tuple[str, str], count: int
) -> Iterator[tuple[tuple[str, str], pl.DataFrame]]:
    """Yield the `count` groups with the newest forecasts, newest first."""
    last = sums.group_by(key).agg(pl.col("day").max()).rows()
    ordered = sorted(last, key=lambda group: (group[2], _number(group[0]), group[1]), reverse=True)
    for first, second, _ in ordered[:count]:
        yield (first, second), sums.filter(pl.col(key[0]) == first, pl.col(key[1]) == second)


def _number(model_version: str) -> int:
    """Return the version number, 3 for `cpb-BTCUSDT-1h/3`; 0 for other texts."""
    tail = model_version.rpartition("/")[2]
    return int(tail) if tail.isdigit() else 0


def _both(sums: pl.DataFrame, kind: str, timeframe: str, **names: str) -> Iterator[LedgerEntry]:
    """Yield an entry of live forecasts and an entry of replays, each if it has rows."""
    for live in (True, False):
        part = sums.filter(pl.col("live") == live)
        if not part.is_empty():
            yield _entry(part, kind=kind, timeframe=timeframe, live=live, **names)


def _entry(sums: pl.DataFrame, *, kind: str, **names: str | bool) -> LedgerEntry:
    of_one_coin = kind in ("series", "version")
    total = sums.select(SUMS).sum().row(0, named=True)
    own, other = ("paired_crps", "ref_crps") if of_one_coin else ("scaled_crps", "scaled_ref_crps")
    own_tail, other_tail = (name.replace("crps", "tail") for name in (own, other))
    days = (
        sums.filter(pl.col("complete"), pl.col("ref_rows") > 0)
        .group_by("day", maintain_order=True)
        .agg(pl.col(own).sum(), pl.col(other).sum())
        .sort("day")
    )
    model, reference = days[own].to_numpy(), days[other].to_numpy()
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
            "kind": kind,
            **names,
            "first": sums["day"].min(),
            "last": sums["day"].max(),
            "days": len(days),
            "forecasts": total["forecasts"],
            "rows": rows,
            "crps": total["crps"] / rows if of_one_coin else None,
            "ref_crps": _ratio(total["ref_crps"], paired) if of_one_coin else None,
            "crps_ratio": _ratio(model.sum(), reference.sum()),
            "crps_ratio_low": low,
            "crps_ratio_high": high,
            "tail_ratio": _ratio(total[own_tail], total[other_tail]),
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
        known = (read_summary(home, shown) or write_summary(home, shown)) if shown in stored else None
        for entry in known.entries if known else ():
            if (symbols is None or entry.symbol in symbols) and (
                timeframes is None or entry.timeframe in timeframes
            ):
                head = {"market": shown, **entry.model_dump(mode="json")}
                rows.append(head | {"verdict": entry.verdict})
    return rows


ROLLING_DAYS = 30
"""Window of `rolling` and of the coverage, in days."""

_SUMS = ("rows", "paired_crps", "ref_crps", *(f"covered_{band}" for band in BANDS))
SCHEMA = {
    "day": pl.Date,
    **dict.fromkeys(("ratio", "low", "high", "rolling", *(f"coverage_{band}" for band in BANDS)), pl.Float64),
}


def record_by_day(sums: pl.DataFrame, series: SeriesId, now: datetime, *, live: bool) -> pl.DataFrame:
    """Return a row per complete UTC day of the forecasts by a series' champions, oldest first.

    `ratio`: CRPS over the reference's CRPS from the first day to this day, with its anytime-valid 95 % interval `low`,
    `high` (null while there are too few days); `rolling`, `coverage_50 …`: over the last `ROLLING_DAYS` days only. The
    last day's values equal the live record.

    Args:
        sums: `daily.read_sums` of the series.
        now: UTC; days with forecasts that may come due later are not complete.
        live: select the forecasts made before their candles closed, else the replays.
    """
    horizon = pl.col("horizon") * timedelta(seconds=series.seconds)
    ends = pl.col("day").cast(pl.Datetime("us", "UTC")) + timedelta(days=1) + horizon
    known = sums.filter(
        pl.col("role") == CHAMPION, pl.col("live") == live, pl.col("ref_rows") > 0, ends <= now
    )
    if known.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    days = known.group_by("day").agg(pl.col(*_SUMS).sum()).sort("day")
    span = f"{ROLLING_DAYS}d"
    last = {name: pl.col(name).rolling_sum_by("day", window_size=span) for name in _SUMS}
    model, reference = pl.col("paired_crps"), pl.col("ref_crps")
    days = days.with_columns(
        ratio=model.cum_sum() / reference.cum_sum(),
        rolling=last["paired_crps"] / last["ref_crps"],
        mm=(model * model).cum_sum(),
        rr=(reference * reference).cum_sum(),
        mr=(model * reference).cum_sum(),
        m=model.cum_sum(),
        r=reference.cum_sum(),
        **{f"coverage_{band}": last[f"covered_{band}"] / last["rows"] for band in BANDS},
    )
    covers = int(known["horizon"].to_numpy().max()) * series.seconds / 86_400
    bounds = [
        ratio_interval(i, *sums_to, loss_days=covers) or (None, None)
        for i, sums_to in enumerate(days.select("m", "r", "mm", "rr", "mr").rows(), 1)
    ]
    low, high = zip(*bounds, strict=True)
    bounded = days.with_columns(low=pl.Series(low, dtype=pl.Float64), high=pl.Series(high, dtype=pl.Float64))
    return bounded.select(list(SCHEMA))
