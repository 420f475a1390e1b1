"""`cpb leaderboard`, `ledger`: results, and what came true; `champions`, `promote`, `publish`: who serves."""

import shlex
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.completion import completing
from flows.cli.ending import Answer, answered
from flows.cli.options import cli_options
from flows.console import Column, echo, finding, interval, print_table, quiet_libraries, show
from schemas.board import BoardSpec
from schemas.chances import SCORED
from schemas.coins import check_known
from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL, MINUTE, CpbError, DamagedError, UsageError, counted
from schemas.identity import SIM, SPOT
from schemas.run import RunSpec
from schemas.scope import ScopeSpec
from tasks.storage.home_version import checked_home, mark_home, stored_home

if TYPE_CHECKING:
    from schemas.decision import Outcome
    from schemas.ledger import Alarm
    from tasks.promotion.by_hand import Served

RATIO = (
    Column("CRPS ratio", "crps_ratio", ".4f", stays=True),
    Column("95 % interval", "interval", ">", stays=True),
)
SCORES = (
    Column("MAE ratio", "mae_ratio", ".4f"),
    Column("direction", "directional_accuracy", ".3f"),
    Column("80 % band", "coverage_80", ".3f"),
)
"""Columns of every board; `RATIO` also of champions and ledger."""

BOARD = (
    Column("", "place", stays=True),
    Column("architecture", "architecture", stays=True),
    Column("preset", "preset"),
    Column("coins", "trained"),
    *RATIO,
    Column("verdict", "verdict", stays=True),
    Column("coins < 1", "better_share", ".0%"),
    *(Column(name, f"{name}_brier_ratio", ".4f") for name in SCORED),
    *SCORES,
    Column("windows/s", "windows_per_s", ",.0f"),
    Column("train s", "train_seconds", ".1f"),
    Column("RSS MB", "rss_peak_mb", ",.0f"),
)
_LEDGER = (
    Column("", "place", stays=True),
    Column("forecasts of", "of", stays=True, folds=True),
    *RATIO,
    Column("verdict", "verdict"),
    Column("days", "days", ","),
    Column("forecasts", "forecasts", ","),
    Column("tails", "tail_ratio", ".4f"),
    *(Column(f"in {band} %", f"coverage_{band}", ".3f") for band in (50, 80, 90)),
)
_FIGURES = ("crps_ratio", "crps_ratio_low", "crps_ratio_high")
"""The ratio to the random walk on the test span with its 95 % interval; null if it was not judged."""

_DECIDED: dict["Outcome", str] = {
    "first": "first champion",
    "refreshed": "newer model",
    "switched": "other recipe",
    "kept": "kept",
    "unchanged": "unchanged",
    "forced": "by hand",
    "retired": "retired",
}
"""What the gate's last decision on a champion was, in a word or two."""

_TABLE = (
    Column("series", "series", stays=True),
    Column("architecture", "architecture", stays=True),
    Column("CRPS ratio", "crps_ratio", ".4f", stays=True),
    Column("95 % interval", "interval", ">"),
    Column("verdict", "finding", stays=True),
    Column("live", "live"),
    Column("version", "version"),
    Column("preset", "preset"),
    Column("decision", "decision"),
)


@answered
@cli_options(BoardSpec)
def leaderboard(spec: BoardSpec) -> Answer:
    """Show architecture x timeframe against the random walk, from MLflow alone.

    A row is the newest run of a preset on the same coins. Simulated markets are only shown if requested, or if nothing
    else was trained.

    Example: cpb leaderboard --market um --coins BTC,ETH
    """
    quiet_libraries()
    from tasks.tracking.leaderboard import read_board

    rows = read_board(spec.run, market=spec.market, symbols=spec.symbols, timeframes=spec.intervals)
    return Answer({"leaderboard": rows, "exit": EXIT_COMPLETE}, partial(print_board, rows))


