"""`cpb ingest`: bring the market store up to date and say what it holds and lacks."""

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from schemas.scope import Scope
    from tasks.market.report import IngestReport


def ingest(
    coins: Annotated[
        str, typer.Option(help="BTC,ETH; `all` of the universe; `all-usdt`: every listed pair")
    ] = "all",
    symbols: Annotated[str | None, typer.Option(help="the same as --coins")] = None,
    timeframes: Annotated[str, typer.Option(help="any of Binance's kline intervals")] = "15m,1h",
    source: Annotated[
        str | None, typer.Option(help="URL or folder of a mirror, or `sim`; default Binance")
    ] = None,
    since: Annotated[str | None, typer.Option(help="first candle, as in 2024-01 or 2024-01-31 (UTC)")] = None,
    as_of: Annotated[
        str | None, typer.Option(help="no candle that closes after it, as in 2025-06-06")
    ] = None,
    market: Annotated[str, typer.Option(help="spot, um (USD futures) or cm (coin futures)")] = "spot",
    plan: Annotated[bool, typer.Option("--plan", help="only show what would be fetched")] = False,
    report: Annotated[bool, typer.Option("--report", help="print every hole and save the report")] = False,
    tail: Annotated[
        bool, typer.Option("--tail", help="also the newest candles, by REST, as provisional")
    ] = False,
    connections: Annotated[int, typer.Option(min=1, max=64, help="downloads at the same time")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Fetch, verify and store klines; a second run fetches only what is new.

    Example: cpb ingest --coins BTC,ETH --timeframes 1h --since 2024-01

    Exit code: 0 complete, 1 fatal, 2 usage, 3 partial (good data kept).
    """
    from schemas.errors import CpbError

    try:
        scope = _scope(symbols or coins, timeframes, source, market, since, as_of)
        code = _run(scope, plan, report, tail, connections, as_json)
    except CpbError as error:
        print(f"cpb ingest: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as stop:
        print("cpb ingest: stopped; what was stored is whole, run it again to go on", file=sys.stderr)
        raise typer.Exit(130) from stop
    raise typer.Exit(code)


def _scope(
    coins: str, timeframes: str, source: str | None, market: str, since: str | None, as_of: str | None
) -> "Scope":
    from schemas.scope import Scope

    everything = coins.strip().lower() == "all-usdt"
    scope = Scope.of("BTC" if everything else coins, timeframes, source, market, since, as_of)
    if not everything:
        return scope
    from tasks.market.ingest import listed_symbols

    return scope.model_copy(update={"symbols": tuple(listed_symbols(scope))})


def _run(scope: "Scope", plan: bool, full: bool, tail: bool, connections: int, as_json: bool) -> int:
    from tasks.market.ingest import ingest as bring_up_to_date
    from tasks.market.report import save

    progress = _progress() if sys.stderr.isatty() and not as_json else None
    report = bring_up_to_date(scope, tail=tail, plan=plan, connections=connections, progress=progress)
    if full:
        save(report, scope.home)
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        print(_for_people(report, plan, full))
    return 0 if plan else report.exit


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


if __name__ == "__main__":
    typer.run(ingest)
