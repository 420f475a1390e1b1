"""Figures of a series over time: its live record, the coverage of its bands, the decisions about its champion."""

import textwrap
from collections.abc import Sequence
from typing import Any

import polars as pl

from schemas.decision import MOVED, Decision
from tasks.figures.plot import (
    RATIO_TITLE,
    Figure,
    figure,
    level,
    line,
    nothing,
    numbers,
    scatter,
    time,
    times,
)

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


def record_figure(record: pl.DataFrame) -> Figure:
    """Return the CRPS ratio since the first day with its 95 % interval, and the ratio of the last days.

    Args:
        record: `day` (UTC date), `ratio`, `low`, `high` (since the first day, up to this day; null if there are too few
            days), `rolling` (the last 30 days), oldest first; of live forecasts or of replays, never of both.
    """
    if record.is_empty():
        return nothing("No forecast has been scored yet: the record begins after the first whole day.")
    days = times(record["day"])
    # The interval begins where there are days enough; plotly would connect across the nulls.
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