def print_board(rows: list[dict[str, Any]]) -> None:
    """Print the leaderboard as a table on stdout."""
    title = "Against the random walk with EWMA volatility, on the test span: ratios below 1 are better"
    markets = {row["market"] for row in rows}
    # Rows of several markets say theirs in the first column instead.
    title += "".join(f" (market {market})" for market in markets - {SPOT} if len(markets) == 1)
    shown = [
        row
        | {
            "place": f"{row['market']} {row['timeframe']}" if len(markets) > 1 else row["timeframe"],
            "trained": f"{row['coins'] or counted(row['members'], 'model')}"
            + (f", {row['failed']} failed" if row["failed"] else ""),
            "interval": interval(row.get("crps_ratio_low"), row.get("crps_ratio_high")),
        }
        for row in rows
    ]
    print_table(title, BOARD, shown)


@answered
@cli_options(BoardSpec, only=("market", "coins", "timeframes"))
def ledger(spec: BoardSpec) -> Answer:
    """Show the scores of the stored forecasts against the random walk, live forecasts and replays separately.

    A ratio below 1 is better than the random walk with EWMA volatility. Its interval is valid at any time.

    Example: cpb ledger --coins BTC --timeframes 1h
    """
    from tasks.forecasting.months import series_with_forecasts
    from tasks.forecasting.record import ledger_rows

    home = stored_home()
    stored = series_with_forecasts(home)
    check_known(spec.symbols, {s.symbol for s in stored}, f"the forecast store in {home}")
    asked = [*filter(spec.selects, stored)]
    # Of series with forecasts, none of them scored yet, the table is empty.
    if stored and not asked:
        raise CpbError(
            f"no forecast of these is stored in {home}; make one with `cpb forecast{spec.options}`, or, without a "
            f"champion yet, train first, as in `cpb train-all{spec.options}`",
            code="no-forecast",
        )
    rows = ledger_rows(home, spec.market, spec.symbols, spec.intervals)

    def shown() -> None:
        if rows:
            _print_ledger(rows)
        elif not stored:
            echo(f"no forecast is stored in {home}: `cpb train-all` and `cpb forecast` issue some")
        elif all(series.market == SIM for series in asked):
            echo(
                "no forecast has been scored yet, and the simulator has no newer candles: `cpb forecast --source sim "
                "--as-of 2025-05-30` forecasts from earlier ones, and then `cpb forecast --source sim` scores these"
            )
        else:
            echo(
                f"no forecast has been scored yet: `cpb forecast{spec.options}` fetches newer candles and scores the "
                "forecasts whose candles are stored by then"
            )

    return Answer({"ledger": rows, "exit": EXIT_COMPLETE}, shown)


def _print_ledger(rows: list[dict[str, Any]]) -> None:
    for live, title in ((True, "Live forecasts"), (False, "Replays: forecasts made after the fact")):
        of_kind = [row for row in rows if row["live"] == live]
        # Live and replayed scores never share a table: a replay's recipe may have been chosen on these candles.
        names = Counter(row["model_version"] for row in of_kind)
        if lines := [_ledger_line(row, ambiguous=names[row["model_version"]] > 1) for row in of_kind]:
            title = f"{title}, against the random walk with EWMA volatility (below 1 is better)"
            print_table(title, _LEDGER, lines)


def _ledger_line(row: dict[str, Any], *, ambiguous: bool) -> dict[str, Any]:
    """Return the line of an entry; `ambiguous`: another version has its name, in a store that began again."""
    weights = f", weights {row['weights_sha256'][:8] or 'unknown'}" if ambiguous else ""
    of = {
        "pooled": "all champions",
        "series": f"{row['symbol']} champions",
        "version": f"{row['model_version']} ({row['role']}{weights})",
    }[row["kind"]]
    # Of too few days there is no interval, and the ratio tells nothing.
    unknown = {"crps_ratio": None, "tail_ratio": None} if row["crps_ratio_low"] is None else {}
    market = "" if row["market"] == "spot" else f"{row['market']} "
    shown: dict[str, Any] = {"place": f"{market}{row['timeframe']}", "of": of}
    shown |= {"interval": interval(row["crps_ratio_low"], row["crps_ratio_high"])}
    return row | shown | {"verdict": row["verdict"].removesuffix(" than the random walk")} | unknown


