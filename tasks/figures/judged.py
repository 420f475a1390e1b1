"""Sections of a report on judged models: verdicts, leaderboard, figures by timeframe, every model on every coin.

The figures are of calibration (reliability) and of the CRPS ratio per step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from schemas.chances import SCORED
from tasks.figures.board import board_figure, coins_figure
from tasks.figures.page import Column, Section, Table
from tasks.figures.plot import RATIO_TITLE, Figure, figure, level, line, nothing, numbers
from tasks.judging.chance_scores import deciles
from tasks.judging.member import MemberScore
from tasks.judging.pool import PoolScore, leaderboard_rows, member_rows, title_of
from tasks.judging.scores import LEVELS, Array

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
    **{
        f"{name}_ratio": Column(f"{name.capitalize()} ratio", f"Brier score of {what} / reference's", ".4f")
        for name, what in SCORED.items()
    },
    "n": Column("Forecasts", "forecasts judged", ","),
    "verdict": Column(
        "Verdict", "against the random walk with EWMA volatility; p is corrected over the coins"
    ),
}
"""Columns of the leaderboard and of the members' table."""


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
    # Classifiers have no quantiles, so no reliability; their ratio is of another score, and has no place on this
    # board.
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
    figures = [
        ("Skill by step: below 1 is better than the reference", steps_figure(steps)),
        ("Reliability: on 0, bands cover what they state", reliability_figure(curves, "closes")),
    ]
    for name, what in SCORED.items():
        stated = {p.architecture: p.steps[key] for p in pools if (key := f"{name}_stated") in p.steps}
        if stated:
            groups = {title_of(of): tuple(deciles(counts.sum(axis=0)).T) for of, counts in stated.items()}
            figures.append((f"Reliability of {what}, in deciles", reliability_figure(groups, what)))
    return [*figures, ("CRPS ratio by coin and model", coins_figure(_coin_rows(pools, members)))]


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
