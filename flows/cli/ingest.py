"""`cpb ingest`: bring the market store up to date and say what it holds and lacks."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from flows.console import emit
from flows.options import AsOf, Json, Market, Since, Source, Timeframes

if TYPE_CHECKING:
    from schemas.scope import Scope
    from tasks.market.report import IngestReport


def ingest(
    coins: Annotated[
        str, typer.Option("--coins", "--symbols", help="BTC,ETH, all, or all-usdt: every listed USDT pair")
    ] = "all",
    timeframes: Timeframes = "15m,1h",
    source: Source = None,
    since: Since = None,
    as_of: AsOf = None,
    market: Market = "spot",
    plan: Annotated[bool, typer.Option("--plan", help="only show what would be fetched")] = False,
    report: Annotated[bool, typer.Option("--report", help="print every hole and save the report")] = False,
    tail: Annotated[
        bool, typer.Option("--tail", help="also the newest candles, by REST, as provisional")
    ] = False,
    connections: Annotated[int, typer.Option(min=1, max=64, help="downloads at the same time")] = 32,
    json: Json = False,
) -> None:
    """Fetch, verify and store klines; a second run fetches only what is new.

    Example: cpb ingest --coins BTC,ETH --timeframes 1h --since 2024-01

    Exit code: 0 complete, 1 fatal, 2 usage, 3 partial (good data kept).
    """
    from tasks.market.ingest import ingest as bring_up_to_date
    from tasks.market.report import save

    scope = _scope(coins, timeframes, source, market, since, as_of)
    progress = _progress() if sys.stderr.isatty() and not json else None
    found = bring_up_to_date(scope, tail=tail, plan=plan, connections=connections, progress=progress)
    if report and not plan:
        save(found, scope.home)
    if json:
        emit(found.to_dict())
    else:
        print(_for_people(found, plan, report))
    raise typer.Exit(0 if plan else found.exit)


def _scope(
    coins: str, timeframes: str, source: str | None, market: str, since: str | None, as_of: str | None
) -> "Scope":
    from schemas.scope import Scope

    everything = coins.strip().lower() == "all-usdt"
    scope = Scope.of("BTC" if everything else coins, timeframes, source, market, since, as_of, months=True)
    if not everything:
        return scope
    from tasks.market.ingest import listed_symbols

    return scope.model_copy(update={"symbols": tuple(listed_symbols(scope))})


def _for_people(report: "IngestReport", plan: bool, full: bool) -> str:
    from tasks.market.report import details, table

    if plan:
        return "\n".join(report.notes)
    parts = [table(report), *report.notes, *([details(report)] if full else [])]
    return "\n".join([*parts, f"{report.requests} requests to {report.source} in {report.seconds:.1f} s"])


def _progress() -> Callable[[str, int, int], None]:
    def show(series: str, done: int, total: int) -> None:
        print(f"\r\x1b[K{done}/{total} files, {series}", end="\n" if done >= total else "", file=sys.stderr)

    return show
