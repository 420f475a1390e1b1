"""`cpb champions` and `cpb promote`: who serves each series and why, and another version in its place."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.options import Json, takes
from flows.console import emit, quiet_libraries, say
from flows.tables import finding
from schemas.errors import COMPLETE, UsageError
from schemas.run import BoardSpec, ScopeSpec
from schemas.wording import count

if TYPE_CHECKING:
    from schemas.handover import Alarm, Decision
    from schemas.identity import SeriesId
    from tasks.promotion.by_hand import Served


@takes(BoardSpec, without=("run",))
def champions(
    spec: BoardSpec,
    why: Annotated[bool, typer.Option("--why", help="the decision behind each, with its figures")] = False,
    json: Json = False,
) -> None:
    """Show the champion of each coin x timeframe, what the gate decided last, and with --why the reason.

    Example: cpb champions --why --coins BTC --timeframes 1h
    """
    quiet_libraries()
    from schemas.scope import home
    from tasks.forecasting.watch import alarms
    from tasks.promotion.by_hand import served

    found = [
        one
        for one in served(spec.market)
        if (spec.symbols is None or one.champion.series.symbol in spec.symbols)
        and (spec.intervals is None or one.champion.series.timeframe in spec.intervals)
    ]
    if json:
        emit({"champions": [_row(one) for one in found], "exit": COMPLETE})
        return
    markets = {one.champion.series.market for one in found}
    watched = {alarm.series: alarm for market in markets for alarm in alarms(home(), market)}
    if why:
        for one in found:
            print("\n".join(_explained(one, watched.get(one.champion.series))))
    else:
        _print_table(found, watched)
    say(count(len(found), "champion"))


@takes(ScopeSpec, only=("market",))
def promote(
    spec: ScopeSpec,
    coin: Annotated[str, typer.Argument(metavar="COIN", help="BTCUSDT, or BTC")],
    timeframe: Annotated[str, typer.Argument(metavar="TIMEFRAME", help="a Binance interval, as in 1h")],
    version: Annotated[
        str | None, typer.Option(metavar="N", help="a registered version, or previous")
    ] = None,
    force: Annotated[
        str | None, typer.Option(metavar="REASON", help="why; it is kept with the decision")
    ] = None,
    json: Json = False,
) -> None:
    """Make a registered version the champion by hand, whatever its figures; the reason is kept.

    Example: cpb promote BTC 1h --version previous --force "version 7 learnt from a broken feed"
    """
    if version is None:
        raise UsageError(
            "promote needs --version: a number (`cpb champions` shows the present one), or previous",
            code="no-version", field="version",
        )  # fmt: skip
    if force is None:
        raise UsageError(
            'promoting by hand needs a reason: add --force REASON, as in --force "the feed was wrong in May"',
            code="reason", field="force",
        )  # fmt: skip
    asked = ScopeSpec(coins=coin, timeframes=timeframe, market=spec.market).scope.series
    if len(asked) != 1:
        raise UsageError(
            "promote moves one series: name one coin and one timeframe", code="one-series", field="coin"
        )
    quiet_libraries()
    from schemas.scope import home
    from tasks.promotion.by_hand import promote_by_hand

    decision = promote_by_hand(home(), asked[0], version, force)
    if json:
        emit({"decision": decision.model_dump(mode="json"), "exit": COMPLETE})
    else:
        say(
            f"{decision.series}: version {decision.version_number} {_MOVED[decision.moved]}: {decision.reason}"
        )


_MOVED = {True: "is the champion now", False: "stays the champion"}


def _row(one: "Served") -> dict[str, Any]:
    champion, series = one.champion, one.champion.series
    return {
        "market": series.market,
        "symbol": series.symbol,
        "timeframe": series.timeframe,
        "version": champion.version,
        "architecture": champion.architecture,
        "preset": champion.preset,
        "verdict": champion.verdict,
        "decision": one.newest.model_dump(mode="json", exclude_none=True) if one.newest else None,
    }


def _explained(one: "Served", alarm: "Alarm | None") -> list[str]:
    champion = one.champion
    lines = [
        f"{champion.series}: version {champion.version}, {champion.architecture} of preset {champion.preset}"
    ]
    if champion.verdict:
        lines.append(f"  on its test span {champion.verdict}")
    if champion.selected_on:
        lines.append(f"  its recipe was selected on this span: {champion.selected_on}")
    if champion.damage:
        lines.append(f"  damaged: {champion.damage}")
    if alarm and _live(alarm) == alarm.state:
        lines.append(f"  live {alarm}".replace(f"{alarm.series} is ", ""))
    elif alarm:
        lines.append("  no live forecast has been scored yet")
    told = [d for d in (one.became, one.newest) if d]
    lines += [f"  {decision}" for decision in dict.fromkeys(map(_told, told))]
    if not told:
        lines.append("  no decision is recorded: an older release made it champion")
    return lines


def _told(decision: "Decision") -> str:
    return f"{decision.decided_at:%Y-%m-%d %H:%M} {decision.outcome} ({decision.rule}): {decision.reason}"


def _live(alarm: "Alarm | None") -> str:
    """Return the drift watch's state; nothing scored is not fine."""
    return alarm.state if alarm and (alarm.forecasts or alarm.state != "fine") else "-"


def _print_table(found: "list[Served]", watched: "dict[SeriesId, Alarm]") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for name in ("series", "version", "architecture", "preset", "decision", "test span", "live"):
        table.add_column(name)
    for one in found:
        champion, newest = one.champion, one.newest
        decision = f"{newest.outcome} ({newest.rule})" if newest else "-"
        table.add_row(
            str(champion.series), champion.version, champion.architecture, champion.preset, decision,
            (champion.damage and "damaged") or finding(champion.verdict),
            _live(watched.get(champion.series)),
        )  # fmt: skip
    Console().print(table)
