"""Sections of a report on judged models: verdicts, leaderboard, figures by timeframe, every model on every coin."""

from collections.abc import Sequence
from typing import Any

from tasks.figures.board import board_figure, coins_figure
from tasks.figures.calibration import pit_figure, reliability_figure, steps_figure
from tasks.figures.page import Column, Section, Table
from tasks.figures.theme import Figure
from tasks.judging.member import MemberScore
from tasks.judging.pool import PoolScore
from tasks.judging.table import COLUMNS, leaderboard_rows, member_rows, title_of

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
