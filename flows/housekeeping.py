"""What a run of training does to its home beside the models: `results.json`, and the pruning of old data.

Neither fails a run: its models stand, and the run ends partial with the reason.
"""

from collections.abc import Sequence

from flows.run import Run
from schemas.errors import BusyError, counted
from schemas.handover import FleetJudgement
from schemas.run import RunSpec
from tasks.tracking.prune import delete_old
from tasks.tracking.results import write_results
from tasks.tracking.store import open_store


def leave_results(run: Run, spec: RunSpec, judged: Sequence[FleetJudgement]) -> None:
    """Put the judged models into the market's `results.json`."""
    with run.attempt("evaluate"):
        path, number = write_results(spec.scope.home, spec.market, open_store(), judged)
        run.results = str(path)
        run.report(f"results of {counted(number, 'model')} in {path}")


def prune_if_asked(run: Run, spec: RunSpec) -> None:
    """Delete old data after a run that has ended, where its specification asks for it."""
    if not spec.prune:
        return
    failed = len(run.failures)
    with run.attempt("prune"):
        try:
            run.report(f"pruning: {delete_old(spec.scope.home, dry_run=False)}")
        except BusyError as error:  # the next nightly run prunes
            run.report(f"nothing was pruned: {error}")
    # The run has ended as complete before: it is ended again, as partial, with this reason.
    if len(run.failures) > failed:
        run.mark()
