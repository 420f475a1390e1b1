"""`--prune`: deletes the runs and model versions that nights leave behind, so that the MLflow store stays bounded.

Kept are the last nights of each market, and before them what an alias or the tag `keep` holds. Of the rest, runs that
cpb logged are deleted, with the files that cpb logged. A kill at any point is safe: the next pruning deletes what is
left.

Nights are the UTC days on which a flow run of the market finished: a machine that was off for a month keeps its last
nights, and nights on spot do not age the simulator's.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import BusyError, counted
from schemas.retention import NIGHTS
from tasks.storage.files import delete_files, final_path, remove_empty
from tasks.storage.model_folder import MODEL_FILES
from tasks.storage.urls import local_path
from tasks.tracking.calls import search
from tasks.tracking.champions import COPIES, copy_name
from tasks.tracking.database import exclusive
from tasks.tracking.dead_runs import MAX_SILENT_DAYS, dead_runs, reconcile
from tasks.tracking.experiment import Store
from tasks.tracking.home_store import is_server
from tasks.tracking.registry import all_versions, full_name, registered_models, series_of
from tasks.tracking.store import open_store, read_store
from tasks.tracking.tags import (
    FLEET,
    FLOW,
    KEEP,
    KEY,
    KIND,
    MEMBER,
    MLFLOW_FILES,
    PARENT,
    PRUNED,
    digests_of,
    market_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mlflow.entities import Run, RunInfo
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

LOADED = "registered_model_meta"
"""Written by MLflow into a local registered model's folder when it loads the model."""
_COPY = re.compile(r"cpb-.+-\d+-[0-9a-f]{12}")


