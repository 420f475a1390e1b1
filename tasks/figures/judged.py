"""Sections of a report on judged models: verdicts, leaderboard, figures by timeframe, every model on every coin.

The figures are of calibration (reliability), of the CRPS ratio per step, and of scores over time.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from schemas.decision import MOVED, Decision
from tasks.figures.board import board_figure, coins_figure
from tasks.figures.page import (
    RATIO_TITLE,
    Column,
    Figure,
    Section,
    Table,
    figure,
    level,
    line,
    nothing,
    numbers,
    scatter,
    time,
    times,
)
from tasks.judging.member import MemberScore
from tasks.judging.pool import PoolScore, leaderboard_rows, member_rows, title_of
from tasks.judging.scores import LEVELS, Array
from tasks.judging.touch_scores import STATED, deciles

_NOTHING = "No model has been judged yet."

INTRODUCTION = (
    "The median is practically the last price. What is forecast is the width of the distribution; nothing here "
    "claims to know the direction. The reference is a random walk with EWMA volatility and standardised empirical "
    "quantiles per step, on the same rows; the plain random walk, a baseline, has one constant volatility."
)
MAX_OPEN_ROWS = 30
"""Maximum number of rows of a table that is initially open."""

COLUMNS = {
    "timeframe": Column("Candles", "candle length"),
    "architecture": Column("Model", "model or baseline"),
    "symbol": Column("Coin"),
    "coins": Column("Coins", "coins judged", ","),
    "crps_ratio": Column("CRPS ratio", "CRPS / reference's, mean over the coins; below 1 is better", ".4f"),
    "low": Column("95 % from", "lower end of its 95 % interval", ".4f"),
    "high": Column("95 % to", "upper end", ".4f"),
    "p": Column("p", "Diebold-Mariano p of no difference", "p"),
    "coins_below_one": Column("Coins better", "share of coins with a ratio below 1", ".0%"),
    "mae_ratio": Column("MAE ratio", "MAE of the median / that of the last close", ".4f"),
    "direction_1": Column(
        "Direction, next", "share of correct signs one candle ahead; 50 % is chance", ".1%"
    ),
    "direction": Column("Direction, all", "the same, mean over all steps", ".1%"),
    "coverage_80": Column("In 80 % band", "share within the 80 % band", ".1%"),
    "coverage_90": Column("In 90 % band", "share within the 90 % band", ".1%"),
    "tail_ratio": Column("Tail ratio", "pinball of the 5 % and 95 % quantiles / reference's", ".4f"),
    "touch_ratio": Column(
        "Touch ratio", "Brier score of the chance that a price is touched / reference's", ".4f"
    ),
    "n": Column("Forecasts", "forecasts judged", ","),
    "verdict": Column(
        "Verdict", "against the random walk with EWMA volatility; p is corrected over the coins"
    ),
}
"""Columns of the leaderboard and of the members' table."""

_OUTCOMES = {
    "first": ("first champion", "star"),
    "switched": ("switched to", "triangle-up"),
    "refreshed": ("refreshed", "circle"),
    "forced": ("by hand", "square"),
    "kept": ("champion kept", "line-ns-open"),
    "unchanged": ("unchanged", "line-ns-open"),
    "retired": ("retired", "x"),
}
"""Name and marker of each outcome; the markers of changed champions are filled."""


def reliability_figure(curves: Mapping[str, tuple[Array, Array]], what: str) -> Figure:
    """Return observed share minus stated share, a line per model; a calibrated model is at 0.

    Args:
        curves: name -> stated and observed shares [K].
        what: the forecast events, for the description.
    """
    if not curves:
        return nothing(_NOTHING)
    hover = "%{fullData.name}: %{y:+.1%} at %{x:.0%}<extra></extra>"
    traces = [
        line(i, name, numbers(stated), numbers(observed - stated), hovertemplate=hover)
        for i, (name, (stated, observed)) in enumerate(curves.items())
    ]
    off = ", ".join(f"{name} {np.abs(real - stated).max():.1%}" for name, (stated, real) in curves.items())
    return figure(
        traces,
        f"Largest distance of the observed from the stated share of {what}: {off}.",
        shapes=[level(0)],
        xaxis={"title": {"text": "stated share"}, "tickformat": ".0%"},
        yaxis={"title": {"text": "observed − stated"}, "tickformat": "+.1%"},
    )


def steps_figure(ratios: Mapping[str, Array]) -> Figure:
    """Return the CRPS ratio per step ahead, a line per model; below 1 is skill.

    Args:
        ratios: name -> CRPS divided by the random walk's [H].
    """
    if not ratios:
        return nothing(_NOTHING)
    traces = [
        line(
            i,
            name,
            list(range(1, len(values) + 1)),
            numbers(values),
            hovertemplate="%{fullData.name}, candle %{x}: %{y:.4f}<extra></extra>",
        )
        for i, (name, values) in enumerate(ratios.items())
    ]
    ends = ", ".join(
        f"{name} {values[0]:.3f} to {values[-1]:.3f}" for name, values in ratios.items() if len(values)
    )
    return figure(
        traces,
        f"CRPS ratio from the first to the last candle ahead: {ends}.",
        shapes=[level(1)],
        xaxis={"title": {"text": "candles ahead"}, "tickformat": "d"},
        yaxis={"title": {"text": RATIO_TITLE}, "tickformat": ".3f"},
    )