@answered
@cli_options(BoardSpec, without=("run",))
def champions(
    spec: BoardSpec,
    why: Annotated[
        bool, typer.Option("--why", help="the decision behind each champion, with its figures")
    ] = False,
) -> Answer:
    """Show the champion of each coin x timeframe, the gate's last decision, and with --why its reason.

    Example: cpb champions --why --coins BTC --timeframes 1h
    """
    quiet_libraries()
    from tasks.forecasting.watch import alarms
    from tasks.promotion.by_hand import served

    everyone = served(spec.market)
    check_known(
        spec.symbols, {entry.champion.series.symbol for entry in everyone}, "the registry of champions"
    )
    chosen = [entry for entry in everyone if spec.selects(entry.champion.series)]
    if not chosen:
        raise CpbError(
            f"there is no champion of these yet; train first, as in `cpb train-all{spec.options}`",
            code="no-champion",
        )
    # A damaged champion stays in the table, with `damaged` for a verdict; the sentence says what makes it again.
    for entry in chosen:
        try:
            entry.champion.check()
        except DamagedError as error:
            echo(str(error))

    def shown() -> None:
        markets = {entry.champion.series.market for entry in chosen}
        watched = {alarm.series: alarm for market in markets for alarm in alarms(checked_home(), market)}
        if why:
            for entry in chosen:
                show("\n".join(_explained(entry, watched.get(entry.champion.series))))
        else:
            # Real and simulated champions are never listed together.
            title = "simulated market: these figures say nothing about a real one" if SIM in markets else ""
            print_table(title, _TABLE, [_table_row(e, watched.get(e.champion.series)) for e in chosen])
        echo(counted(len(chosen), "champion"))

    return Answer({"champions": [_row(entry) for entry in chosen], "exit": EXIT_COMPLETE}, shown)


@answered
@cli_options(ScopeSpec, only=("market",))
def promote(
    spec: ScopeSpec,
    coin: Annotated[
        str,
        typer.Argument(metavar="COIN", help="BTCUSDT, or BTC", autocompletion=completing("coins")),
    ],
    timeframe: Annotated[
        str,
        typer.Argument(
            metavar="TIMEFRAME",
            help="a Binance interval, as in 1h",
            autocompletion=completing("timeframes"),
        ),
    ],
    version: Annotated[str, typer.Option(metavar="N", help="a registered version, or previous")],
    force: Annotated[str, typer.Option(metavar="REASON", help="the reason, stored with the decision")],
) -> Answer:
    """Make a registered version the champion by hand, regardless of its figures; the reason is kept.

    Example: cpb promote BTC 1h --version previous --force "version 7 learnt from a broken feed"
    """
    # Read as every other command reads them: BTC is BTCUSDT, and a list of coins shows below.
    chosen = ScopeSpec(coins=coin, timeframes=timeframe, market=spec.market).scope.series
    if len(chosen) != 1:
        raise UsageError(
            "promote moves one series: name one coin and one timeframe", code="one-series", field="coin"
        )
    quiet_libraries()
    from tasks.promotion.by_hand import promote_by_hand

    decision = promote_by_hand(checked_home(), chosen[0], version, force)
    said = f"{decision.series}: version {decision.version_number} is the champion now: {decision.reason}"
    answer = {"decision": decision.model_dump(mode="json"), "exit": EXIT_COMPLETE}
    return Answer(answer, partial(echo, said))


def _row(served: "Served") -> dict[str, Any]:
    champion, series = served.champion, served.champion.series
    return {
        **vars(series),
        "version": champion.version,
        "architecture": champion.architecture,
        "preset": champion.preset,
        "verdict": champion.verdict,
        "damage": champion.damage,
        "simulated": series.market == SIM,
        **{name: champion.metrics.get(f"test_{name}") for name in _FIGURES},
        "decision": served.newest.model_dump(mode="json", exclude_none=True) if served.newest else None,
    }


def _explained(served: "Served", alarm: "Alarm | None") -> list[str]:
    champion = served.champion
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
    # Why it became champion, and the last decision, which mostly confirmed it: often the same.
    decisions = [d for d in (served.became, served.newest) if d]
    lines += dict.fromkeys(
        f"  {d.decided_at:{MINUTE}} UTC {d.outcome}{'' if d.rule == d.outcome else f' ({d.rule})'}: {d.reason}"
        for d in decisions
    )
    if not decisions:
        lines.append("  no decision is recorded: it was made champion in MLflow")
    return lines


def _live(alarm: "Alarm | None") -> str:
    """Return the drift watch's state; "-" instead of `fine` if no forecast has been scored."""
    return alarm.state if alarm and (alarm.forecasts or alarm.state != "fine") else "-"


