"""The parts that figures are made of: traces, layout, numbers and times as plotly's JSON has them."""

import math
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import Any

import polars as pl

Figure = dict[str, Any]
"""A plotly figure: `data` (traces) and `layout`. `layout.meta.alt` is its text alternative."""

LEGEND = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}

MAX_VALUE = 1e300
"""Larger numbers are treated as infinite, so that computations with two numbers stay finite."""

RATIO_TITLE = "CRPS ratio (below 1 is better)"


def figure(traces: Sequence[dict[str, Any]], alt: str, **layout: Any) -> Figure:
    """Return a figure of traces with its description and the common layout, which `layout` may override."""
    return {
        "data": list(traces),
        "layout": {
            "hovermode": "closest",
            "legend": LEGEND,
            "margin": {"l": 8, "r": 8, "t": 32, "b": 8},
            "meta": {"alt": alt},
        }
        | layout,
    }


def nothing(reason: str) -> Figure:
    """Return an empty figure with a text that gives the reason."""
    note = {
        "text": reason,
        "showarrow": False,
        "x": 0.5,
        "y": 0.5,
        "xref": "paper",
        "yref": "paper",
        "font": {"color": "$soft"},
    }
    hidden = {"visible": False}
    return figure([], reason, annotations=[note], xaxis=hidden, yaxis=hidden)


def numbers(values: Iterable[Any]) -> list[float | None]:
    """Return numbers with six significant digits; None for missing or non-finite values, which JSON lacks."""
    return [number(value) for value in values]


def number(value: Any) -> float | None:
    """Return a number as in `numbers`."""
    if value is None or not abs(value) < MAX_VALUE:
        return None
    # Six digits draw the same picture, and make a shorter page.
    return float(f"{float(value):.6g}")


def prices(values: pl.Series) -> list[float | None]:
    """Return prices in full precision; None for non-finite values."""
    return [value if value is not None and math.isfinite(value) else None for value in values.to_list()]


def times(values: pl.Series) -> list[str]:
    """Return times or dates as ISO text, UTC with Z."""
    return values.dt.strftime("%Y-%m-%dT%H:%M:%SZ" if values.dtype != pl.Date else "%Y-%m-%d").to_list()


def time(value: datetime | date) -> str:
    """Return a time as in `times`."""
    return f"{value:%Y-%m-%dT%H:%M:%SZ}" if isinstance(value, datetime) else f"{value:%Y-%m-%d}"


def price_format(price: float | None) -> str:
    """Return a number format for prices: at least five digits, cents for large prices (108,250.12, 0.00001234)."""
    # Five digits from the first that is not 0: what a tick of a cheap coin needs, and cents for a dear one.
    magnitude = math.floor(math.log10(abs(price))) if price and math.isfinite(price) else 0
    return f",.{max(2, min(12, 4 - magnitude))}f"


def price_text(price: float | None) -> str:
    """Return a price as text, in the format of `price_format`."""
    return "unknown" if price is None else format(price, price_format(price))


def scatter(mode: str, x: Sequence[Any], y: Sequence[Any], name: str = "", **more: Any) -> dict[str, Any]:
    """Return a trace of lines or markers; `more`: its other properties."""
    named = {"name": name} if name else {}
    return {"type": "scatter", "mode": mode, **named, "x": list(x), "y": list(y), **more}


def line(i: int, name: str, x: Sequence[Any], y: Sequence[Any], **more: Any) -> dict[str, Any]:
    """Return the i-th line of a figure, with a distinct colour, dash and marker."""
    colour = SERIES[i % len(SERIES)]
    dashed = {"color": colour, "dash": DASHES[i % len(DASHES)], "width": 2}
    marker = {"color": colour, "symbol": MARKERS[i % len(MARKERS)], "size": 6}
    return scatter("lines+markers", x, y, name=name, line=dashed, marker=marker) | more


def level(value: float, axis: str = "y") -> dict[str, Any]:
    """Return a thin line across the figure at a value of an axis, as a reference level."""
    other = "x" if axis == "y" else "y"
    return {
        "type": "line",
        "layer": "below",
        "line": {"color": "$soft", "width": 1.5, "dash": "dash"},
        f"{axis}0": value,
        f"{axis}1": value,
        f"{other}0": 0,
        f"{other}1": 1,
        f"{other}ref": f"{other} domain",
    }


SERIES = tuple(f"$series_{i}" for i in range(7))
"""Roles of lines, in order of use."""


DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")


MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
"""Dashes and markers of the lines in `SERIES`."""
