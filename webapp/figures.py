"""The figures of `tasks.figures` from stored data, drawn with plotly by the page and notebooks."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import polars as pl

from schemas.errors import CpbError, UsageError, counted
from schemas.identity import Market, SeriesId, market_home
from tasks.figures.board import board_figure, coins_figure, compare_figure, losses_figure, model_names
from tasks.figures.forecast import forecast_figure
from tasks.figures.over_time import coverage_figure, decisions_figure, record_figure
from tasks.forecasting import months
from tasks.forecasting.daily_sums import DAYS_SCHEMA, read_sums, record_by_day
from tasks.judging.pool import compare_pair
from tasks.judging.score_files import stored_score
from tasks.judging.verdicts import pair_verdict
from webapp import runs
from webapp.one_series import candle_rows, forecast_at
from webapp.stored import newest, record

ThemeName = Literal["light", "dark"]

MAX_EARLIER = 20
"""Maximum number of earlier forecasts in a figure."""

_DECISIONS = 400


def noted(figure: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """Return a figure with more facts in `layout.meta`."""
    layout = figure["layout"]
    return {**figure, "layout": {**layout, "meta": {**layout["meta"], **facts}}}


def forecast(
    home: Path,
    series: SeriesId,
    limit: int,
    until: datetime | None = None,
    issued_at: datetime | None = None,
    earlier: int = 0,
) -> dict[str, Any]:
    """Return candles with a forecast over them, by default the newest.

    The candles are the newest `limit` that close by `until`. If an earlier forecast is not within these candles, they
    are moved so that a quarter of them follows it.

    Args:
        earlier: number of earlier forecasts that are also drawn, each ending before the next begins.

    Raises:
        MemberError: the series has no candles, or no forecast of that instant.
    """
    shown = forecast_at(home, series, issued_at) if issued_at else newest(home, series)
    candles = candle_rows(home, series, limit, until)
    if issued_at and not until and len(candles) and issued_at < candles["open_time"][0]:
        after = shown["target_time"][-1] + limit // 4 * timedelta(seconds=series.seconds)
        candles = candle_rows(home, series, limit, after)
    before = _before(home, series, shown, earlier) if earlier and not shown.is_empty() else None
    return forecast_figure(candles, shown, earlier=before)


def _before(home: Path, series: SeriesId, shown: pl.DataFrame, count: int) -> pl.DataFrame | None:
    length = shown["target_time"][-1] - shown["issued_at"][0]
    end: datetime = shown["issued_at"][0]
    earlier: list[pl.DataFrame] = []
    # Backwards, each ending before the next begins: bands that overlap could not be told apart.
    for issued in reversed(months.issues(home, series, (count + 1) * len(shown), end)["issued_at"].to_list()):
        if len(earlier) < count and issued + length <= end:
            earlier.append(months.latest(home, series, issued))
            end = issued
    return pl.concat(earlier) if earlier else None


def over_time(
    home: Path, series: SeriesId, name: Literal["record", "coverage", "decisions"]
) -> dict[str, Any]:
    """Return the CRPS ratio of a series' forecasts, the share of closes in their bands, or its decisions, over time.

    `layout.meta.live`: whether the forecasts are live; replays are shown where there are none.
    """
    if name == "decisions":
        return decisions_figure(runs.decisions(series, _DECISIONS).decisions)
    days, live = pl.DataFrame(schema=DAYS_SCHEMA), False
    if of_market := record(home, series.market):
        sums = read_sums(home, series)
        live = bool(sums["live"].any())
        days = record_by_day(sums, series, of_market.made_at, live=live)
    return noted(record_figure(days) if name == "record" else coverage_figure(days), live=live)


def board(market: Market, timeframe: str | None) -> dict[str, Any]:
    """Return the architectures of a market's leaderboard; none if the store cannot be read."""
    try:
        return board_figure(runs.board_rows(market, timeframe, None)[0])
    except CpbError:
        return board_figure([])


def coins(market: Market, timeframe: str | None) -> dict[str, Any]:
    """Return the ratio of each architecture on each coin, for a single timeframe."""
    return coins_figure(_of_one_timeframe(runs.coin_rows(market, timeframe)))


def compare(home: Path, market: Market, timeframe: str | None, models: str) -> dict[str, Any]:
    """Return two models side by side, on the coins that both were judged on over the same test span.

    `layout.meta.note`: the paired test of their losses on the same forecasts, from the scores stored on this machine.

    Args:
        models: two architectures, each with its preset if the leaderboard has several presets: `har,gru/smoke`.

    Raises:
        UsageError: `models` does not name two models.
    """
    names = [name.strip(" ") for name in models.split(",")]  # as the pattern that describes it
    if len(names) != 2 or not all(names):
        raise UsageError(f"models {models!r} must name two architectures, as in har,gru or har,gru/smoke")
    rows = _of_one_timeframe(runs.coin_rows(market, timeframe))
    labels = model_names(rows)
    first, second = (
        {row["symbol"]: row for row, label in zip(rows, labels, strict=True) if label == name}
        for name in names
    )
    common = [symbol for symbol in first if symbol in second]
    # Ratios over different rows must not be compared: coins with other spans are left out, and counted.
    same = [s for s in common if first[s]["test_span"] and first[s]["test_span"] == second[s]["test_span"]]
    pairs = [{"symbol": s, "first": first[s]["crps_ratio"], "second": second[s]["crps_ratio"]} for s in same]
    drawn = compare_figure(names[0], names[1], pairs, left_out=len(common) - len(same))
    return noted(drawn, note=_paired_test(home, market, names, [(first[s], second[s]) for s in same]))


def _paired_test(
    home: Path, market: Market, names: list[str], rows: list[tuple[dict[str, Any], dict[str, Any]]]
) -> str:
    root = market_home(home, market)
    stored = [tuple(stored_score(root, row["key"]) for row in both) for both in rows]
    # Losses are on the machine that judged; the board may be of another one.
    pairs = [(a, b) for a, b in stored if a and b]
    if names[0] == names[1] or not pairs:
        return "No paired test: the two models' losses on the same forecasts are not stored here, or by other code."
    first, second = names
    result = pair_verdict(first, second, *compare_pair([a for a, _ in pairs], [b for _, b in pairs]))
    return (
        f"Paired test on the same forecasts of {counted(len(pairs), 'coin')}: {result}. Of several pairs tried, one in "
        "twenty without a difference has p under 0.05."
    )


def losses(run_id: str) -> dict[str, Any]:
    """Return losses per epoch; errors as in `judged_models.loss_histories`."""
    return losses_figure(runs.losses(run_id))


def _of_one_timeframe(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the first timeframe, since several timeframes would overlap in a figure."""
    return [row for row in rows if row["timeframe"] == rows[0]["timeframe"]]