@dataclass
class PruneReport:
    """The deleted objects, or with `dry_run` those that would be deleted.

    `versions`: as `cpb-BTCUSDT-1h/3`. `kept`: old runs that stay, each with the reason.
    """

    dry_run: bool
    runs: int = 0
    versions: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return the report in one sentence."""
        if not self.runs and not self.versions:
            return "nothing to prune"
        verb = "would delete" if self.dry_run else "deleted"
        return f"{verb} {counted(self.runs, 'run')} and {counted(len(self.versions), 'version')}"


@dataclass(frozen=True)
class _Run:
    """What pruning needs of a run; a store holds too many runs to keep them whole in memory.

    `kind`: "" for a run that cpb did not log. `names`: the artifacts that cpb logged.
    """

    info: "RunInfo"
    day: date
    kind: str
    parent: str
    market: str
    keep: bool
    names: frozenset[str]

    @classmethod
    def of(cls, run: "Run") -> "_Run":
        info, tags = run.info, run.data.tags
        day = _day(max(info.end_time or 0, info.start_time))
        kind = tags[KIND] if KEY in tags and tags.get(KIND) in (FLOW, FLEET, MEMBER) else ""
        return cls(info, day, kind, tags.get(PARENT, ""), market_of(run), KEEP in tags, logged_names(tags))

    @property
    def id(self) -> str:
        return str(self.info.run_id)

    @property
    def deleted(self) -> bool:
        return self.info.lifecycle_stage == "deleted"


def delete_old(home: Path, *, dry_run: bool = True, nights: int = NIGHTS) -> PruneReport:
    """Delete old runs, versions and fetched copies of models, or only report them.

    Args:
        home: CPB_HOME, which holds the copies.
        nights: nights of each market that are kept in full.

    Raises:
        BusyError: a run is being written; nothing was deleted.
    """
    if dry_run:
        return _delete_old(read_store(), nights, dry_run=dry_run)
    store = open_store(create=False)
    reconcile(store)
    with exclusive(store.uri):
        report = _delete_old(store, nights, dry_run=dry_run)
        current = {copy_name(v.name, v.version, v.run_id) for v in all_versions(store)}
        for folder in (home / COPIES).absolute().glob("*/"):  # models that were fetched from a server
            if _COPY.fullmatch(folder.name) and folder.name not in current:
                delete_files(folder, MODEL_FILES.__contains__)
    return report


def _delete_old(store: Store, nights: int, *, dry_run: bool) -> PruneReport:
    report = PruneReport(dry_run)
    # Only flows' runs are read for this: a dozen a night, of thousands.
    since = _first_nights(map(_Run.of, search(store, f"tags.`{KIND}` = '{FLOW}'")), nights)
    runs = _read_old(store, max(since.values())) if since else []
    dead = dead_runs(store) if dry_run else {}  # a pruning has marked them as killed
    for run in map(_Run.of, search(store, "attributes.status = 'RUNNING'")):
        if run.kind and run.id not in dead:
            raise BusyError(
                f"run {run.id} is being written; prune again when it has ended. One of a machine that died is given up "
                f"{MAX_SILENT_DAYS} days after its last sign of life"
            )
    # Versions before runs: a version's run and files stay as long as it does.
    versions, needed = _old_versions(store, since, {run.id for run in runs if run.kind == MEMBER})
    old, thinned = _old_runs(store, runs, since, needed, report.kept)
    report.runs, report.versions = len(old), [full_name(version) for version in versions]
    if not dry_run:
        for version in versions:
            # MLflow keeps a blank row, so that it gives no number twice, and would keep the tags with it.
            for tag in version.tags:
                store.client.delete_model_version_tag(version.name, str(version.version), tag)
            store.client.delete_model_version(version.name, str(version.version))
        # Before members go: a reader must not take the rest for a fleet.
        for fleet in thinned:
            store.client.set_tag(fleet, PRUNED, datetime.now(UTC).isoformat(timespec="seconds"))
        _delete_runs(store, old)
    return report


def _read_old(store: Store, first: date) -> list[_Run]:
    """Return the runs that began before a day, of which pruning deletes some, and later runs that people put below any.

    MLflow takes 2 to 4 ms to read a run, so the nights that stay are not read.
    """
    # The newest of the markets' first nights: what is kept of other markets is sorted out later, by its
    # own.
    began = int(datetime(first.year, first.month, first.day, tzinfo=UTC).timestamp() * 1000)
    before = search(store, f"attributes.start_time < {began}", deleted=True)
    added = search(
        store,
        f"attributes.start_time >= {began} and tags.`{PARENT}` IS NOT NULL and tags.`{KIND}` IS NULL",
        deleted=True,
    )
    return [_Run.of(run) for run in (*before, *added)]


def _first_nights(runs: Iterable[_Run], nights: int) -> dict[str, date]:
    """Return the day of each market's oldest night that is kept; markets with fewer than `nights` are left out.

    With exactly `nights` there may be older runs: failed ones, and those that a killed pruning has hidden already.
    """
    days: dict[str, set[date]] = defaultdict(set)
    for run in runs:
        if run.kind == FLOW and run.info.status == "FINISHED" and not run.deleted:
            days[run.market].add(run.day)
    return {market: sorted(ended)[-nights] for market, ended in days.items() if len(ended) >= nights}


def _old_versions(
    store: Store, since: dict[str, date], members: Collection[str]
) -> "tuple[list[ModelVersion], set[str]]":
    """Return the versions to delete, and the ids of the runs whose files belong to a version that stays."""
    aliased = {(m.name, str(number)) for m in registered_models(store) for number in m.aliases.values()}
    old, needed = list["ModelVersion"](), set[str]()
    for version in all_versions(store):
        series = series_of(version.name)
        if (
            series is None
            or series.registered != version.name
            or version.run_id not in members
            or (version.name, str(version.version)) in aliased
            or KEEP in version.tags
            or _day(version.creation_timestamp) >= since.get(series.market, date.min)
        ):
            needed.add(version.run_id or "")
        else:
            old.append(version)
    return old, needed


def _old_runs(
    store: Store, runs: Sequence[_Run], since: dict[str, date], needed: set[str], kept: list[str]
) -> tuple[list[_Run], set[str]]:
    """Return the runs to delete, parents first, and the ids of the remaining fleets that lose members by it.

    A run that stays keeps its parents, without which MLflow does not show it; the tag `keep` of a parent covers its
    children. Runs that stay only for a file that cpb did not log are added to `kept`.
    """
    by_id, here = {run.id: run for run in runs}, _is_here(store)
    stays, old = set[str](), list[list[_Run]]()
    for run in runs:
        lineage = _lineage(run, by_id)
        # By the flow at the top: a fleet that ends after midnight is of the night in which its flow ended.
        recent = lineage[-1].day >= since.get(lineage[-1].market, date.min)
        if recent or not run.kind or run.id in needed or any(above.keep for above in lineage):
            stays.update(above.id for above in lineage)
        # Where files are elsewhere, marking is all that can be done, and was done already.
        elif here or not run.deleted:
            old.append(lineage)
    for lineage in old:
        run = lineage[0]
        if run.id not in stays and (why := unlogged_file(store, run.id, run.info.artifact_uri, run.names)):
            kept.append(f"run {run.info.run_name} ({run.id}): {why}")
            stays.update(above.id for above in lineage)
    # Parents first, by the length of their lineage.
    gone = [lineage[0] for lineage in sorted(old, key=len) if lineage[0].id not in stays]
    return gone, stays & {run.parent for run in gone if run.kind == MEMBER and not run.deleted}


def _lineage(run: _Run, by_id: dict[str, _Run]) -> list[_Run]:
    """Return a run, its parent, and so on; a parent that was deleted for good ends it."""
    lineage = [run]
    while (above := by_id.get(lineage[-1].parent)) and above not in lineage:
        lineage.append(above)
    return lineage


def _delete_runs(store: Store, runs: Sequence[_Run]) -> None:
    """Delete runs: first mark them, flows first, so that no reader meets a part of one; then files, then rows."""
    for run in runs:
        if not run.deleted:
            store.client.delete_run(run.id)
    if not _is_here(store):
        return
    empty = list[str]()
    for run in runs:
        folder = local_path(run.info.artifact_uri)  # ROOT/RUN/artifacts
        # Rows go only where the folder is empty: files that nothing records would stay for ever.
        if folder and delete_files(folder, run.names.__contains__):
            remove_empty(folder.parent)
            empty.append(run.id)
    delete_runs_for_good(store.client, empty)


def delete_runs_for_good(client: "MlflowClient", run_ids: Sequence[str]) -> None:
    """Delete all rows of runs from a SQL store; MLflow's public `delete_run` only marks them.

    Not by `mlflow gc --run-ids`: it also deletes for good every other experiment and logged model that somebody has
    deleted in the store, and each folder of artifacts as a whole. It calls `SqlAlchemyStore._hard_delete_run` too.
    """
    store: Any = client._tracking_client.store
    for run_id in run_ids:
        store._hard_delete_run(run_id)


def _is_here(store: Store) -> bool:
    """Whether rows and files are on this machine; others' are deleted by `mlflow gc` where they are, once marked."""
    return not is_server(store.uri) and local_path(store.artifacts) is not None