def _table_row(served: "Served", alarm: "Alarm | None") -> dict[str, Any]:
    row = _row(served)
    return row | {
        "series": str(served.champion.series),
        "decision": _DECIDED[served.newest.outcome] if served.newest else None,
        "interval": interval(row["crps_ratio_low"], row["crps_ratio_high"]),
        "finding": "damaged" if served.champion.damage else finding(row["verdict"]),
        "live": _live(alarm),
    }


@answered
@cli_options(RunSpec, only=("market", "repo", "space", "private"))
def publish(
    spec: RunSpec,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="the page as a static site, in a folder of its own"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="write the champions' folder only; nothing is sent")
    ] = False,
) -> Answer:
    """Publish a market's champions in one Hub commit; without --repo, or with --dry-run, into a folder.

    The record of the forecasts goes with them, to be checked without cpb. Damaged files are left out (exit 3).
    With --out or --space it publishes the page instead: a site of files, which no server of cpb's need answer for.

    Example: cpb publish --dry-run
    """
    quiet_libraries()
    if dry_run and (out or spec.space):
        raise UsageError("dry-run writes no page: leave it out, and give --out FOLDER alone", field="dry_run")
    if out:  # before the store is read, and before another place has anything
        from tasks.hub.page import check_folder

        check_folder(out, spec.market)
    from flows.page import publish_page
    from tasks import steps

    if spec.private and spec.repo and not dry_run:  # before the first of two places has anything
        steps.check_publishable(spec)
    results, lines = [], []
    if spec.repo or not (out or spec.space):
        # The step publishes where it is given a repository, and else only writes the folder.
        repo = None if dry_run else spec.repo
        results.append(champions := steps.publish(spec.market, repo, private=spec.private))
        then = f"; `cpb publish --market {spec.market} --repo USER/NAME` publishes it"
        written = f"written to {champions.place}{'' if champions.failures else then}"
        lines.append(f"published: {champions.place}" if repo else written)
    if out or spec.space:
        results.append(page := publish_page(spec.market, out=out, space=spec.space, private=spec.private))
        look = (
            f"; look at it with `python3 -m http.server -b 127.0.0.1 -d {shlex.quote(str(out))}`"
            if out
            else ""
        )
        lines.append(f"page: {page.place}{look}")
    failures = [failure for result in results for failure in result.failures]
    for failure in failures:
        echo(f"FAILED {failure.line}")
    answer = {
        "published": " and ".join(result.place for result in results),
        "repo": spec.repo,
        "space": spec.space,
        "dry_run": not (spec.space or (spec.repo and not dry_run)),
        "failures": [f.as_json() for f in failures],
        "exit": EXIT_PARTIAL if failures else EXIT_COMPLETE,
    }
    return Answer(answer, lambda: echo("\n".join(lines)))


@answered
@cli_options(ScopeSpec, only=("market",))
def restore(
    spec: ScopeSpec,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="the published record, as fetched from the Hub; default HOME/hub"
        ),
    ] = None,
    set_aside: Annotated[
        bool,
        typer.Option(
            "--set-aside", help="go back to the record as published; what differs is moved to HOME/set-aside"
        ),
    ] = False,
) -> Answer:
    """Bring a market's lost forecasts, scores and their chain back from the published record.

    Each row is compared with the published chain. What is intact stays, with what was stored since it was published.

    Example: cpb restore --record copy
    """
    from tasks.hub.restore import restore_record

    home = checked_home()
    # A home that was lost: its version is written before its first file.
    if not home.is_dir():
        mark_home(home)
    done = restore_record(home, spec.market, record, set_aside=set_aside)
    for sentence in done.failures:
        echo(f"FAILED {sentence}")

    def shown() -> None:
        if done.lines or done.months or done.set_aside:
            lines = (
                f"{counted(done.lines, 'line')} of the chain and {counted(len(done.months), 'month')} of rows"
            )
            kept = f"; what was there before is in {done.set_aside}" if done.set_aside else ""
            echo(f"restored {lines}{kept}")
        elif not done.failures:
            echo("nothing to restore: the published record is stored as it is")

    code = EXIT_PARTIAL if done.failures else EXIT_COMPLETE
    return Answer(asdict(done) | {"exit": code}, shown)
