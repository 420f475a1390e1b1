"""The report of a backtest: one HTML page of verdicts, interactive figures and tables that fetches nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.backtesting.examples import Examples
from tasks.backtesting.pairs import Pair
from tasks.figures.judged import INTRODUCTION, judged_sections, members_section
from tasks.figures.page import Column, Section, Table, write_page
from tasks.figures.training import losses_figure
from tasks.judging.member import MemberScore
from tasks.judging.pool import PoolScore
from tasks.judging.table import title_of

Histories = Sequence[tuple[str, Sequence[dict[str, Any]]]]

_TRADING = (
    "Long, flat or short by the median over the width of the 80 % band, one candle ahead, on the newest fold of every "
    "series, after 0.15 % of costs each way. An illustration: never used to choose or promote a model, as the interval "
    "of its Sharpe ratio shows."
)
_TRADES = {
    "architecture": Column("Model"),
    "series": Column("Series"),
    "return": Column("Return", "of the whole fold, after costs", "+.1%"),
    "without_costs": Column("Without costs", "the same without costs", "+.1%"),
    "hold": Column("Buy and hold", "return of the same candles, bought and held", "+.1%"),
    "volatility": Column("Volatility", "a year", ".0%"),
    "sharpe": Column("Sharpe", "Sharpe ratio a year", ".2f"),
    "sharpe_low": Column("95 % from", "lower end of the Sharpe ratio's 95 % interval", ".2f"),
    "sharpe_high": Column("95 % to", "upper end", ".2f"),
    "drawdown": Column("Drawdown", "largest loss from a peak", ".1%"),
    "turnover": Column("Turnover", "amount traded a year, in times of the equity", ",.0f"),
}


def write_report(
    path: Path,
    title: str,
    pools: Sequence[PoolScore],
    members: Sequence[MemberScore],
    notes: Sequence[str] = (),
    pairs: Sequence[Pair] = (),
    histories: Histories = (),
    examples: Examples | None = None,
) -> None:
    """Write the page atomically.

    Args:
        path: of the HTML file.
        title: heading.
        pools: pooled scores.
        members: members' scores.
        notes: sentences under the heading: what was asked, look-ahead test, failures.
        pairs: comparisons of every two models.
        histories: names of trained models and their epochs.
        examples: forecasts and trades of trained models.
    """
    sections = [
        Section("What this is", text=[INTRODUCTION, *notes]),
        *judged_sections(pools, members, [f"{pair.verdict}." for pair in pairs]),
        *_trained(histories, examples),
        members_section(members),
    ]
    write_page(path, title, sections)


def _trained(histories: Histories, examples: Examples | None) -> list[Section]:
    losses = [(f"Loss of {title_of(name)}", losses_figure({name: rows})) for name, rows in histories]
    fans = [
        (f"One forecast: {title_of(name)}, {series}", figure)
        for name, (series, figure) in (examples.forecasts if examples else {}).items()
    ]
    sections = [Section("Forecasts and training", figures=[*fans, *losses])] if fans or losses else []
    trades = examples.trades() if examples else []
    if examples and trades:
        drawn = [(f"Equity: {title_of(name)}", figure) for name, figure in examples.equity().items()]
        table = Table(_TRADES, [row | {"architecture": title_of(str(row["architecture"]))} for row in trades])
        sections.append(
            Section("Trading on it: an illustration", text=[_TRADING], figures=drawn, table=table)
        )
    return sections
