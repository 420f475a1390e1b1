"""`cpb ingest`: bring the market store up to date and say what it holds and lacks."""

from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import Json, Shown, takes
from flows.console import emit, say
from schemas.run import IngestSpec
from schemas.wording import count

if TYPE_CHECKING:
    from schemas.scope import Scope
    from tasks.market.report import IngestReport


@takes(IngestSpec, shown={"coins": Shown(names=("--coins", "--symbols"))})
def ingest(
    spec: IngestSpec,
    plan: Annotated[bool, typer.Option("--plan", help="only show what would be fetched")] = False,
    report: Annotated[bool, typer.Option("--report", help="print every hole and save the report")] = False,
    connections: Annotated[int, typer.Option(min=1, max=64, help="downloads at the same time")] = 32,
    json: Json = False,
) -> None:
    """Fetch, verify and store klines; a second run fetches only what is new.

    Example: cpb ingest --coins BTC,ETH --timeframes 1h --since 2024-01

    Exit code: 0 complete, 1 fatal, 2 usage, 3 partial (good data kept).
    """
    from flows.progress import shown_progress

    with shown_progress("ingest"):
        from tasks.market.ingest import ingest as bring_up_to_date
        from tasks.market.report import save

        scope = _with_listed_pairs(spec) if spec.every_pair else spec.scope
        found = bring_up_to_date(scope, tail=spec.tail, plan=plan, connections=connections)
    if report and not plan:
        save(found, scope.root)
    if json:
        emit(found.to_dict())
    else:
        print(_for_people(found, plan, report))
    raise typer.Exit(0 if plan else found.exit)


def _with_listed_pairs(spec: IngestSpec) -> "Scope":
    """Return the scope with the pairs that its source lists: those of `exchange`, or all."""
    from tasks.market.ingest import listed_symbols
    from tasks.market.pairs import with_listed_pairs

    if not spec.whole_exchange:
        return spec.scope.model_copy(update={"symbols": tuple(listed_symbols(spec.scope))})
    found, sentence = with_listed_pairs(spec)
    say(sentence)
    return found.scope


def _for_people(report: "IngestReport", plan: bool, full: bool) -> str:
    from tasks.market.report import details, table

    if plan:
        return "\n".join(report.notes)
    parts = [table(report), *report.notes, *([details(report)] if full else [])]
    requests = count(report.requests, "request")
    return "\n".join([*parts, f"{requests} to {report.source} in {report.seconds:.1f} s"])