def judged_sections(
    pools: Sequence[PoolScore], members: Sequence[MemberScore], comparisons: Sequence[str] = ()
) -> list[Section]:
    """Return verdicts, leaderboard and figures of each timeframe; no figures for classifiers of the next move."""
    verdicts = [f"{title_of(p.architecture)} {p.timeframe} is {p.verdict}" for p in pools]
    sections = [Section("Verdicts", items=verdicts, text=[] if pools else ["No model was judged."])]
    if comparisons:
        sections.append(Section("Comparison of every two models", items=comparisons, folded=True))
    of_prices = [p for p in pools if "reliability" in p.steps]
    if not of_prices:
        return sections
    board = [("CRPS ratio with its 95 % interval", board_figure(_board_rows(of_prices)))]
    table = Table(COLUMNS, [_named(row) for row in leaderboard_rows(of_prices)])
    sections.append(Section("Leaderboard", figures=board, table=table))
    for timeframe in sorted({p.timeframe for p in of_prices}):
        chosen = [p for p in of_prices if p.timeframe == timeframe]
        of_timeframe = [m for m in members if m.timeframe == timeframe and "reliability" in m.steps]
        sections.append(Section(f"Candles of {timeframe}", figures=_figures(chosen, of_timeframe)))
    return sections


def members_section(members: Sequence[MemberScore]) -> Section:
    """Return the table of every model on every coin, folded if it is long."""
    of_prices = [m for m in members if "reliability" in m.steps]
    rows = [_named(row) | {"verdict": _short(str(row["verdict"]))} for row in member_rows(of_prices)]
    return Section("Every model on every coin", table=Table(COLUMNS, rows), folded=len(rows) > MAX_OPEN_ROWS)


def _figures(pools: list[PoolScore], members: list[MemberScore]) -> list[tuple[str, Figure]]:
    steps = {title_of(p.architecture): p.steps["crps_ratio"] for p in pools}
    curves = {title_of(p.architecture): (LEVELS, p.steps["reliability"]) for p in pools}
    touched = {
        title_of(p.architecture): tuple(deciles(p.steps[STATED]).T) for p in pools if STATED in p.steps
    }
    figures = [
        ("Skill by step: below 1 is better than the reference", steps_figure(steps)),
        ("Reliability: on 0, bands cover what they state", reliability_figure(curves, "closes")),
        ("CRPS ratio by coin and model", coins_figure(_coin_rows(pools, members))),
    ]
    if touched:
        drawn = reliability_figure(touched, "touched prices")
        figures.insert(2, ("Reliability of the chance of a touch, in deciles", drawn))
    return figures


def _board_rows(pools: Sequence[PoolScore]) -> list[dict[str, Any]]:
    return [
        {
            "architecture": title_of(p.architecture),
            "timeframe": p.timeframe,
            "verdict": p.verdict,
            **{f"crps_ratio{end}": p.metrics[f"test_crps_ratio{end}"] for end in ("", "_low", "_high")},
        }
        for p in pools
    ]


def _coin_rows(pools: list[PoolScore], members: list[MemberScore]) -> list[dict[str, Any]]:
    order = [p.architecture for p in pools]
    return [
        {
            "symbol": m.symbol,
            "architecture": title_of(m.architecture),
            "crps_ratio": m.metrics["test_crps_ratio"],
        }
        for m in sorted(members, key=lambda m: order.index(m.architecture))
    ]


def _short(verdict: str) -> str:
    """Return a verdict without its figures, which are in other columns."""
    return next(word for word in ("better", "worse", "no different") if verdict.startswith(word))


def _named(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"architecture": title_of(str(row["architecture"]))}


def record_figure(record: pl.DataFrame) -> Figure:
    """Return the CRPS ratio since the first day with its 95 % interval, and the ratio of the last days.

    Args:
        record: `day` (UTC date), `ratio`, `low`, `high` (since the first day, up to this day; null if there are too few
            days), `rolling` (the last 30 days), oldest first; of live forecasts or of replays, never of both.
    """
    if record.is_empty():
        return nothing("No forecast has been scored yet: the record begins after the first whole day.")
    days = times(record["day"])
    bounded = record.filter(pl.col("low").is_not_null())
    traces = _interval(bounded) if len(bounded) else []
    hover = "<b>%{x|%-d %b %Y}</b><br>%{fullData.name}: %{y:.4f}<extra></extra>"
    traces.append(
        line(
            0, "since the first day", days, numbers(record["ratio"]), mode=_mode(record), hovertemplate=hover
        )
    )
    traces.append(
        line(1, "last 30 days", days, numbers(record["rolling"]), mode=_mode(record), hovertemplate=hover)
    )
    last = record.row(-1, named=True)
    interval = f", 95 % interval {last['low']:.3f} to {last['high']:.3f}" if last["low"] is not None else ""
    ratio = "unknown" if last["ratio"] is None else f"{last['ratio']:.3f}"
    summary = f"CRPS ratio over {len(record)} days to {last['day']}: {ratio}{interval}"
    alt = f"{summary}; below 1 is better than the random walk."
    return figure(
        traces,
        alt,
        shapes=[level(1)],
        hovermode="x",
        xaxis={"type": "date", "hoverformat": "%-d %b %Y"},
        yaxis={"title": {"text": RATIO_TITLE}, "tickformat": ".3f"},
    )


