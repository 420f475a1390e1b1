"""The fleets of a flow, from MLflow or, once pruned, from one archive file on the flow's run, with their figures.

A plain MLflow run takes 8 kB, a member's run with its model and pictures 80 kB; a member in this file takes less than
half a kB compressed.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import CpbError, DamagedError
from schemas.handover import Record
from tasks.storage.records import read_record, write_record
from tasks.tracking.artifacts import attaching, files_at
from tasks.tracking.connection import Store, search
from tasks.tracking.mlflow_private import delete_remote_files, local_path
from tasks.tracking.records import REPORT
from tasks.tracking.tags import FILES, FLEET, KEY, KIND, MLFLOW_FILES, PARENT, PRUNED, recipe_of_run

if TYPE_CHECKING:
    from mlflow.entities import Run

ARCHIVE = "archive.json.gz"
"""Artifact name on the flow's run."""

_LEFT_OUT = (KEY, PARENT, FILES, MLFLOW_FILES, "fleet", "mlflow.user", "mlflow.runName")
"""Tags that are meaningless once the run is deleted."""


log = logging.getLogger("cpb")


class RunArchive(Record):
    """One run: its params, tags and last metrics, as recorded in MLflow."""

    key: str
    name: str
    status: str
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, float]

    @classmethod
    def of(cls, run: "Run") -> "RunArchive":
        """Create it from an MLflow run."""
        tags = run.data.tags
        return cls(
            key=tags.get(KEY, ""),
            name=run.info.run_name or "",
            status=run.info.status,
            params=dict(run.data.params),
            tags={name: value for name, value in tags.items() if name not in _LEFT_OUT},
            metrics=dict(run.data.metrics),
        )

    def rounded(self) -> "RunArchive":
        """Return a copy with metrics rounded to six significant digits: enough precision, half the space."""
        metrics = {name: float(f"{value:.6g}") for name, value in self.metrics.items()}
        return self.model_copy(update={"metrics": metrics})


class FleetArchive(Record):
    """A fleet's run, with the params shared by its members, and its members' runs."""

    fleet: RunArchive
    members: tuple[RunArchive, ...]


class FlowArchive(Record):
    """A flow's fleets, archived when its members' runs are pruned; the flow's leaderboard is built from them."""

    pruned_at: datetime
    fleets: tuple[FleetArchive, ...]


@dataclass(frozen=True)
class Fleet:
    """A fleet of a flow with its members; `run_id`: of its own run, or of the flow's run if pruned."""

    run_id: str
    run: RunArchive
    members: tuple[RunArchive, ...]
    recipe: str

    @property
    def architecture(self) -> str:
        """The architecture of all its members."""
        return self.run.tags.get("architecture", self.run.name)


def fleets_of(store: Store, flow: "Run") -> Iterator[Fleet]:
    """Yield the fleets of a flow run: unpruned fleets from MLflow, then fleets that are only in its archive.

    Raises:
        CpbError: as in `read_archive`, after the fleets in MLflow.
    """
    known = set()
    for run in _whole(store, flow):
        fleet = RunArchive.of(run)
        known.add(fleet.key)
        members = tuple(RunArchive.of(member) for member in _children(store, run))
        yield Fleet(run.info.run_id, fleet, members, _recipe(fleet, flow))
    archive = read_archive(store, flow)
    for one in archive.fleets if archive else ():
        if one.fleet.key not in known:
            yield Fleet(flow.info.run_id, one.fleet, one.members, _recipe(one.fleet, flow))


def readable_fleets(store: Store, flow: "Run") -> list[Fleet]:
    """Return the fleets of a flow run; a damaged archive is skipped and logged."""
    found: list[Fleet] = []
    try:
        found.extend(fleets_of(store, flow))
    except CpbError as error:
        if error.code != "damaged":
            raise
        log.warning("the leaderboard lacks run %s: %s", flow.info.run_id, error)
    return found


def make_archive(store: Store, flow: "Run", now: datetime) -> FlowArchive | None:
    """Return the archive of a flow run; None if nothing has changed since the last archive.

    A fleet that was pruned before is copied from the last archive: most of its runs are deleted.
    """
    before = read_archive(store, flow)
    whole = _whole(store, flow)
    if before and not whole:
        return None
    fleets = {one.fleet.key: one for one in before.fleets} if before else {}
    for run in whole:
        members = tuple(RunArchive.of(member).rounded() for member in _children(store, run))
        fleets[run.data.tags.get(KEY, "")] = FleetArchive(fleet=RunArchive.of(run).rounded(), members=members)
    return FlowArchive(pruned_at=now, fleets=tuple(fleets.values()))


def write_archive(store: Store, flow: "Run", archive: FlowArchive) -> None:
    """Store the archive on the flow's run, replacing its report (2 MB); then mark the run and its fleets as pruned.

    The marks are set last: after a crash in between, all members still exist and the archive is created again.
    """
    with attaching(store, flow, ARCHIVE) as path:
        write_record(path, archive, of=flow.info.run_id, compact=True)
    folder = local_path(flow.info.artifact_uri)
    if folder is not None:
        (folder / REPORT).unlink(missing_ok=True)
    else:
        delete_remote_files(flow.info.artifact_uri, REPORT, store.uri)
    for run in (flow, *_fleets(store, flow)):
        store.client.set_tag(run.info.run_id, PRUNED, archive.pruned_at.isoformat(timespec="seconds"))


def read_archive(store: Store, flow: "Run") -> FlowArchive | None:
    """Return the archive of a flow run; None if it was never pruned.

    Raises:
        CpbError: it is damaged or missing, or cannot be fetched from a tracking server.
    """
    if PRUNED not in flow.data.tags:
        return None
    with files_at(store, flow.info.artifact_uri) as folder:
        return _read(folder / ARCHIVE, flow.info.run_id)


def _read(path: Path, run_id: str) -> FlowArchive:
    try:
        return read_record(path, FlowArchive, of=run_id)
    except (FileNotFoundError, DamagedError) as error:
        what = "gone" if isinstance(error, FileNotFoundError) else "damaged"
        raise CpbError(
            f"the members of this run were pruned and their archive {path} is {what}; restore it from a backup",
            code="damaged",
            field=str(path),
        ) from error


def _fleets(store: Store, flow: "Run") -> "list[Run]":
    return [run for run in _children(store, flow) if run.data.tags.get(KIND) == FLEET]


def _whole(store: Store, flow: "Run") -> "list[Run]":
    """Return the runs of a flow's unpruned fleets; of pruned fleets only the runs of champions remain."""
    return [fleet for fleet in _fleets(store, flow) if PRUNED not in fleet.data.tags]


def _recipe(fleet: RunArchive, flow: "Run") -> str:
    return recipe_of_run(fleet.params, fleet.tags, flow.data.tags)


def _children(store: Store, run: "Run") -> "list[Run]":
    return search(store, f"tags.`{PARENT}` = '{run.info.run_id}'", ["attributes.start_time ASC"])
