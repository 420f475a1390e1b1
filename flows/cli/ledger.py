"""`cpb ledger`: what came true of stored forecasts, against the random walk."""

import csv
import sys
from typing import Annotated, Any

import typer

from flows.cli.options import Json, takes
from flows.console import emit, say
from schemas.errors import UsageError
from schemas.run import BoardSpec
from schemas.wording import count


@takes(BoardSpec, only=("market", "coins", "timeframes"))
def ledger(
    spec: BoardSpec,
    history: Annotated[
        bool, typer.Option("--history", help="every version there was, not the newest alone")
    ] = False,
    json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="the table as CSV on stdout")] = False,
) -> None:
    """Show what came true of the stored forecasts: live ones and replays apart, against the random walk.

    A ratio below 1 is better than the random walk with EWMA volatility. Its interval holds at any time that one looks.

    Example: cpb ledger --coins BTC --timeframes 1h
    """
    if json and as_csv:
        raise UsageError(
            "--json and --csv are two forms of the same table: choose one", code="two-forms", field="csv"
        )
    from schemas.scope import stored_home
    from tasks.forecasting.store import stored
    from tasks.forecasting.summary import ledger_rows

    home = stored_home()
    rows = ledger_rows(home, spec.market, spec.symbols, spec.intervals, history=history)
    if json:
        emit({"ledger": rows, "exit": 0})
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
    elif rows:
        print_ledger(rows)
    elif stored(home):
        say(
            "nothing has come due yet: `cpb forecast` issues forecasts and scores those whose candles have closed"
        )
    else:
        say(f"no forecast is stored in {home}: `cpb train-all` and `cpb forecast` issue some")


def print_ledger(rows: list[dict[str, Any]]) -> None:
    """Print the record for people, on stdout: the live forecasts first."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    hidden = 0
    for live, title in ((True, "Live forecasts"), (False, "Replays: forecasts made after the fact")):
        lines = [_cells(row) for row in rows if row["live"] == live]
        if not lines:
            continue
        widths = [max(map(len, column)) + 2 for column in zip(_COLUMNS, *lines, strict=True)]
        shown = len(_COLUMNS)
        cut = max(0, widths[1] - _MIN_LABEL)  # what the names can give away
        while shown > _MIN_COLUMNS and sum(widths[:shown]) - cut > console.width - 2:
            shown -= 1
        hidden = max(hidden, len(_COLUMNS) - shown)
        title = f"{title}, against the random walk with EWMA volatility (below 1 is better)"
        table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
        for name, width in zip(_COLUMNS[:shown], widths, strict=False):
            left = name in ("", _LABEL, "verdict")
            # A long name goes on in the next line; figures are never cut.
            room, whole = (None, False) if name == _LABEL else (width - 2, True)
            table.add_column(
                name, justify="left" if left else "right", no_wrap=whole, min_width=room, overflow="fold"
            )
        for line in lines:
            table.add_row(*line[:shown])
        console.print(table)
    if hidden:
        say(f"{count(hidden, 'column')} left out: use a wider terminal, --csv or --json")


_LABEL = "forecasts of"
_MIN_LABEL = 20
_MIN_COLUMNS = 4
_COLUMNS = ("", _LABEL, "CRPS ratio", "95 % interval", "verdict", "days", "forecasts", "tails",
            "in 50 %", "in 80 %", "in 90 %")  # fmt: skip


def _cells(row: dict[str, Any]) -> list[str]:
    def number(name: str, form: str) -> str:
        return format(row[name], form) if row[name] is not None else "-"

    known = row["crps_ratio_low"] is not None
    of = {
        "pooled": "all champions",
        "recipe": f"{row['recipe']} ({row['role']})",
        "series": f"{row['symbol']} champions",
        "version": f"{row['model_version']} ({row['role']})",
    }[row["kind"]]
    market = "" if row["market"] == "spot" else f"{row['market']} "
    return [
        f"{market}{row['timeframe']}", of,
        number("crps_ratio", ".4f") if known else "-",
        f"[{number('crps_ratio_low', '.4f')}, {number('crps_ratio_high', '.4f')}]" if known else "-",
        row["verdict"].removesuffix(" than the random walk"), str(row["days"]), str(row["forecasts"]),
        number("tail_ratio", ".4f") if known else "-",
        number("coverage_50", ".3f"), number("coverage_80", ".3f"), number("coverage_90", ".3f"),
    ]  # fmt: skip
