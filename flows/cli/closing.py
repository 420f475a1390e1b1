"""How `cpb demo` and `cpb train-all` end: what the champions forecast, and the commands that come next."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import groupby
from typing import Any

from flows.cli.options import command_line
from flows.console import Column, echo, finding, price, print_table
from flows.typed import typed_command
from schemas.coins import coins_label
from schemas.errors import MINUTE, age
from schemas.identity import OWN, SIM, SPOT
from schemas.run import RunSpec
from schemas.scope import ScopeSpec

_TABLE = (
    Column("coin", "coin", stays=True),
    Column("last close", "close", ">"),
    Column("80 % band", "band", stays=True),
    Column("5 % ↓", "stop_5_down", ">", stays=True),
    Column("5 % ↑", "stop_5_up", ">", stays=True),
    Column("verdict", "verdict", stays=True),
)

_LEGEND = """\
80 % band: the close lies in it with this chance
5 % ↓ ↑: the prices touched until that close with this chance
verdict: of the bands against a random walk's, on the test span"""


def print_forecasts(result: dict[str, Any], spec: RunSpec) -> None:
    """Print a table for each timeframe of the forecasts in a run's result, and what has none or an old one."""
    # Ages are told as of the moment asked for: a replay reads as it would have read then.
    now = spec.scope.as_of or datetime.now(UTC)
    rows = sorted(result["forecasts"], key=_group)
    for _, alike in groupby(rows, _group):
        _print_group([*alike], now)
    echo(_LEGEND if rows else "there is no forecast to show")
    made = {_name(row) for row in rows}
    for failure in result["failures"]:
        # A failed series may have a forecast: without the random walk's beside it.
        of_series = failure["symbol"] and failure["step"] in ("publish", "forecast")
        if of_series and _name(failure) not in made:
            echo(f"no forecast of {_name(failure)}: {failure['reason']}")
    if result["stale"]:
        echo(f"STALE {result['stale']}")


def _name(row: dict[str, Any]) -> str:
    return f"{row['symbol']} {row['timeframe']}"


def _group(row: dict[str, Any]) -> tuple[timedelta, str, datetime]:
    # The step's length first: 15m before 1h, as everywhere.
    return row["target_time"] - row["issued_at"], row["timeframe"], row["issued_at"]


def _print_group(rows: Sequence[dict[str, Any]], now: datetime) -> None:
    first = rows[0]
    # A simulated market has no now.
    old = f", {age(max((now - first['issued_at']).total_seconds(), 0))} old" if first["market"] != SIM else ""
    market = "" if first["market"] == SPOT else f" (market {first['market']})"
    title = (
        f"{first['timeframe']}{market}: the close of {first['target_time']:{MINUTE}} UTC, as forecast from that of "
        f"{first['issued_at']:{MINUTE}} UTC{old}"
    )
    print_table(title, _TABLE, [_line(row) for row in rows])


def _line(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "coin": coins_label([row["symbol"]]),
        "close": price(row["last_close"]),
        "band": f"{price(row['q10'])}–{price(row['q90'])}",
        **{name: row[name] and price(row[name]) for name in ("stop_5_down", "stop_5_up")},
        "verdict": finding(row["verdict"]) or "not judged",
    }


def print_next(result: dict[str, Any], spec: RunSpec, more: Iterable[tuple[str, str]] = ()) -> None:
    """Print the commands that come after a run, as they must be typed; `more`: others, each with what it is for."""
    questions = [_question(result["forecasts"], spec)] if result["forecasts"] else []
    echo("\nNext:")
    for command, purpose in (*questions, ("cpb serve", "the page, http://127.0.0.1:8000"), *more):
        echo(f"  {typed_command(command)}\n      {purpose}")


def _question(rows: Sequence[dict[str, Any]], spec: RunSpec) -> tuple[str, str]:
    """Return the command that asks about two prices of one series, and what it answers."""
    row = max(rows, key=lambda row: row["target_time"] - row["issued_at"])
    coin = row["symbol"] if row["market"] == OWN else coins_label([row["symbol"]])
    # Coins and timeframes are given by position.
    asked = spec.model_copy(
        update={name: ScopeSpec.model_fields[name].default for name in ("coins", "timeframes")}
    )
    command = command_line(f"forecast {coin} {row['timeframe']}", asked, ScopeSpec)
    stop, target = (_rounded(row[name]) for name in ("q10", "q90"))
    if not float(stop) < row["last_close"] < float(target):  # of a coin that stands still, or drifts far
        return f"{command} --stop-chance 5%", "the prices that are touched with a chance of 5 %, down and up"
    return f"{command} --target {target} --stop {stop}", "which is reached first, the target or the stop?"


def _rounded(value: float) -> str:
    """Return a price with four significant digits, as it is typed: `104300`, `0.00001234`."""
    return f"{Decimal(f'{value:.4g}'):f}"
