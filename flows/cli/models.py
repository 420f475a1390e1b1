"""`cpb leaderboard`, `cpb forecast` and `cpb publish`: what there is after a training."""

import csv
import sys
from typing import Annotated, Any

import typer

from flows.cli.options import Json, takes
from flows.console import emit, quiet_libraries, say
from flows.summary import plain_reason
from schemas.errors import COMPLETE, PARTIAL, UsageError
from schemas.identity import SIM, SPOT
from schemas.run import BoardSpec, ForecastSpec, RunSpec
from schemas.wording import count


@takes(BoardSpec)
def leaderboard(
    spec: BoardSpec,
    json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="the table as CSV on stdout")] = False,
    as_list: Annotated[
        bool,
        typer.Option("--list", help="the training runs instead, the newest first, with their ids for --run"),
    ] = False,
) -> None:
    """Show architecture x timeframe against the random walk, from MLflow alone.

    A row is the newest run of a preset. A later run on some of its coins stands below, as a row of its own. Simulated
    markets are only shown where asked for, or where nothing else was trained.

    Example: cpb leaderboard --market um --coins BTC,ETH
    """
    if json and as_csv:
        raise UsageError(
            "--json and --csv are two forms of the same table: choose one", code="two-forms", field="csv"
        )
    if as_list and (given := [name for name, value in spec if value is not None]):
        raise UsageError(f"list shows all runs: leave {', '.join(given)} out", code="list", field=given[0])
    quiet_libraries()
    rows = _runs() if as_list else _board(spec)
    if json:
        emit({"runs" if as_list else "leaderboard": rows, "exit": 0})
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
    elif as_list:
        print_runs(rows)
    else:
        print_board(rows)


def _runs() -> list[dict[str, Any]]:
    from tasks.tracking.run_list import list_runs

    return list_runs()


def _board(spec: BoardSpec) -> list[dict[str, Any]]:
    from tasks.tracking.leaderboard import leaderboard as read_board

    return read_board(spec.run, market=spec.market, symbols=spec.symbols, timeframes=spec.intervals)


@takes(ForecastSpec)
def forecast(
    spec: ForecastSpec,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="hub:USER/NAME[@REVISION]",
            help="published models instead of the own champions; their forecasts are shown, not stored",
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE.parquet", help="with --model: write the rows there")
    ] = None,
    json: Json = False,
) -> None:
    """Refresh the candles, forecast with the champions, and score older forecasts that have come due.

    Example: cpb forecast --coins BTC --timeframes 1h --source sim
    """
    quiet_libraries()
    if out is not None and model is None:
        raise UsageError(
            "out goes with --model: forecasts of the own champions are in the forecast store",
            code="out", field="out",
        )  # fmt: skip
    from flows.progress import shown_progress

    with shown_progress("forecast"):
        from flows.forecast import run_forecast
        from flows.forecast_published import run_forecast_published
        from flows.runner import Runner

        if model is not None:
            result = run_forecast_published(spec, model, out, Runner(), say)
        else:
            result = run_forecast(spec, Runner(), say)
    if json:
        emit(result)
    elif model is not None:
        print("\n".join(map(_forecast_line, result["forecasts"])))
    raise typer.Exit(result["exit"])


def _forecast_line(forecast: dict[str, Any]) -> str:
    """Return the last step of one forecast, for people."""
    last = forecast["steps"][-1]
    name = f"{forecast['symbol']} {forecast['timeframe']}"
    return (
        f"{name:<14} {forecast['issued_at']:%Y-%m-%d %H:%M} UTC  close {forecast['last_close']:.6g}; after "
        f"{last['step']} candles {last['q05']:.6g} to {last['q95']:.6g} (90 %), median {last['q50']:.6g}"
    )


@takes(RunSpec, only=("market", "repo"))
def publish(
    spec: RunSpec,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="write the same tree to a folder")] = False,
    json: Json = False,
) -> None:
    """Publish a market's champions in one Hub commit; without --repo, or with --dry-run, into a folder.

    Damaged champions are left out (exit 3).

    Example: cpb publish --dry-run
    """
    quiet_libraries()
    from schemas.scope import home
    from tasks.publish import publish as step

    repo = None if dry_run else spec.repo
    result = step(home(), spec.market, repo)
    for failure in result.failures:
        say(f"FAILED {failure.subject}: {plain_reason(failure)}")
    code = PARTIAL if result.failures else COMPLETE
    if json:
        failures = [f.as_json() for f in result.failures]
        emit(
            {
                "published": result.place,
                "repo": spec.repo,
                "dry_run": repo is None,
                "failures": failures,
                "exit": code,
            }
        )
    else:
        say(f"published: {result.place}" if repo else f"written, not published: {result.place}")
    raise typer.Exit(code)


