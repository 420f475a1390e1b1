"""`cpb ingest`, `verify`, `prune` and `store`: fill, check and clean the store, and say which it is."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.ending import Answer, answered
from flows.cli.options import cli_options
from flows.console import Column, echo, print_table, quiet_libraries, show
from flows.progress import shown_progress
from flows.typed import typed_command
from schemas.errors import EXIT_COMPLETE, EXIT_FATAL, UsageError, counted
from schemas.identity import MARKETS
from schemas.scope import IngestSpec
from tasks.running.progress import report_progress
from tasks.storage.home_version import checked_home, stored_home

if TYPE_CHECKING:
    from tasks.market.store_state import StoreState


_SHOWN = 20
"""Maximum number of lines of each kind on the terminal; `--json` has all."""

_ALL = "all"

_COLUMNS = (
    Column("series", "series", stays=True),
    Column("status", "status", stays=True),
    Column("candles", "candles", ",", stays=True),
    Column("first (UTC)", "first"),
    Column("last (UTC)", "last"),
    Column("holes", "holes", ",", stays=True),
    Column("missing", "missing", ",", stays=True),
)


@answered
@cli_options(IngestSpec, without=("offline",))
def ingest(spec: IngestSpec) -> Answer:
    """Fetch, verify and store klines; a second run fetches only what is new.

    Example: cpb ingest --coins BTC,ETH --timeframes 1h --since 2024-01

    Exit code: 0 complete, 1 fatal, 2 usage, 3 partial (good data kept).
    """
    with shown_progress("ingest"):
        from tasks.market.ingest import update_store
        from tasks.market.listing import with_listed_pairs

        state = update_store(with_listed_pairs(spec, echo).scope, tail=spec.tail)
    return Answer(state.to_dict(), partial(_print, state))


def _print(state: "StoreState") -> None:
    from tasks.market.store_state import hole_lines, series_rows

    print_table("", _COLUMNS, series_rows(state))
    # Each failed series with its reason, as it needs a person; holes may be thousands, hence the limit.
    reasons = [f"{s.series}: {s.reason}" for s in state.series if s.reason]
    lines = hole_lines(state)
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"… and {len(lines) - _SHOWN} more; --json shows all"]
    requests = counted(state.requests, "request")
    for line in (
        *reasons,
        *state.warnings,
        *state.notes,
        *lines,
        f"{requests} to {state.source} in {state.seconds:.1f} s",
    ):
        show(line)


@answered
def verify(
    market: Annotated[str, typer.Option(help="all, spot, um, cm, own or sim")] = _ALL,
) -> Answer:
    """Read every stored file, compared with its digest: candles, features, fleets, champions, forecasts and scores.

    Prints a line per damaged file: its path, the reason, and what makes or fetches it again; changes nothing.
    Exit 1 if a file is damaged, or something could not be checked.

    Example: cpb verify --market spot
    """
    if market not in (_ALL, *MARKETS):
        raise UsageError(
            f"market {market!r} is unknown: choose from {', '.join((_ALL, *MARKETS))}", code="market"
        )
    quiet_libraries()
    markets = MARKETS if market == _ALL else (market,)
    with shown_progress("verify"):
        from tasks.verify.verification import verify_all

        home = stored_home()
        result = verify_all(home, markets, lambda checked: report_progress("verify", checked, 0, "files"))

    def shown() -> None:
        for damage in result.damaged:
            show(f"{damage.path}  {damage.reason}  -> {typed_command(damage.command)}")
        # A stored file does not say which source it came from.
        fetching = ("cpb ingest", "cpb train-all")
        if any(d.command.startswith(fetching) and "--source" not in d.command for d in result.damaged):
            echo(
                "where candles are not from Binance Vision, add their --source to `cpb ingest` and `cpb train-all`"
            )

    # With --json too: what could not be checked must not look like a home without damage.
    notes = [*result.unchecked]
    if result.checked or result.damaged:
        notes.append(f"{counted(result.checked, 'file')} checked, {len(result.damaged)} damaged")
    elif result.is_good:
        notes.append(f"nothing {'' if market == _ALL else f'of market {market} '}is stored in {home}")
    found = {
        "checked": result.checked,
        "damaged": [damage.model_dump(mode="json") for damage in result.damaged],
        "unchecked": result.unchecked,
        "behind": result.behind,
        "unseen": result.unseen,
        "exit": EXIT_COMPLETE if result.is_good else EXIT_FATAL,
    }
    return Answer(found, shown, [*notes, *result.behind, *result.unseen])


@answered
def prune(
    yes: Annotated[bool, typer.Option("--yes", help="delete; without it, only show what would go")] = False,
) -> Answer:
    """Show, or with --yes delete, old runs and versions of models in MLflow.

    Kept: of each market the last 14 nights; before them what has an alias, as champions have, or the tag
    `keep`, and runs with a file that cpb did not log. Nothing is deleted while a run is being written.

    Example: cpb prune
    """
    quiet_libraries()
    from tasks.tracking.prune import delete_old

    # Without --yes the same search, so that what is shown is what would go.
    report = delete_old(checked_home(), dry_run=not yes)

    def shown() -> None:
        for line in report.kept:
            echo(f"stays: {line}")
        echo(f"{report}{'' if yes or not report.runs else '; add --yes to do it'}")

    return Answer(asdict(report) | {"exit": EXIT_COMPLETE}, shown)


@answered
def store(
    take: Annotated[
        bool, typer.Option("--take", help="make this store the home's own, in place of the one that it has")
    ] = False,
) -> Answer:
    """Show which MLflow store this home has; with --take it takes the one of MLFLOW_TRACKING_URI.

    A home takes the first store that it is used with, and refuses any other (exit 1), whose models it would mix with
    its own. Forecasts that are stored stay.

    Example: cpb store
    """
    quiet_libraries()
    from tasks.storage.urls import public_url
    from tasks.tracking.home_store import home_store
    from tasks.tracking.registry import ALIAS, versions_with_alias
    from tasks.tracking.store import not_registered, read_store, take_store

    folder = checked_home()
    # Read only, unless asked to take it: the command must not make the store that it shows.
    opened = take_store() if take else read_store()
    registered, foreign = len(versions_with_alias(opened, ALIAS)), not_registered(opened, folder)
    is_own = home_store(folder) is not None

    def shown() -> None:
        show(f"home   {folder}")
        show(f"store  {public_url(opened.uri)}  (id {opened.id}, {counted(registered, 'champion')})")
        if not is_own:
            echo(
                "the home has no store yet: it takes the first one that a command writes, as a training does"
            )
        if foreign:
            echo(
                f"not of this store: {counted(len(foreign), 'packaged model')} of this home, such as "
                f"{foreign[0].model_version}; its champions replace them at the next forecast or publish"
                f"{'' if registered else ', once there are any: `cpb train-all` trains some'}"
            )

    answer = {
        "home": folder,
        "store": public_url(opened.uri),
        "id": opened.id,
        "is_own": is_own,
        "champions": registered,
        "packaged_elsewhere": [model.model_version for model in foreign],
        "exit": EXIT_COMPLETE,
    }
    return Answer(answer, shown)
