"""Selects the runs and versions that pruning removes: decided from the stored data, before anything is changed.

Nights are counted per market, by the UTC days on which a flow run of the market finished: a machine that was off for a
month keeps its last nights, and nightly runs on spot do not age the simulator's nights.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from tasks.storage.model_folder import FILES as MODEL_FILES
from tasks.storage.urls import local_path
from tasks.tracking.artifacts import LOADED, foreign_file
from tasks.tracking.connection import Store, search_lazily
from tasks.tracking.tags import (
    FLEET,
    FLOW,
    KEEP,
    KEY,
    KIND,
    MEMBER,
    MLFLOW_FILES,
    PARENT,
    digests_of,
    market_of,
)
from tasks.tracking.versions import ALIAS, series_of

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

NIGHTS = 14
"""Nights of each market that are kept in full."""

_OWN_FILES: dict[str, tuple[str, ...]] = {
    FLOW: (),
    FLEET: (),
    MEMBER: (*MODEL_FILES, LOADED),
}


@dataclass(frozen=True)
class StoredRun:
    """The attributes of a run that pruning needs.

    `kind` is "" for a run not written by cpb; `uri`, `files`: location of its artifacts, and their recorded names.
    """

    id: str
    kind: str
    parent: str
    name: str
    market: str
    ended: datetime
    finished: bool
    running: bool
    deleted: bool
    keep: bool
    uri: str
    files: tuple[str, ...]

    @classmethod
    def of(cls, run: "Run") -> "StoredRun":
        """Create it from an MLflow run."""
        info, tags = run.info, run.data.tags
        kind = tags.get(KIND, "")
        at = max(info.end_time or 0, info.start_time)
        return cls(
            id=info.run_id,
            kind=kind if kind in _OWN_FILES and tags.get(KEY) else "",
            parent=tags.get(PARENT, ""),
            name=info.run_name or "",
            market=market_of(run),
            ended=datetime.fromtimestamp(at / 1000, UTC),
            finished=info.status == "FINISHED",
            running=info.status == "RUNNING",
            deleted=info.lifecycle_stage == "deleted",
            keep=KEEP in tags,
            uri=info.artifact_uri,
            files=(*digests_of(tags), *digests_of(tags, MLFLOW_FILES)),
        )


@dataclass(frozen=True)
class OldFlow:
    """The runs to delete of an old flow run `top`, parents first; `fleets`: the remaining fleets that lose members."""

    top: StoredRun
    runs: tuple[StoredRun, ...]
    fleets: tuple[str, ...]


def stored_runs(store: Store) -> list[StoredRun]:
    """Return all runs of the experiment, including runs marked as deleted."""
    return [StoredRun.of(run) for run in search_lazily(store, deleted=True)]


def first_nights(runs: Iterable[StoredRun], nights: int = NIGHTS) -> dict[str, date]:
    """Return the day of each market's oldest night that is kept; markets with fewer than `nights` are left out.

    With exactly `nights` there may be older runs: failed ones, and those that a killed pruning has hidden already.
    """
    days: dict[str, set[date]] = defaultdict(set)
    for run in runs:
        if run.kind == FLOW and run.finished and not run.deleted:
            days[run.market].add(run.ended.date())
    return {market: sorted(found)[-nights] for market, found in days.items() if len(found) >= nights}


def old_versions(
    store: Store, versions: Iterable["ModelVersion"], since: dict[str, date], runs: Collection[StoredRun]
) -> "list[ModelVersion]":
    """Return the versions that are neither served, nor needed as a predecessor, nor kept by a tag, nor recent.

    A version with any alias is kept, because a person may rely on it. The newest version of a model is kept too: MLflow
    would reuse its number, under which the ledger already has forecasts.
    """
    own = {run.id for run in runs if run.kind == MEMBER}
    models: dict[str, list[ModelVersion]] = defaultdict(list)
    for version in versions:
        models[version.name].append(version)
    found = []
    for name, group in models.items():
        series = series_of(name)
        if series is None or series.registered != name or series.market not in since:
            continue
        ordered = sorted(group, key=lambda v: int(v.version))
        aliases = store.client.get_registered_model(name).aliases
        stay = {str(v) for v in aliases.values()} | {str(ordered[-1].version)}
        numbers = [str(v.version) for v in ordered]
        if (served := str(aliases.get(ALIAS))) in numbers[1:]:
            stay.add(numbers[numbers.index(served) - 1])
        found += [
            version
            for version in ordered
            if str(version.version) not in stay
            and KEEP not in version.tags
            and version.run_id in own
            and datetime.fromtimestamp(version.creation_timestamp / 1000, UTC).date() < since[series.market]
        ]
    return found


def plan_runs(
    runs: Sequence[StoredRun],
    since: dict[str, date],
    needed: Collection[str],
    problem: Callable[[StoredRun], str],
) -> tuple[list[OldFlow], list[str]]:
    """Return the runs to delete by flow, and the reasons why other old runs are kept.

    Args:
        needed: ids of runs whose files belong to a registered version.
        problem: returns why a run cannot be proven to be cpb's alone, or "".
    """
    by_id = {run.id: run for run in runs}
    children: dict[str, list[StoredRun]] = defaultdict(list)
    for run in runs:
        children[run.parent].append(run)
    flows, kept = list[OldFlow](), list[str]()
    for top in runs:
        # The root of a tree is a flow, or a run whose parent was deleted.
        old = top.market in since and top.ended.date() < since[top.market]
        if not top.kind or top.parent in by_id or not old:
            continue
        tree = list(_tree(top, children))
        stays = _staying(tree, by_id, needed, problem, kept)
        if gone := tuple(run for run in tree if run.kind and run.id not in stays):
            thinned = {run.parent for run in gone if run.kind == MEMBER and not run.deleted} & stays
            flows.append(OldFlow(top, gone, tuple(sorted(thinned))))
    return flows, kept


def problem_of(store: Store, run: StoredRun) -> str:
    """Return why an old run cannot be removed, or ""."""
    folder = local_path(run.uri)  # ROOT/RUN/artifacts
    if run.files and folder is not None and not folder.parent.parent.is_dir():
        return "its artifacts are on another machine"
    foreign = foreign_file(store, run.id, run.uri, {*_OWN_FILES[run.kind], *run.files})
    return f"it holds {foreign}, which is not a file of cpb" if foreign else ""


def _staying(
    tree: Sequence[StoredRun],
    by_id: dict[str, StoredRun],
    needed: Collection[str],
    problem: Callable[[StoredRun], str],
    kept: list[str],
) -> set[str]:
    """Return the runs of an old tree to keep, with their ancestors: MLflow shows no child without its parent."""
    stays: set[str] = set()
    tagged: set[str] = set()
    for run in tree:  # parents first
        if run.keep or run.parent in tagged:
            tagged.add(run.id)
        stay = run.id in tagged or run.id in needed or not run.kind
        if not stay and (reason := problem(run)):
            kept.append(f"run {run.name} ({run.id}): {reason}")
            stay = True
        above: StoredRun | None = run
        while stay and above is not None and above.id not in stays:
            stays.add(above.id)
            above = by_id.get(above.parent)
    return stays


def _tree(top: StoredRun, children: dict[str, list[StoredRun]]) -> Iterator[StoredRun]:
    yield top
    for child in children.get(top.id, ()):
        yield from _tree(child, children)
