"""`cpb verify`: is what is stored what was written?"""

import itertools
from typing import Annotated

import typer

from flows.cli.options import Json
from flows.console import emit, quiet_libraries, say
from schemas.errors import COMPLETE, FATAL, UsageError
from schemas.wording import count

_ALL = "all"
_NOUNS = {"features": "feature file", "fleets": "fleet", "forecasts": "list of digests", "cards": "card"}


def verify(
    market: Annotated[str, typer.Option(help="all, spot, um, cm, own or sim")] = _ALL,
    repair: Annotated[
        bool, typer.Option("--repair", help="fetch or make again what can be, and set the rest aside")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(help="URL or folder to fetch damaged candles from; default: Binance Vision itself"),
    ] = None,
    hub: Annotated[
        str | None,
        typer.Option(help="USER/NAME: also compare the published record of forecasts with the stored one"),
    ] = None,
    json: Json = False,
) -> None:
    """Check every stored file against its digest: candles, features, fleets, champions, forecasts, scores and cards.

    Prints one line per damaged file: its path, the reason, and a command, or what --repair has done. Exit 1 where
    damage remains.

    Example: cpb verify --hub alice/cpb-models
    """
    from schemas.identity import MARKETS, SPOT

    if market not in (_ALL, *MARKETS):
        raise UsageError(
            f"market {market!r} is unknown: choose from {', '.join((_ALL, *MARKETS))}",
            code="market", field="market",
        )  # fmt: skip
    quiet_libraries()
    from flows.progress import shown_progress

    markets = MARKETS if market == _ALL else (market,)
    with shown_progress("verify"):
        from schemas.scope import stored_home
        from tasks.progress import tell
        from tasks.storage.damage import REPAIRED
        from tasks.verify import verify_all

        checked, home = itertools.count(1), stored_home()
        result = verify_all(
            home, markets, repair=repair, source=source,
            seen=lambda _path: tell("verify", next(checked), 0, "files"),
        )  # fmt: skip
    if hub:
        from tasks.hub.ledger import compare

        published = compare(home, SPOT if market == _ALL else market, hub)
        result.damaged += published.damaged
        same = f"{count(published.files, 'file')} and {count(published.rows, 'row')} the same as stored"
        say(f"{hub} at {published.commit[:12]}, up to line {published.line} of the chain: {same}")
    for damage in () if json else result.damaged:
        print(f"{damage.path}  {damage.reason}  -> {damage.outcome or damage.command}")
    for sentence in result.unchecked:
        say(sentence)
    for kind, number in result.earlier.items():
        verb = "is" if number == 1 else "are"
        say(f"{count(number, _NOUNS[kind])} written by an earlier version {verb} not used")
    for name, rows in result.rows_before.items():
        say(f"{count(rows, 'row')} of forecasts and scores ({name}) were stored before the chain began")
    done = ""
    if repair:
        mended = len(result.damaged) - len(result.remaining)
        whole = sum(damage.outcome == REPAIRED for damage in result.damaged)
        done = f": {whole} repaired, {mended - whole} removed or set aside, {len(result.remaining)} left"
    if result.checked or result.damaged:
        say(f"{count(result.checked, 'file')} checked, {len(result.damaged)} damaged{done}")
    elif result.is_good:
        say(f"nothing {'' if market == _ALL else f'of market {market} '}is stored in {home}")
    code = COMPLETE if result.is_good else FATAL
    if json:
        damaged = [d.model_dump(mode="json") for d in result.damaged]
        emit(
            {
                "checked": result.checked,
                "damaged": damaged,
                "unchecked": result.unchecked,
                "earlier": result.earlier,
                "rows_before_chain": result.rows_before,
                "exit": code,
            }
        )
    raise typer.Exit(code)