def _day(ms: int) -> date:
    """Return the UTC day of a time in milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).date()


def logged_names(tags: "Mapping[str, str]") -> frozenset[str]:
    """Return the names of the artifacts that cpb logged to a run, or MLflow wrote beside them, from the run's tags."""
    return frozenset({*digests_of(tags), *digests_of(tags, MLFLOW_FILES), LOADED})


def unlogged_file(store: Store, run_id: str, uri: str, names: "Collection[str]") -> str:
    """Return why a run's artifacts may not be deleted: a file that is not one of `names`, or "" for none."""
    folder = local_path(uri)  # ROOT/RUN/artifacts
    # An unmounted disk looks like an empty folder: better to keep the run.
    if folder and not folder.parent.parent.is_dir():
        return "its artifacts are on another machine"
    files = _files_below(folder) if folder else _listed(store, run_id)
    name = next((name for name in files if final_path(name) not in names), "")
    return f"it holds {name}, which cpb did not log" if name else ""


def _files_below(folder: Path) -> "Iterator[str]":
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix()


def _listed(store: Store, run_id: str, path: str | None = None) -> "Iterator[str]":
    for file in store.client.list_artifacts(run_id, path):
        if file.is_dir:
            yield from _listed(store, run_id, file.path)
        else:
            yield file.path
