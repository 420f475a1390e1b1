"""The report of a training run, made of what its fleets left on disk and put on the flow's run in MLflow."""

from collections.abc import Sequence

from flows.summary import Say
from flows.training import Training
from schemas.errors import CpbError
from schemas.handover import Decision, Failure
from schemas.run import RunSpec
from tasks.judging.fleet import read_scores
from tasks.tracking.flow_report import ReportedFleet, keep_report


def report_training(spec: RunSpec, training: Training, say: Say, decisions: Sequence[Decision] = ()) -> None:
    """Write the report; before the fleets are released, whose scores it reads.

    One that cannot be written is a failure of the run's, and stops nothing: models, scores and decisions stand.
    """
    try:
        fleets = [
            ReportedFleet(
                shards[0].architecture,
                [member for one in shards for member in one.members],
                read_scores(spec.scope.root, shards),
            )
            for shards in training.results
            if any(one.members for one in shards)
        ]
        keep_report(training.summary.run_id, fleets, decisions)
    except (CpbError, OSError) as error:  # damaged scores, a full disk
        training.summary.add([Failure.of(None, "evaluate", error)], say)
