"""What a run of training leaves beside its models: `results.json`, pruned old data, a copy of the registry, its
leaderboard on Prefect's page.

None of them fails a run: its models stand, and the run ends partial with the reason.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx
from prefect.artifacts import create_markdown_artifact

from flows.console import finding, interval
from flows.run import Run
from schemas.errors import BusyError, CpbError, counted, log
from schemas.handover import FleetJudgement
from schemas.run import RunSpec
from tasks.tracking.leaderboard import read_board
from tasks.tracking.prune import delete_old
from tasks.tracking.registry_copy import read_registry
from tasks.tracking.results import write_results
from tasks.tracking.store import open_store, read_store
from tasks.tracking.store_errors import store_errors
from tasks.tracking.views import run_address


def leave_results(run: Run, spec: RunSpec, judged: Sequence[FleetJudgement]) -> None:
    """Put the judged models into the market's `results.json`."""
    with run.attempt("evaluate"):
        path, number = write_results(spec.scope.home, spec.market, open_store(), judged)
        run.results = str(path)
        run.report(f"results of {counted(number, 'model')} in {path}")


def copy_registry() -> None:
    """Leave the registry's copy in the home, so that the next forecast need not load MLflow; nothing else may write."""
    with suppress(CpbError), store_errors():
        read_registry(read_store)


def prune_old(run: Run, home: Path) -> None:
    """Delete old data after a run that has ended."""
    failed = len(run.failures)
    with run.attempt("prune"):
        try:
            run.report(f"pruning: {delete_old(home, dry_run=False)}")
        except BusyError as error:  # the next nightly run prunes
            run.report(f"nothing was pruned: {error}")
    # The run has ended as complete before: it is ended again, as partial, with this reason.
    if len(run.failures) > failed:
        run.mark()


def show_board(run: Run) -> None:
    """Leave the run's leaderboard and the address of its MLflow run on the page of its flow run."""
    try:
        with store_errors():
            rows = read_board(run.run_id)
            lines = [
                f"MLflow run: {run_address(open_store(), run.run_id)}",
                "",
                "Against the random walk with EWMA volatility, on the test span: ratios below 1 are better",
                "",
                "| | architecture | preset | CRPS ratio | 95 % interval | verdict |",
                "|---|---|---|---|---|---|",
            ]
            for row in rows:
                bounds = interval(row.get("crps_ratio_low"), row.get("crps_ratio_high")) or "-"
                names = " | ".join(row[name] for name in ("timeframe", "architecture", "preset"))
                figures = f"{row['crps_ratio']:.4f} | {bounds} | {finding(row['verdict'])}"
                lines.append(f"| {names} | {figures} |")
        create_markdown_artifact("\n".join(lines), key=run.name, description="Leaderboard of the run")
    # Classifiers have no board, and store or server may go away: the run is complete without its picture.
    except (CpbError, httpx.HTTPError) as error:
        log.warning("the leaderboard is not on Prefect's page: %s", error)
