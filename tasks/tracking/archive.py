"""What pruning leaves of an old flow run: one file on the run, with its members' figures.

A bare MLflow run costs 8 kB, a member's with its model and pictures 80 kB; a member in this file costs less than half
a kB, packed.
"""

import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import CpbError, DamagedError
from schemas.handover import Record
from tasks.storage.records import read_record, write_record
from tasks.tracking.artifacts import attaching, fetched
from tasks.tracking.connection import Store, search
from tasks.tracking.mlflow_private import delete_remote_files, local_path
from tasks.tracking.records import REPORT
from tasks.tracking.tags import FILES, FLEET, KEY, KIND, MLFLOW_FILES, PARENT, PRUNED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlflow.entities import Run

ARCHIVE = "archive.json.gz"
"""Name of the artifact on the flow's run."""

_LEFT_OUT = (KEY, PARENT, FILES, MLFLOW_FILES, "fleet", "mlflow.user", "mlflow.runName")
"""Tags of a run that say nothing once it is gone."""


class RunArchive(Record):
    """One run: its params, tags and last metrics, as MLflow had them."""

    key: str
    name: str
    status: str
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, float]


class FleetArchive(Record):
    """A fleet's run, with what its members share, and the runs of its members."""

    fleet: RunArchive
    members: tuple[RunArchive, ...]


class FlowArchive(Record):
    """A flow's fleets, when its members' runs were pruned; its leaderboard is made of them."""

    pruned_at: datetime
    fleets: tuple[FleetArchive, ...]


def make_archive(store: Store, flow: "Run", now: datetime) -> FlowArchive | None:
    """Return the archive of a flow run; None where nothing has changed since the last one.

    A fleet that was pruned before is taken from that archive: of its runs only some are left.
    """
    before = read_archive(store, flow)
    whole = [f for f in _fleets(store, flow) if PRUNED not in f.data.tags]
    if before and not whole:
        return None
    fleets = {one.fleet.key: one for one in before.fleets} if before else {}
    for run in whole:
        members = tuple(_archived(member) for member in _children(store, run))
        fleets[run.data.tags.get(KEY, "")] = FleetArchive(fleet=_archived(run), members=members)
    return FlowArchive(pruned_at=now, fleets=tuple(fleets.values()))


def write_archive(store: Store, flow: "Run", archive: FlowArchive) -> None:
    """Put the archive on the flow's run in place of its report (2 MB), then mark the run and its fleets as pruned.

    The marks come last: were the process killed in between, the members are all there and the archive is made again.
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
    """Return the archive of a flow run; None where it was never pruned.

    Raises:
        CpbError: it is damaged or gone, or cannot be fetched from a tracking server.
    """
    if PRUNED not in flow.data.tags:
        return None
    folder = local_path(flow.info.artifact_uri)
    if folder is not None:
        return _read(folder / ARCHIVE, flow.info.run_id)
    with tempfile.TemporaryDirectory() as part:
        return _read(fetched(store, f"{flow.info.artifact_uri}/{ARCHIVE}", part), flow.info.run_id)


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


def _children(store: Store, run: "Run") -> "list[Run]":
    return search(store, f"tags.`{PARENT}` = '{run.info.run_id}'", ["attributes.start_time ASC"])


def _archived(run: "Run") -> RunArchive:
    tags = run.data.tags
    return RunArchive(
        key=tags.get(KEY, ""),
        name=run.info.run_name or "",
        status=run.info.status,
        params=dict(run.data.params),
        tags={name: value for name, value in tags.items() if name not in _LEFT_OUT},
        metrics=rounded(run.data.metrics),
    )


def rounded(metrics: "Mapping[str, float]") -> dict[str, float]:
    """Return metrics with six significant digits, which is more than any of them is worth and half the space."""
    return {name: float(f"{value:.6g}") for name, value in metrics.items()}