def coverage_figure(record: pl.DataFrame) -> Figure:
    """Return the share of closes inside the bands of 50, 80 and 90 % over time, with the nominal shares.

    Args:
        record: `day` and `coverage_50 coverage_80 coverage_90` (shares of the last days), oldest first.
    """
    if record.is_empty():
        return nothing("No forecast has been scored yet: the coverage begins after the first whole day.")
    days = times(record["day"])
    traces = [
        line(
            i,
            f"{band} % band",
            days,
            numbers(record[f"coverage_{band}"]),
            mode=_mode(record),
            hovertemplate="<b>%{x|%-d %b %Y}</b><br>inside the %{fullData.name}: %{y:.1%}<extra></extra>",
        )
        for i, band in enumerate((50, 80, 90))
    ]
    last = record.row(-1, named=True)
    summary = ", ".join(
        f"{last[f'coverage_{b}']:.0%} of {b} %" for b in (50, 80, 90) if last[f"coverage_{b}"] is not None
    )
    return figure(
        traces,
        f"Coverage over {len(record)} days to {last['day']}: {summary}.",
        shapes=[level(band / 100) for band in (50, 80, 90)],
        hovermode="x",
        xaxis={"type": "date", "hoverformat": "%-d %b %Y"},
        yaxis={"title": {"text": "closes inside the band"}, "tickformat": ".0%", "range": [-0.02, 1.02]},
    )


def decisions_figure(decisions: Sequence[Decision]) -> Figure:
    """Return the decisions about a series' champion over time as markers, filled if the champion changed."""
    if not decisions:
        return nothing("Nothing has been decided about this series yet.")
    ordered = sorted(decisions, key=lambda decision: decision.decided_at)
    traces = []
    for outcome, (name, symbol) in _OUTCOMES.items():
        of_kind = [decision for decision in ordered if decision.outcome == outcome]
        if of_kind:
            traces.append(_marks(name, symbol, of_kind))
    last = ordered[-1]
    alt = (
        f"{len(ordered)} decisions; the newest, on {last.decided_at:%Y-%m-%d %H:%M} UTC: {_OUTCOMES[last.outcome][0]}, "
        f"version {last.version_number}. {last.reason}"
    )
    return figure(
        traces,
        alt,
        xaxis={"type": "date", "hoverformat": "%-d %b %Y %H:%M UTC"},
        yaxis={
            "title": {"text": "serving version"},
            "type": "category",
            "categoryorder": "array",
            "categoryarray": list(dict.fromkeys(_version(decision) for decision in ordered)),
        },
    )


def _marks(name: str, symbol: str, decisions: list[Decision]) -> dict[str, Any]:
    moved = decisions[0].outcome in MOVED
    colour = "$model" if moved else "$bad" if decisions[0].outcome == "retired" else "$soft"
    return scatter(
        "markers",
        [time(d.decided_at) for d in decisions],
        [_version(d) for d in decisions],
        name=name,
        customdata=[_wrapped(decision.reason) for decision in decisions],
        marker={"size": 11, "symbol": symbol, "color": colour, "line": {"width": 1.5, "color": colour}},
        hovertemplate="<b>%{x|%-d %b %Y %H:%M} UTC</b><br>%{fullData.name}, version %{y}<br>%{customdata}"
        "<extra></extra>",
    )


def _version(decision: Decision) -> str:
    return f"v{decision.version_number}"  # plotly would treat a bare number as numeric


def _wrapped(text: str, width: int = 60) -> str:
    """Return text split into lines for a hover label, which does not wrap itself; < and > are replaced against HTML."""
    return "<br>".join(textwrap.wrap(text.replace("<", "‹").replace(">", "›"), width))


def _mode(record: pl.DataFrame) -> str:
    return "lines+markers" if len(record) < 40 else "lines"


def _interval(record: pl.DataFrame) -> list[dict[str, Any]]:
    days = times(record["day"])
    edge: dict[str, Any] = {"line": {"width": 0}, "hoverinfo": "skip", "legendgroup": "interval"}
    return [
        scatter("lines", days, numbers(record["high"]), name="upper end", showlegend=False, **edge),
        scatter(
            "lines",
            days,
            numbers(record["low"]),
            name="95 % interval",
            fill="tonexty",
            fillcolor="$interval",
            **edge,
        ),
    ]
