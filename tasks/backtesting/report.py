"""The report of a backtest: one self-contained HTML page of verdicts, tables and inlined pictures, without script."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tasks.backtesting.pairs import Pair
from tasks.backtesting.table import COLUMNS, Row, leaderboard_rows, member_rows
from tasks.judging import pictures
from tasks.judging.member import MemberScore
from tasks.judging.pool import PoolScore
from tasks.storage.files import write_bytes

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; font-size: 12.5px; margin: 1rem 0; display: block; overflow-x: auto }
td, th { padding: .2rem .55rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
th { cursor: help } td:first-child, td:nth-child(2), th:first-child, th:nth-child(2) { text-align: left }
img { max-width: 100%; height: auto } figure { display: inline-block; margin: .5rem } .note { color: #555 }
"""
INTRODUCTION = (
    "The median is practically the last price. What is forecast is the width of the distribution; nothing here "
    "claims to know the direction. The reference is a random walk with EWMA volatility and standardised empirical "
    "quantiles per step, on the same rows."
)


def write_report(
    path: Path,
    title: str,
    pools: Sequence[PoolScore],
    members: Sequence[MemberScore],
    figures: Sequence[tuple[str, Figure]] = (),
    notes: Sequence[str] = (),
    pairs: Sequence[Pair] = (),
) -> None:
    """Write the page atomically.

    Args:
        path: of the HTML file.
        title: heading.
        pools: pooled scores.
        members: members' scores.
        figures: further pictures with their captions (fans, losses, equity).
        notes: sentences under the heading: what was asked, look-ahead test, failures.
        pairs: comparisons of every two models.
    """
    body = [f"<h1>{html.escape(title)}</h1>", f"<p>{INTRODUCTION}</p>"]
    body += [f"<p class=note>{html.escape(note)}</p>" for note in notes]
    body += ["<h2>Verdicts</h2><ul>", *(_verdict(p) for p in pools), "</ul>"]
    if pairs:
        verdicts = [f"<li>{html.escape(pair.verdict)}.</li>" for pair in pairs]
        body += [
            "<details><summary>Comparison of every two models</summary><ul>",
            *verdicts,
            "</ul></details>",
        ]
    body += ["<h2>Leaderboard</h2>", _table(leaderboard_rows(pools))]
    for timeframe in sorted({p.timeframe for p in pools}):
        chosen = [p for p in pools if p.timeframe == timeframe]
        own = [m for m in members if m.timeframe == timeframe]
        body += [f"<h2>{html.escape(timeframe)}</h2>", *(_image(c, f) for c, f in _pool_figures(chosen, own))]
    if figures:
        body += ["<h2>Forecasts and training</h2>", *(_image(caption, figure) for caption, figure in figures)]
    body += ["<h2>Members</h2>", _table(member_rows(members))]
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style><body>{''.join(body)}</body></html>"
    )
    write_bytes(path, page.encode())


def _pool_figures(pools: list[PoolScore], members: list[MemberScore]) -> list[tuple[str, Figure]]:
    steps = {p.architecture: p.steps["crps_ratio"] for p in pools}
    curves = {p.architecture: p.steps["reliability"] for p in pools}
    shares = {p.architecture: p.steps["pit"] for p in pools}
    return [
        ("Skill per step: below 1 is better than the reference", pictures.steps_figure(steps)),
        ("Reliability: on the line, bands cover what they state", pictures.reliability_figure(curves)),
        ("PIT: flat means well calibrated", pictures.pit_figure(shares)),
        ("Skill by coin and model", _heat(pools, members)),
    ]


def _heat(pools: list[PoolScore], members: list[MemberScore]) -> Figure:
    columns = [p.architecture for p in pools]
    rows = sorted({m.symbol for m in members})
    ratios = np.full((len(rows), len(columns)), np.nan)
    for m in members:
        ratios[rows.index(m.symbol), columns.index(m.architecture)] = m.metrics["test_crps_ratio"]
    return pictures.heat_figure(rows, columns, ratios)


def _verdict(pool: PoolScore) -> str:
    name = html.escape(f"{pool.architecture} {pool.timeframe}")
    return f"<li><b>{name}</b> is {html.escape(pool.verdict)}.</li>"


def _image(caption: str, figure: Figure) -> str:
    data = base64.b64encode(pictures.png(figure)).decode()
    text = html.escape(caption)
    return f"<figure><img alt='{text}' src='data:image/png;base64,{data}'><figcaption>{text}</figcaption></figure>"


def _table(rows: Sequence[Row]) -> str:
    if not rows:
        return "<p>No model was judged.</p>"
    head = "".join(
        f"<th title='{html.escape(COLUMNS.get(n, n), quote=True)}'>{html.escape(n)}</th>" for n in rows[0]
    )
    lines = ["".join(f"<td>{html.escape(_cell(v))}</td>" for v in row.values()) for row in rows]
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cell(value: str | float | int) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
