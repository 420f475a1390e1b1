"""Runs: a flow is a parent, each fleet a child, each member a grandchild `ARCH/SYMBOL/IV`.

Every run carries its idempotency key in the tag `cpb.key`. A finished run of that key is reused; what a
killed process left behind under it is deleted and made anew: no key has two live runs under one parent.
"""

import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import CpbError
from tasks.tracking.commit import git_commit
from tasks.tracking.entries import dataset_input, metric_entries, param_entries, text
from tasks.tracking.store import Store, alone, open_store

if TYPE_CHECKING:
    from mlflow.entities import Run

KEY, KIND, OUTCOME, PARENT = "cpb.key", "cpb.kind", "outcome", "mlflow.parentRunId"
REASON = "reason"
COMPLETE, PARTIAL, FAILED = "complete", "partial", "failed"
"""How a flow or fleet ended; `partial` keeps good results, and the same command continues it."""

_BATCH_METRICS, _BATCH_PARAMS = 1000, 100  # MLflow's limits for one log_batch
_PAGE = 1000


@dataclass(frozen=True)
class OpenRun:
    """A parent or fleet run ready to be written to; `finished` says that it was already complete."""

    run_id: str
    finished: bool


@dataclass(frozen=True)
class Dataset:
    """What a member learned from: the parquet file, its rows and its digest."""

    name: str
    digest: str
    path: str
    rows: int
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class MemberRecord:
    """One trained and judged member, or one that failed (then `reason` says why).

    `history` is one dict per epoch (`train_loss val_loss lr`); `metrics` are logged once; `config` is the
    whole resolved configuration; `folder` holds the artifacts; `tags` adds to the contract's ones.
    """

    key: str
    architecture: str
    symbol: str
    timeframe: str
    device: str
    preset: str
    data_digest: str
    as_of: str
    config: dict[str, Any] = field(default_factory=dict)
    history: Sequence[dict[str, Any]] = ()
    metrics: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    dataset: Dataset | None = None
    tags: dict[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def name(self) -> str:
        """The run's name, `ARCH/SYMBOL/IV`."""
        return f"{self.architecture}/{self.symbol}/{self.timeframe}"


def start_parent(
    key: str,
    config: dict[str, Any],
    tags: dict[str, Any] | None = None,
    name: str = "train-all",
    store: Store | None = None,
) -> OpenRun:
    """Open the flow's run: a new one, or the unfinished one of the same `key`, which is continued."""
    return _open_run(store or open_store(), key, name, {KIND: "flow", **(tags or {})}, config)


def start_fleet(
    parent: str,
    architecture: str,
    key: str,
    config: dict[str, Any] | None = None,
    tags: dict[str, Any] | None = None,
    name: str = "",
    store: Store | None = None,
) -> OpenRun:
    """Open the run of one fleet under its parent run; continued like the parent where unfinished."""
    own = {KIND: "fleet", "architecture": architecture, PARENT: parent, "git_commit": git_commit()}
    return _open_run(
        store or open_store(), key, name or architecture, own | (tags or {}), config or {}, parent
    )


def log_member(fleet_run: str, record: MemberRecord, store: Store | None = None) -> str:
    """Write one member's whole run under its fleet and return the run id; see `log_members`."""
    return log_members(fleet_run, [record], store)[0]


def log_members(fleet_run: str, records: Iterable[MemberRecord], store: Store | None = None) -> list[str]:
    """Write the members' runs (about 50 ms each on SQLite) and return their run ids in order.

    A member whose key already has a finished run under this fleet is left as it is, and that id returned.
    """
    store = store or open_store()
    with alone(store):  # of two runs of the same command, the second finds what the first has logged
        before = _children(store, fleet_run)
        return [_log_one(store, fleet_run, record, before.get(record.key, [])) for record in records]


def log_metrics(run_id: str, metrics: dict[str, Any], store: Store | None = None) -> None:
    """Add metrics to a run, as for a fleet's pooled results; None and NaN values are left out."""
    (store or open_store()).client.log_batch(run_id, metrics=metric_entries(metrics))


def finish(
    run_id: str, outcome: str = COMPLETE, tags: dict[str, Any] | None = None, store: Store | None = None
) -> None:
    """End a parent or fleet run: `complete`, `partial` (the same command continues it) or `failed`."""
    client = (store or open_store()).client
    client.log_batch(run_id, tags=_tag_entries({OUTCOME: outcome} | (tags or {})))
    client.set_terminated(run_id, "FAILED" if outcome == FAILED else "FINISHED")


def find_by_key(key: str, store: Store | None = None) -> str | None:
    """Return the finished run of this key, or None after deleting what an interrupted one left behind."""
    store = store or open_store()
    return _settle(store, search(store, f"tags.`{KEY}` = '{_quoted(key)}'"))


def search(store: Store, condition: str = "", order_by: Sequence[str] = ()) -> list["Run"]:
    """Return all live runs of the experiment that satisfy an MLflow filter, following its pages."""
    found: list[Run] = []
    token = None
    while True:
        page = store.client.search_runs(
            [store.experiment_id], condition, max_results=_PAGE, order_by=list(order_by), page_token=token
        )
        found += page
        token = page.token
        if not token:
            return found


def _open_run(
    store: Store, key: str, name: str, tags: dict[str, Any], config: dict[str, Any], parent: str = ""
) -> OpenRun:
    with alone(store):
        return _found_or_made(store, key, name, tags, config, parent)


def _found_or_made(
    store: Store, key: str, name: str, tags: dict[str, Any], config: dict[str, Any], parent: str
) -> OpenRun:
    condition = f"tags.`{KEY}` = '{_quoted(key)}'" + (f" and tags.`{PARENT}` = '{parent}'" if parent else "")
    found = search(store, condition, ["attributes.start_time DESC"])
    if found:
        run = found[0]
        if run.info.status == "FINISHED" and run.data.tags.get(OUTCOME) == COMPLETE:
            return OpenRun(run.info.run_id, finished=True)
        store.client.update_run(run.info.run_id, status="RUNNING")
        if REASON in run.data.tags:  # why it failed before; it may end well now
            store.client.delete_tag(run.info.run_id, REASON)
        return OpenRun(run.info.run_id, finished=False)
    return OpenRun(
        _create(store, name, {KEY: key, "git_commit": git_commit(), **tags}, config), finished=False
    )


def _create(store: Store, name: str, tags: dict[str, Any], config: dict[str, Any]) -> str:
    run = store.client.create_run(
        store.experiment_id, run_name=name, tags={k: text(v) for k, v in tags.items() if v is not None}
    )
    params = param_entries(config)
    for i in range(0, len(params), _BATCH_PARAMS):
        store.client.log_batch(run.info.run_id, params=params[i : i + _BATCH_PARAMS])
    return run.info.run_id


def _log_one(store: Store, fleet_run: str, record: MemberRecord, before: list["Run"]) -> str:
    known = _settle(store, before)
    if known:
        return known
    run = store.client.create_run(
        store.experiment_id, run_name=record.name, tags=_member_tags(fleet_run, record)
    )
    run_id = run.info.run_id
    if record.folder:
        keep_files(store, run, record.folder)
    if record.dataset:
        _log_dataset(store, run_id, record.dataset)
    _log_values(store, run_id, record)
    store.client.set_terminated(run_id, "FAILED" if record.reason else "FINISHED")
    return run_id


def _log_dataset(store: Store, run_id: str, dataset: Dataset) -> None:
    from mlflow.exceptions import MlflowException

    try:
        store.client.log_inputs(run_id, datasets=[dataset_input(dataset)])
    except MlflowException as error:
        if "constraint" not in str(error):
            raise
        # MLflow looks, then inserts: of two processes with the same dataset one collides, and finds it now.
        store.client.log_inputs(run_id, datasets=[dataset_input(dataset)])


def _member_tags(fleet_run: str, record: MemberRecord) -> dict[str, str]:
    tags = {
        KEY: record.key,
        KIND: "member",
        PARENT: fleet_run,
        "fleet": fleet_run,
        "architecture": record.architecture,
        "symbol": record.symbol,
        "timeframe": record.timeframe,
        "device": record.device,
        "preset": record.preset,
        "git_commit": git_commit(),
        "data_digest": record.data_digest,
        "as_of": record.as_of,
        **record.tags,
    }
    if record.reason:
        tags[REASON] = record.reason
    return {name: text(value) for name, value in tags.items() if value is not None}


def _log_values(store: Store, run_id: str, record: MemberRecord) -> None:
    """Write params and metrics in as few batches as MLflow's limits allow (one, for 50 epochs)."""
    params = param_entries(record.config)
    metrics = metric_entries(record.metrics)
    now = int(time.time() * 1000)
    for step, row in enumerate(record.history):
        epoch = int(row.get("epoch", step))
        metrics += metric_entries({k: v for k, v in row.items() if k != "epoch"}, step=epoch, timestamp=now)
    while params or metrics:
        store.client.log_batch(run_id, metrics=metrics[:_BATCH_METRICS], params=params[:_BATCH_PARAMS])
        params, metrics = params[_BATCH_PARAMS:], metrics[_BATCH_METRICS:]


def keep_files(store: Store, run: "Run", folder: Path) -> None:
    """Copy a folder's files into the run's artifacts."""
    if not folder.is_dir():
        raise CpbError(f"model folder {folder} of run {run.info.run_name} does not exist; train it again")
    target = local_artifacts(run.info.artifact_uri)
    if target is None:  # a tracking server with its own artifact store
        store.client.log_artifacts(run.info.run_id, str(folder))
        return
    shutil.copytree(folder, target, dirs_exist_ok=True)


def local_artifacts(artifact_uri: str) -> Path | None:
    """Return the folder of a run's artifacts where they lie on this machine, else None."""
    from mlflow.utils.file_utils import local_file_uri_to_path
    from mlflow.utils.uri import is_local_uri

    return Path(local_file_uri_to_path(artifact_uri)) if is_local_uri(artifact_uri) else None


def _children(store: Store, parent: str) -> dict[str, list["Run"]]:
    found: dict[str, list[Run]] = {}
    for run in search(store, f"tags.`{PARENT}` = '{parent}'"):
        found.setdefault(run.data.tags.get(KEY, ""), []).append(run)
    return found


def _settle(store: Store, runs: list["Run"]) -> str | None:
    finished = [r for r in runs if r.info.status == "FINISHED"]
    keep = max(finished, key=lambda r: r.info.start_time).info.run_id if finished else None
    for run in runs:
        if run.info.run_id != keep:
            store.client.delete_run(run.info.run_id)
    return keep


def _tag_entries(tags: dict[str, Any]) -> list[Any]:
    from mlflow.entities import RunTag

    return [RunTag(name, text(value)) for name, value in tags.items() if value is not None]


def _quoted(value: str) -> str:
    if "'" in value or "\\" in value:
        raise CpbError(f"run key {value!r} may not contain quotes or backslashes")
    return value
