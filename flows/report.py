"""The report of a training run, made of what its fleets left on disk and put on the flow's run in MLflow."""

from collections.abc import Sequence

from flows.training import Training
from schemas.handover import Decision
from schemas.run import RunSpec
from tasks.judging.fleet import read_scores
from tasks.tracking.flow_report import ReportedFleet, keep_report


def report_training(spec: RunSpec, training: Training, decisions: Sequence[Decision] = ()) -> None:
    """Write the report; before the fleets are released, whose scores it reads."""
    fleets = [
        ReportedFleet(one.architecture, one.members, read_scores(spec.scope.root / "fleets" / one.key, one))
        for one in training.results
        if one.members
    ]
    keep_report(training.summary.run_id, fleets, decisions)
