"""A page in a single file: sections with tables and interactive figures, without network requests.

plotly's bundle (4.8 MB) comes from its wheel and is stored compressed, like the figures: the browser decompresses both
(DecompressionStream, in every browser since 2023), also if the page is in a frame without an origin, as in MLflow.
Such a file takes 2.0 MB plus its figures; without figures plotly is left out.
"""

import base64
import gzip
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tasks.figures.plot import Figure
from tasks.figures.themes import DATA_KEYS, THEMES
from tasks.storage.files import write_bytes

LONG_TEXT = 40
"""Length in characters above which a cell is wrapped."""


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
        # The page holds its figures in one compressed block, in this order.
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
    # Without a time in gzip's header, the same figures give the same bytes.
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


@cache
def _bundle() -> str:
    """Return plotly's compressed browser bundle; compression takes half a second, once per process."""
    # From the installed wheel: the page then draws what the tests' schema describes.
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
