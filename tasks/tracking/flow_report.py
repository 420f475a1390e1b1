"""`report.html` on a flow's run: the run's results in a single file that MLflow's own page displays.

About 2.0 MB, mostly plotly's bundle, compressed: the page is shown in a frame that may not fetch anything.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from schemas.handover import Decision
from schemas.identity import SIM
from tasks.figures.judged import INTRODUCTION, judged_sections, members_section
from tasks.figures.page import Column, Section, Table, write_page
from tasks.figures.training import losses_figure
from tasks.judging.member import MemberScore
from tasks.judging.pool import judge_pools
from tasks.storage.model_folder import file_digests
from tasks.tracking.artifacts import keep_files
from tasks.tracking.connection import Store
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.records import REPORT
from tasks.tracking.tags import FILES, market_of

_DECISIONS = {
    "series": Column("Series"),
    "outcome": Column("Outcome"),
    "version": Column("Version that serves"),
    "reason": Column("Why"),
}


@dataclass(frozen=True)
class ReportedFleet:
    """A fleet in a report: its mean losses per epoch, and the scores of the judged members."""

    architecture: str
    epochs: Sequence[Mapping[str, float]]
    scores: Sequence[MemberScore]


def keep_report(
    run_id: str,
    fleets: Sequence[ReportedFleet],
    decisions: Sequence[Decision] = (),
    store: Store | None = None,
) -> None:
    """Write the report of a flow and put it on its run.

    Args:
        run_id: of the flow.
        fleets: all trained fleets.
        decisions: the serving version of each series after the run.
    """
    store = store or open_store()
    run = store.client.get_run(run_id)
    sections = _sections(fleets, decisions, simulated=market_of(run) == SIM)
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_page(folder / REPORT, str(run.info.run_name), sections)
        keep_files(store, run, folder)
        store.client.set_tag(run_id, FILES, json.dumps(file_digests(folder)))


def _sections(
    fleets: Sequence[ReportedFleet], decisions: Sequence[Decision], *, simulated: bool
) -> list[Section]:
    members = [score for fleet in fleets for score in fleet.scores]
    warning = ["All prices are from the built-in simulator, not from a market."] if simulated else []
    losses = [
        (
            f"Loss of {fleet.architecture}, mean of its members",
            losses_figure({fleet.architecture: fleet.epochs}),
        )
        for fleet in fleets
        if fleet.epochs
    ]
    return [
        Section("What this is", text=[*warning, INTRODUCTION]),
        *judged_sections(judge_pools(members), members),
        *([Section("Training", figures=losses)] if losses else []),
        *([Section("Champions after this run", table=_decision_table(decisions))] if decisions else []),
        members_section(members),
    ]


def _decision_table(decisions: Sequence[Decision]) -> Table:
    rows = [
        {
            "series": f"{decision.series.label} {decision.series.timeframe}",
            "outcome": decision.outcome,
            "version": f"v{decision.version_number}",
            "reason": decision.reason,
        }
        for decision in decisions
    ]
    return Table(_DECISIONS, rows)