def print_board(rows: list[dict[str, Any]]) -> None:
    """Print the leaderboard for people, on stdout."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    title = "Against the random walk with EWMA volatility, on the test span: ratios below 1 are better"
    markets = {row["market"] for row in rows}
    title += "".join(f" (market {market})" for market in markets - {SPOT} if len(markets) == 1)
    columns = ["", "architecture", "preset", "coins", "CRPS ratio", "95 % interval", "verdict",
               "coins < 1", "MAE ratio", "direction", "80 % band", "windows/s", "train s", "RSS MB"]  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 160)
    cells = [_cells(row, with_market=len(markets) > 1) for row in rows]
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", padding=(0, 1))
    shown = _fitting([columns, *cells], console.width)
    for i in shown:
        left = columns[i] in ("", "architecture", "preset", "coins", "verdict")
        table.add_column(columns[i], justify="left" if left else "right", no_wrap=True)
    for line in cells:
        table.add_row(*(line[i] for i in shown))
    console.print(table)
    if len(shown) < len(columns):
        hidden = count(len(columns) - len(shown), "column")
        say(f"{hidden} left out: use a wider terminal, --csv or --json")


def print_runs(rows: list[dict[str, Any]]) -> None:
    """Print the training runs for people, on stdout."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    if not rows:
        say("no training run in the MLflow store yet; start one with `cpb train-all`")
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    for name in ("run", "began (UTC)", "command", "source", "coins", "timeframes", "architectures", "preset", "as of",
                 "members", "outcome"):  # fmt: skip
        table.add_column(name, justify="right" if name == "members" else "left")
    for row in rows:
        table.add_row(*_run_cells(row))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    say("one of them: `cpb leaderboard --run RUN`")


def _run_cells(row: dict[str, Any]) -> list[str]:
    from tasks.tracking.run_ids import short_id

    market = row["market"] if row["market"] not in (SPOT, SIM) else ""
    members = "-" if row["members"] is None else f"{row['members']:,}"
    failed = f" ({row['failed']} failed)" if row["failed"] else ""
    return [
        short_id(row["id"]), row["started_at"][:16].replace("T", " "), row["command"],
        f"{row['source']} {market}".strip(), row["coins"] or "-", row["timeframes"] or "-",
        row["architectures"] or "-", row["preset"] or "-", (row["as_of"] or "-")[:10], members + failed,
        row["outcome"],
    ]  # fmt: skip


_DESCRIBING, _VERDICT = (2, 3), 6
"""Indices of the board's columns: preset and coins leave last; up to the verdict the others stay."""


def _fitting(lines: list[list[str]], width: int) -> list[int]:
    """Indices of the columns that fit: the last ones go first, a ratio is never cut."""
    widths = [max(map(len, column)) + 3 for column in zip(*lines, strict=True)]
    shown = list(range(len(widths)))
    for column in (*range(len(widths) - 1, _VERDICT, -1), *_DESCRIBING):
        if sum(widths[i] for i in shown) > width - 2:
            shown.remove(column)
    return shown


def _cells(row: dict[str, Any], with_market: bool) -> list[str]:
    def number(name: str, form: str) -> str:
        return format(row[name], form) if row.get(name) is not None else "-"

    timeframe = f"{row['market']} {row['timeframe']}" if with_market else row["timeframe"]
    interval = f"[{number('crps_ratio_low', '.4f')}, {number('crps_ratio_high', '.4f')}]"
    return [
        timeframe, row["architecture"], row.get("preset") or "-", _coins(row), number("crps_ratio", ".4f"),
        interval if row.get("crps_ratio_low") is not None else "-", row.get("verdict") or "-",
        number("better_share", ".0%"), number("mae_ratio", ".4f"), number("directional_accuracy", ".3f"),
        number("coverage_80", ".3f"),
        number("windows_per_s", ",.0f"), number("train_seconds", ".1f"), number("rss_peak_mb", ",.0f"),
    ]  # fmt: skip


def _coins(row: dict[str, Any]) -> str:
    """Return which coins a row is about, and how many of their models failed."""
    failed = f", {row['failed']} failed" if row["failed"] else ""
    return f"{row['coins'] or count(row['members'], 'model')}{failed}"
