"""`cpb prune`: removes the data that nightly runs accumulate, so that database, artifacts and store stay bounded.

Kept are the last nights in full; champions and their predecessors; everything with an alias or the tag
`keep`. Nothing is deleted while a run is being written. A kill at any point is safe: each step can be repeated, and the
next pruning completes it.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import BusyError
from schemas.identity import MARKETS, market_home
from tasks.market.klines import set_aside_files
from tasks.storage.urls import local_path
from tasks.tracking.artifacts import files_size, remove_files, stale_copies
from tasks.tracking.connection import Store, alone, alone_everywhere
from tasks.tracking.database import is_server, shrink, sqlite_path
from tasks.tracking.flavour import unused
from tasks.tracking.logged_models import delete_models, link_version, models_of
from tasks.tracking.mlflow_private import delete_runs_for_good, delete_version_for_good
from tasks.tracking.mlflow_store import open_store, reconcile
from tasks.tracking.prune_plan import (
    NIGHTS,
    OldFlow,
    first_nights,
    old_versions,
    plan_runs,
    problem_of,
    stored_runs,
)
from tasks.tracking.tags import PRUNED
from tasks.tracking.versions import all_versions, full_name
from tasks.training.files import no_shards_in_use, old_shards, remove_old_shards

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

SET_ASIDE_DAYS = 90
"""Days after which damaged files that were set aside are deleted."""


@dataclass
class PruneReport:
    """The deleted objects, or with `dry_run` those that would be deleted.

    `kept`: objects old enough for deletion but kept, with the reason.
    """

    dry_run: bool
    runs: int = 0
    versions: list[str] = field(default_factory=list)
    fleets: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    artifact_bytes: int = 0
    kept: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return the report in one sentence."""
        verb = "would delete" if self.dry_run else "deleted"
        counts = {"run": self.runs, "version": len(self.versions), "fleet": len(self.fleets),
                  "other file": len(self.files)}  # fmt: skip
        parts = [f"{n:,} {noun}{'' if n == 1 else 's'}" for noun, n in counts.items() if n]
        if not parts:
            return "nothing to prune"
        size = f" with {self.artifact_bytes / 1e6:,.1f} MB of artifacts" if self.artifact_bytes else ""
        return f"{verb} {', '.join(parts)}{size}"


def prune(
    home: Path,
    *,
    dry_run: bool = True,
    nights: int = NIGHTS,
    now: datetime | None = None,
    store: Store | None = None,
) -> PruneReport:
    """Delete old data, or only report it.

    Args:
        home: CPB_HOME, with fleets, set-aside files, forecasts and ledger.
        nights: nights of each market that are kept in full.
        now: UTC; default the current time.

    Raises:
        BusyError: a run is being written or a fleet is training; nothing was deleted.
    """
    now = now or datetime.now(UTC)
    store = store or open_store(create=not dry_run)
    report = PruneReport(dry_run)
    if dry_run:
        _prune(store, home, nights, now, report)
        return report
    reconcile(store)
    with _alone(store, home):
        _prune(store, home, nights, now, report)
    return report


@contextmanager
def _alone(store: Store, home: Path) -> Iterator[None]:
    """Lock out every other writer of the store, and every training below the home, during the block."""
    with ExitStack() as held:
        held.enter_context(alone_everywhere(store, "registry"))
        held.enter_context(alone(store))
        for root in _roots(home):
            try:
                held.enter_context(no_shards_in_use(root))
            except BusyError as error:
                raise BusyError(
                    f"a training or a backtest is running in {root}; prune again when it has ended"
                ) from error
        yield


def _prune(store: Store, home: Path, nights: int, now: datetime, report: PruneReport) -> None:
    """Report old data, and delete it unless `report.dry_run`."""
    flows, versions = _plan(store, home, nights, now, report)
    for old in versions:
        if not report.dry_run:
            _delete_version(store, old)
        report.versions.append(full_name(old))
    for flow in flows:
        report.runs += len(flow.runs)
        report.artifact_bytes += sum(files_size(run.uri) for run in flow.runs)
        if not report.dry_run:
            _delete_flow(store, flow, now)
    fleets_of = old_shards if report.dry_run else remove_old_shards
    for root in _roots(home):
        if (fleets := root / "fleets").is_dir():
            report.fleets += map(str, fleets_of(fleets, now))
    # By ctime: renaming a file updates its ctime but not its mtime.
    limit = (now - timedelta(days=SET_ASIDE_DAYS)).timestamp()
    set_aside = [p for root in _roots(home) for p in set_aside_files(root) if p.stat().st_ctime < limit]
    gone = set(report.versions)
    copies = stale_copies(home, [v for v in all_versions(store) if full_name(v) not in gone])
    report.files += map(str, (*set_aside, *copies))
    if report.dry_run:
        return
    for path in set_aside:
        path.unlink(missing_ok=True)
    for folder in copies:
        shutil.rmtree(folder)
    if shared := local_path(store.artifacts):
        for path in unused(shared):  # shared files whose last run was deleted
            path.unlink(missing_ok=True)
    if database := sqlite_path(store.uri):
        shrink(database)


def _plan(
    store: Store, home: Path, nights: int, now: datetime, report: PruneReport
) -> "tuple[list[OldFlow], list[ModelVersion]]":
    """Return the old flow runs and versions; those that cannot be deleted are added to the report.

    Raises:
        BusyError: a run is being written.
    """
    runs = stored_runs(store)
    if writing := [run for run in runs if run.kind and run.running and not run.deleted]:
        raise BusyError(
            f"run {writing[0].name} ({writing[0].id}) is being written; prune again when it has ended"
        )
    if is_server(store.uri):  # runs marked as deleted are removed only by the server's `mlflow gc`
        runs = [run for run in runs if not run.deleted]
    since = first_nights(runs, nights)
    every = all_versions(store)
    versions = old_versions(store, every, since, runs)
    gone = set(map(full_name, versions))
    needed = {v.run_id or "" for v in every if full_name(v) not in gone}
    flows, kept = plan_runs(runs, since, needed, lambda run: problem_of(store, run))
    report.kept += kept
    return flows, versions


def _delete_version(store: Store, old: "ModelVersion") -> None:
    link_version(store, old, deleted=True)
    if is_server(store.uri):
        store.client.delete_model_version(old.name, str(old.version))
    else:
        delete_version_for_good(store.client, old.name, str(old.version))


def _delete_flow(store: Store, old: OldFlow, now: datetime) -> None:
    """Delete runs of a flow: first hide it, or what remains of its fleets, from readers; then files, then rows."""
    for fleet in old.fleets:
        store.client.set_tag(fleet, PRUNED, now.isoformat(timespec="seconds"))
    final = not is_server(store.uri)  # a server's rows and files are removed by its `mlflow gc`
    ids = [run.id for run in old.runs]
    if not final:
        delete_models(store, ids)
    for run in old.runs:
        if not run.deleted and (not final or run is old.top):
            store.client.delete_run(run.id)
    if final:
        for run in old.runs:
            if not problem_of(store, run):  # again: a long pruning leaves people minutes to add a file
                remove_files(run.uri, run.id)
        delete_runs_for_good(store.client, ids, [model.model_id for model in models_of(store, ids)])


def _roots(home: Path) -> list[Path]:
    """Return the folders with manifests, fleets and trees: of the real markets, and of the simulator."""
    return list(dict.fromkeys(market_home(home, market) for market in MARKETS))
