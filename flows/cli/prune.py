"""`cpb prune`: delete what nightly runs pile up."""

from typing import Annotated

import typer

from flows.cli.options import Json
from flows.console import emit, quiet_libraries, say

_SHOWN = 20
"""Lines of each kind that are shown to people; `--json` has all."""


def prune(
    yes: Annotated[bool, typer.Option("--yes", help="delete; without it, only show what would go")] = False,
    json: Json = False,
) -> None:
    """Show, or with --yes delete, old runs, versions, fleets and set-aside files.

    Kept: of each market the last 14 nights whole, then one run a week with its members' figures in one file;
    champions, challengers, their predecessors, and runs and versions with the tag `keep`. Each version that goes
    leaves a card in the ledger. Nothing goes while a run is being written.

    Example: cpb prune
    """
    quiet_libraries()
    from schemas.scope import home
    from tasks.tracking.prune import prune as delete_old

    report = delete_old(home(), dry_run=not yes)
    if json:
        emit({**report.as_json(), "exit": 0})
        return
    _list("version", report.versions)
    _list("fleet", report.fleets)
    _list("file", report.files)
    _list("stays:", report.kept)
    say(str(report))
    if report.dry_run and (report.runs or report.versions or report.fleets or report.files):
        say("nothing was deleted: add --yes to do it")


def _list(word: str, lines: list[str]) -> None:
    for line in lines[:_SHOWN]:
        say(f"  {word} {line}")
    if len(lines) > _SHOWN:
        say(f"  … and {len(lines) - _SHOWN} more; --json shows all")
