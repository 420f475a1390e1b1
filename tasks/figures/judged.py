"""Sections of a report on judged models: verdicts, leaderboard, figures by timeframe, every model on every coin.

The figures are of calibration (reliability, PIT) and of the CRPS ratio per step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.figures.board import board_figure, coins_figure
from tasks.figures.page import Column, Section, Table
from tasks.figures.parts import RATIO_TITLE, figure, level, line, nothing, numbers
from tasks.figures.theme import SERIES, Figure
from tasks.judging.member import MemberScore
from tasks.judging.pool import COLUMNS, PoolScore, leaderboard_rows, member_rows, title_of
from tasks.judging.scores import LEVELS, Array

_NOTHING = "No model has been judged yet."


def reliability_figure(curves: Mapping[str, Array]) -> Figure:
    """Return observed share minus stated level, a line per model; a calibrated model is at 0.

    Args:
        curves: name -> observed shares [19] at the levels of a forecast (`scores.reliability`).
    """
    if not curves:
        return nothing(_NOTHING)
    hover = "%{fullData.name}: %{y:+.1%} at the %{x:.0%} quantile<extra></extra>"
    stated = numbers(LEVELS)
    traces = [
        line(i, name, stated, numbers(observed - LEVELS), hovertemplate=hover)
        for i, (name, observed) in enumerate(curves.items())
    ]
    off = ", ".join(f"{name} {np.abs(observed - LEVELS).max():.1%}" for name, observed in curves.items())
    return figure(
        traces, f"Largest distance of the observed share of closes from the stated level: {off}.", shapes=[level(0)],
        xaxis={"title": {"text": "stated level"}, "tickformat": ".0%"},
        yaxis={"title": {"text": "observed − stated"}, "tickformat": "+.1%"},
    )  # fmt: skip


def pit_figure(shares: Mapping[str, Array]) -> Figure:
    """Return PIT histograms, a step line per model: flat at 5 % is calibrated, ∩-shaped too wide, ∪-shaped too narrow.

    Args:
        shares: name -> share of closes [20] between neighbouring quantiles (`scores.pit_histogram`).
    """
    if not shares:
        return nothing(_NOTHING)
    edges = numbers(np.arange(21) * 0.05)
    hover = "%{fullData.name}: %{y:.1%} of the closes from the %{x:.0%} quantile to the next<extra></extra>"
    traces = []
    for i, (name, share) in enumerate(shares.items()):
        values = numbers(share)
        steps = line(i, name, edges, [*values, values[-1]], mode="lines", hovertemplate=hover)
        traces.append(steps | {"line": {**steps["line"], "shape": "hv", "color": SERIES[i % len(SERIES)]}})
    off = ", ".join(f"{name} {np.abs(share - 0.05).max():.1%}" for name, share in shares.items())
    return figure(
        traces, f"Largest distance of a bin of the PIT histogram from 5 %: {off}.", shapes=[level(0.05)],
        xaxis={"title": {"text": "place among the quantiles"}, "tickformat": ".0%", "range": [0, 1]},
        yaxis={"title": {"text": "share of closes"}, "tickformat": ".0%", "rangemode": "tozero"},
    )  # fmt: skip


def steps_figure(ratios: Mapping[str, Array]) -> Figure:
    """Return the CRPS ratio per step ahead, a line per model; below 1 is skill.

    Args:
        ratios: name -> CRPS divided by the random walk's [H].
    """
    if not ratios:
        return nothing(_NOTHING)
    traces = [
        line(
            i, name, list(range(1, len(values) + 1)), numbers(values),
            hovertemplate="%{fullData.name}, candle %{x}: %{y:.4f}<extra></extra>",
        )
        for i, (name, values) in enumerate(ratios.items())
    ]  # fmt: skip
    ends = ", ".join(
        f"{name} {values[0]:.3f} to {values[-1]:.3f}" for name, values in ratios.items() if len(values)
    )
    return figure(
        traces, f"CRPS ratio from the first to the last candle ahead: {ends}.", shapes=[level(1)],
        xaxis={"title": {"text": "candles ahead"}, "tickformat": "d"},
        yaxis={"title": {"text": RATIO_TITLE}, "tickformat": ".3f"},
    )  # fmt: skip


INTRODUCTION = (
    "The median is practically the last price. What is forecast is the width of the distribution; nothing here "
    "claims to know the direction. The reference is a random walk with EWMA volatility and standardised empirical "
    "quantiles per step, on the same rows; the plain random walk, a baseline, has one constant volatility."
)

MAX_OPEN_ROWS = 30
"""Maximum number of rows of a table that is initially open."""

_TITLES = {
    "timeframe": ("Candles", ""), "architecture": ("Model", ""), "symbol": ("Coin", ""), "coins": ("Coins", ","),
    "crps_ratio": ("CRPS ratio", ".4f"), "low": ("95 % from", ".4f"), "high": ("95 % to", ".4f"), "p": ("p", "p"),
    "coins_below_one": ("Coins better", ".0%"), "mae_ratio": ("MAE ratio", ".4f"),
    "direction_1": ("Direction, next", ".1%"), "direction": ("Direction, all", ".1%"),
    "coverage_80": ("In 80 % band", ".1%"), "coverage_90": ("In 90 % band", ".1%"),
    "tail_ratio": ("Tail ratio", ".4f"), "n": ("Forecasts", ","),
}  # fmt: skip
COLUMN_TITLES = {
    name: Column(title, COLUMNS.get(name, "").replace("; 0.5 is chance", "; 50 % is chance"), form)
    for name, (title, form) in _TITLES.items()
} | {
    "verdict": Column(
        "Verdict", "against the random walk with EWMA volatility; p is corrected over the coins"
    )
}


def judged_sections(
    pools: Sequence[PoolScore], members: Sequence[MemberScore], comparisons: Sequence[str] = ()
) -> list[Section]:
    """Return verdicts, leaderboard and figures of each timeframe; no figures for classifiers of the next move."""
    sections = [
        Section("Verdicts", items=[pool_verdict(p) for p in pools], text=[] if pools else ["No model was judged."])
    ]  # fmt: skip
    if comparisons:
        sections.append(Section("Comparison of every two models", items=comparisons, folded=True))
    of_prices = [p for p in pools if "reliability" in p.steps]
    if not of_prices:
        return sections
    board = [("CRPS ratio with its 95 % interval", board_figure(_board_rows(of_prices)))]
    table = Table(COLUMN_TITLES, [_named(row) for row in leaderboard_rows(of_prices)])
    sections.append(Section("Leaderboard", figures=board, table=table))
    for timeframe in sorted({p.timeframe for p in of_prices}):
        chosen = [p for p in of_prices if p.timeframe == timeframe]
        own = [m for m in members if m.timeframe == timeframe and "reliability" in m.steps]
        sections.append(Section(f"Candles of {timeframe}", figures=_figures(chosen, own)))
    return sections


def members_section(members: Sequence[MemberScore]) -> Section:
    """Return the table of every model on every coin, folded if it is long."""
    of_prices = [m for m in members if "reliability" in m.steps]
    rows = [_named(row) | {"verdict": _short(str(row["verdict"]))} for row in member_rows(of_prices)]
    return Section(
        "Every model on every coin", table=Table(COLUMN_TITLES, rows), folded=len(rows) > MAX_OPEN_ROWS
    )


def pool_verdict(pool: PoolScore) -> str:
    """Return the finding about a model on a timeframe as a sentence."""
    return f"{title_of(pool.architecture)} {pool.timeframe} is {pool.verdict}"


def _figures(pools: list[PoolScore], members: list[MemberScore]) -> list[tuple[str, Figure]]:
    steps, curves, shares = (
        {title_of(p.architecture): p.steps[name] for p in pools}
        for name in ("crps_ratio", "reliability", "pit")
    )
    return [
        ("Skill by step: below 1 is better than the reference", steps_figure(steps)),
        ("Reliability: on 0, bands cover what they state", reliability_figure(curves)),
        ("PIT: flat at 5 % is well calibrated", pit_figure(shares)),
        ("CRPS ratio by coin and model", coins_figure(_coin_rows(pools, members))),
    ]


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
