"""A page of figures, tables and sentences as a single HTML file that makes no requests, and what all figures share.

A figure uses roles ("$model") for colours that depend on the theme; `themed` replaces them, as `static/report.js` does
in a browser. The colours are from Okabe and Ito's palette, which is safe for colour-blind readers, darkened or
brightened if their contrast with the background is below 3:1. Colour is never the only distinction: lines differ in
dash and marker, rising candles are hollow.

plotly's bundle (4.8 MB) comes from its wheel and is stored compressed, like the figures: the browser decompresses both
(DecompressionStream, in every browser since 2023), also if the page is in a frame without an origin, as in MLflow.
Such a file takes 2.0 MB plus its figures; without figures plotly is left out.
"""

import base64
import gzip
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars as pl

from tasks.storage.files import write_bytes

Figure = dict[str, Any]
"""A plotly figure: `data` (traces) and `layout`. `layout.meta.alt` is its text alternative."""

SERIES = tuple(f"$series_{i}" for i in range(7))
"""Roles of lines, in order of use."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
"""Dashes and markers of the lines in `SERIES`."""

DATA_KEYS = frozenset(
    {"x", "y", "z", "open", "high", "low", "close", "text", "hovertext", "customdata", "meta"}
)
"""Keys of data, in which roles are not replaced (the data is long and may contain any text)."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"

LEGEND = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
MAX_VALUE = 1e300
"""Larger numbers are treated as infinite, so that computations with two numbers stay finite."""

RATIO_TITLE = "CRPS ratio (below 1 is better)"
LONG_TEXT = 40
"""Length in characters above which a cell is wrapped."""


@dataclass(frozen=True)
class Theme:
    """`roles`: the colour of each role. `template`: plotly's layout template in these colours."""

    roles: dict[str, str]
    template: dict[str, Any]


def _template(roles: dict[str, str]) -> dict[str, Any]:
    axis = {
        "gridcolor": roles["$line"],
        "linecolor": roles["$line"],
        "zerolinecolor": roles["$line"],
        "tickcolor": roles["$line"],
        "automargin": True,
        "spikecolor": roles["$soft"],
        "spikethickness": 1,
        "spikedash": "dot",
        "title": {"standoff": 8, "font": {"size": 12, "color": roles["$soft"]}},
    }
    font = {"family": FONT, "size": 12, "color": roles["$ink"]}
    return {
        "layout": {
            "paper_bgcolor": roles["$card"],
            "plot_bgcolor": roles["$card"],
            "font": font,
            "colorway": [roles[name] for name in SERIES],
            "hoverlabel": {
                "bgcolor": roles["$card"],
                "bordercolor": roles["$soft"],
                "font": font,
                "align": "left",
            },
            "xaxis": axis,
            "yaxis": axis,
        }
    }


def _theme(**colours: str) -> Theme:
    roles = {f"${name}": colour for name, colour in colours.items()}
    return Theme(roles, _template(roles))


LIGHT = _theme(
    card="#ffffff",
    ink="#1c2733",
    soft="#5b6b7a",
    line="#d9e0e6",
    model="#0072B2",
    band_50="rgba(0,114,178,.34)",
    band_80="rgba(0,114,178,.20)",
    band_90="rgba(0,114,178,.11)",
    earlier="#A8578A",
    earlier_band="rgba(168,87,138,.13)",
    real="#1c2733",
    up="#007A59",
    up_fill="#ffffff",
    down="#C24E00",
    down_fill="#C24E00",
    volume="rgba(91,107,122,.45)",
    good="#0072B2",
    bad="#C24E00",
    unsure="#5b6b7a",
    interval="rgba(0,114,178,.18)",
    heat_low="#0072B2",
    heat_middle="#f4f6f8",
    heat_high="#D55E00",
    series_0="#0072B2",
    series_1="#C24E00",
    series_2="#007A59",
    series_3="#A8578A",
    series_4="#9A6A00",
    series_5="#2482BC",
    series_6="#1c2733",
)

DARK = _theme(
    card="#18212a",
    ink="#e6edf3",
    soft="#9aa8b5",
    line="#2d3944",
    model="#56B4E9",
    band_50="rgba(86,180,233,.38)",
    band_80="rgba(86,180,233,.22)",
    band_90="rgba(86,180,233,.12)",
    earlier="#DD9CC0",
    earlier_band="rgba(221,156,192,.15)",
    real="#e6edf3",
    up="#3CC79B",
    up_fill="#18212a",
    down="#F08A3C",
    down_fill="#F08A3C",
    volume="rgba(154,168,181,.45)",
    good="#56B4E9",
    bad="#F08A3C",
    unsure="#9aa8b5",
    interval="rgba(86,180,233,.20)",
    heat_low="#2482BC",
    heat_middle="#18212a",
    heat_high="#C24E00",
    series_0="#56B4E9",
    series_1="#F08A3C",
    series_2="#3CC79B",
    series_3="#DD9CC0",
    series_4="#E69F00",
    series_5="#7FA8FF",
    series_6="#e6edf3",
)

THEMES = {"light": LIGHT, "dark": DARK}


def themed(figure: Figure, theme: Theme) -> Figure:
    """Return the figure in a theme's colours; the data is shared, not copied."""
    filled = _fill(figure, theme.roles)
    return {**filled, "layout": {"template": theme.template, **filled["layout"]}}


def _fill(value: Any, roles: dict[str, str]) -> Any:
    if isinstance(value, str):
        return roles.get(value, value)
    if isinstance(value, dict):
        return {
            k: v if k in DATA_KEYS and not isinstance(v, dict) else _fill(v, roles) for k, v in value.items()
        }
    if isinstance(value, list):
        return [_fill(item, roles) for item in value]
    return value


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


