"""`cpb leaderboard` and `cpb ledger`: the results of a training, and what came true."""

from typing import Any

from flows.cli.options import Json, cli_options
from flows.console import emit, quiet_libraries, say
from flows.tables import Column, print_table
from schemas.errors import count
from schemas.identity import SPOT, check_known
from schemas.run import BoardSpec
from tasks.storage.files import stored_home


@cli_options(BoardSpec)
def leaderboard(
    spec: BoardSpec,
    json: Json = False,
) -> None:
    """Show architecture x timeframe against the random walk, from MLflow alone.

    A row is the newest run of a preset on the same coins. Simulated markets are only shown if requested, or if nothing
    else was trained.

    Example: cpb leaderboard --market um --coins BTC,ETH
    """
    quiet_libraries()
    from tasks.tracking.boards import leaderboard as read_board

    rows = read_board(spec.run, market=spec.market, symbols=spec.symbols, timeframes=spec.intervals)
    if json:
        emit({"leaderboard": rows, "exit": 0})
    else:
        print_board(rows)


def print_board(rows: list[dict[str, Any]]) -> None:
    """Print the leaderboard as a table on stdout."""
    title = "Against the random walk with EWMA volatility, on the test span: ratios below 1 are better"
    markets = {row["market"] for row in rows}
    title += "".join(f" (market {market})" for market in markets - {SPOT} if len(markets) == 1)
    print_table(title, BOARD, [_board_cells(row, with_market=len(markets) > 1) for row in rows])


BOARD = (
    Column("", text=True, stays=True), Column("architecture", text=True, stays=True), Column("preset", text=True),
    Column("coins", text=True), Column("CRPS ratio", stays=True), Column("95 % interval", stays=True),
    Column("verdict", text=True, stays=True), Column("coins < 1"), Column("MAE ratio"), Column("direction"),
    Column("80 % band"), Column("windows/s"), Column("train s"), Column("RSS MB"),
)  # fmt: skip


def _board_cells(row: dict[str, Any], with_market: bool) -> list[str]:
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
    """Return the coins of a row, and how many of their models failed."""
    failed = f", {row['failed']} failed" if row["failed"] else ""
    return f"{row['coins'] or count(row['members'], 'model')}{failed}"


@cli_options(BoardSpec, only=("market", "coins", "timeframes"))
def ledger(
    spec: BoardSpec,
    json: Json = False,
) -> None:
    """Show the scores of the stored forecasts against the random walk, live forecasts and replays separately.

    A ratio below 1 is better than the random walk with EWMA volatility. Its interval is valid at any time.

    Example: cpb ledger --coins BTC --timeframes 1h
    """
    from tasks.forecasting.months import series_with_forecasts
    from tasks.forecasting.record import ledger_rows

    home = stored_home()
    stored = series_with_forecasts(home)
    check_known(spec.symbols, {s.symbol for s in stored}, f"the forecast store in {home}")
    rows = ledger_rows(home, spec.market, spec.symbols, spec.intervals)
    if json:
        emit({"ledger": rows, "exit": 0})
    elif rows:
        for live, title in ((True, "Live forecasts"), (False, "Replays: forecasts made after the fact")):
            if lines := [_ledger_cells(row) for row in rows if row["live"] == live]:
                title = f"{title}, against the random walk with EWMA volatility (below 1 is better)"
                print_table(title, _LEDGER, lines)
    elif stored:
        say(
            "no forecast has come due yet: `cpb forecast` issues forecasts and scores those whose candles have closed"
        )
    else:
        say(f"no forecast is stored in {home}: `cpb train-all` and `cpb forecast` issue some")


_LEDGER = (
    Column("", text=True, stays=True), Column("forecasts of", text=True, stays=True, folds=True),
    Column("CRPS ratio", stays=True), Column("95 % interval", stays=True), Column("verdict", text=True),
    *map(Column, ("days", "forecasts", "tails", "in 50 %", "in 80 %", "in 90 %")),
)  # fmt: skip


def _ledger_cells(row: dict[str, Any]) -> list[str]:
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