@dataclass(frozen=True)
class Column:
    """Display of a column: its title, its meaning, and the format of its numbers (`.4f`, `.0%`; `p`: p-value)."""

    title: str
    meaning: str = ""
    format: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of plain values by column; columns missing in the first row are not shown."""

    columns: Mapping[str, Column]
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Section:
    """A section of the page: sentences, lists, captioned figures, a table. `folded`: initially closed."""

    title: str
    text: Sequence[str] = ()
    items: Sequence[str] = ()
    figures: Sequence[tuple[str, Figure]] = ()
    table: Table | None = None
    folded: bool = False


@dataclass
class _Page:
    """The page during its construction; its figures are collected separately for compression."""

    figures: list[Figure] = field(default_factory=list)

    def section(self, number: int, section: Section) -> str:
        body = [f"<p>{html.escape(text)}</p>" for text in section.text]
        if section.items:
            body.append(f"<ul>{''.join(f'<li>{html.escape(item)}</li>' for item in section.items)}</ul>")
        if section.figures:
            drawn = "".join(self._figure(caption, figure) for caption, figure in section.figures)
            body.append(f"<div class=figures>{drawn}</div>")
        if section.table:
            body.append(_table(section.title, section.table))
        inside = "".join(body)
        if section.folded:
            inside = f"<details><summary>Show</summary>{inside}</details>"
        return f'<section id="s{number}"><h2>{html.escape(section.title)}</h2>{inside}</section>'

    def _figure(self, caption: str, figure: Figure) -> str:
        number = len(self.figures)
        self.figures.append(figure)
        alt = html.escape(figure["layout"]["meta"]["alt"], quote=True)
        height = figure["layout"].get("height")
        style = f' style="height:{height}px"' if height else ""
        return (
            f"<figure><figcaption>{html.escape(caption)}</figcaption>"
            f'<div class=plot data-figure={number} role=group aria-label="{alt}"{style}></div>'
            f"<details class=numbers data-figure={number}><summary>Numbers</summary>"
            f'<div class=scroll tabindex=0 role=region aria-label="Numbers"></div></details></figure>'
        )


def write_page(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write the page atomically; it needs no other files and no network."""
    write_bytes(path, page_bytes(title, sections))


def page_bytes(title: str, sections: Sequence[Section]) -> bytes:
    """Return the page as HTML; the same sections give the same bytes."""
    page = _Page()
    body = "".join(page.section(i, section) for i, section in enumerate(sections))
    links = "".join(
        f'<li><a href="#s{i}">{html.escape(section.title)}</a></li>' for i, section in enumerate(sections)
    )
    hint = data = ""
    if page.figures:
        hint = "<noscript><p>The figures need JavaScript; tables and sentences do not.</p></noscript>"
        data = (
            f"<script type='application/gzip' id=figures>{_packed(_payload(page.figures))}</script>"
            f"<script type='application/gzip' id=bundle>{_bundle()}</script>"
        )
    text = (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{_static('report.css')}</style></head><body>"
        f"<header><h1>{html.escape(title)}</h1><button id=theme type=button>Light or dark</button></header>"
        f"<main><nav aria-label=Contents><ul>{links}</ul></nav>"
        f"{hint}{body}</main>"
        "<footer>Made by cpb. Times are UTC. Not investment advice.</footer>"
        f"{data}<script>{_static('report.js')}</script></body></html>"
    )
    return text.encode()


def _payload(figures: list[Figure]) -> bytes:
    themes = {name: {"roles": theme.roles, "template": theme.template} for name, theme in THEMES.items()}
    payload = {"themes": themes, "data_keys": sorted(DATA_KEYS), "figures": figures}
    return json.dumps(payload, allow_nan=False, separators=(",", ":")).encode()


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


@cache
def _bundle() -> str:
    """Return plotly's compressed browser bundle; compression takes half a second, once per process."""
    return _packed((files("plotly") / "package_data" / "plotly.min.js").read_bytes())


def _static(name: str) -> str:
    return (files("tasks.figures") / "static" / name).read_text(encoding="utf-8")


def _table(title: str, table: Table) -> str:
    if not table.rows:
        return "<p>There is nothing to list.</p>"
    shown = {name: column for name, column in table.columns.items() if name in table.rows[0]}
    is_text = {name: isinstance(table.rows[0][name], str) for name in shown}
    head = "".join(
        f'<th scope=col{_class(text=is_text[name])} title="{html.escape(column.meaning, quote=True)}">'
        f"{html.escape(column.title)}</th>"
        for name, column in shown.items()
    )
    lines = "".join(f"<tr>{''.join(_cells(shown, row))}</tr>" for row in table.rows)
    label = html.escape(title, quote=True)
    return (
        f'<div class=scroll tabindex=0 role=region aria-label="{label}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _cells(columns: Mapping[str, Column], row: Mapping[str, Any]) -> Iterable[str]:
    for name, column in columns.items():
        value = row.get(name)
        text = html.escape(_cell(value, column.format))
        yield f"<td{_class(text=isinstance(value, str), long=len(text) > LONG_TEXT)}>{text}</td>"


def _class(*, text: bool, long: bool = False) -> str:
    names = " ".join(name for name, holds in (("text", text), ("long", long)) if holds)
    return f' class="{names}"' if names else ""


def _cell(value: Any, form: str) -> str:
    if value is None or value != value:  # NaN
        return "–"
    if form == "p":
        return "<0.001" if value < 0.001 else f"{value:.3f}"
    return value if isinstance(value, str) else format(value, form)
