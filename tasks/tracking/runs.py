"""Runs: a flow is a parent, each fleet a child, each member a grandchild `ARCH/SYMBOL/IV`.

Every run has its idempotency key in the tag `cpb.key`. A finished run with the same key is reused;
unfinished runs of killed processes (`dead_runs`) are deleted and created again: no key has two live runs under one
parent.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import CpbError
from schemas.identity import SPOT, ModelId
from schemas.tuning import TrialRecord
from tasks.storage.model_folder import digests_to_log, first_damage
from tasks.storage.process_ids import ProcessId
from tasks.storage.urls import local_path
from tasks.tracking.calls import NEWEST_FIRST, search
from tasks.tracking.context import SOURCE, context_tags, git_commit
from tasks.tracking.database import exclusive
from tasks.tracking.dead_runs import reconcile
from tasks.tracking.experiment import Store
from tasks.tracking.home_store import TAKE
from tasks.tracking.metrics import logged
from tasks.tracking.store import open_store
from tasks.tracking.tags import (
    AS_OF,
    BOARD,
    COMMAND,
    COMPLETE,
    FAILED,
    FILES,
    FLEET,
    FLOW,
    KEY,
    KIND,
    MARKET,
    MEMBER,
    OPENED_AT,
    OUTCOME,
    PARENT,
    PROCESS,
    PRUNED,
    REASON,
    TRIAL,
    WARNINGS,
    board_of,
    digests_of,
    market_of,
    metric_entries,
    mlflow_text,
    param_entries,
    param_texts,
    series_tags,
    tag_entries,
    tag_texts,
)

if TYPE_CHECKING:
    from mlflow.entities import Metric, Param, Run

_BATCH_METRICS, _BATCH_PARAMS = 1000, 100  # MLflow's limits for one log_batch


@dataclass(frozen=True)
class OpenRun:
    """A parent or fleet run ready for writing; `finished`: it was already complete."""

    run_id: str
    finished: bool


@dataclass(frozen=True)
class MemberRecord:
    """A trained and judged member, or a failed member with its `reason`.

    `history` is one dict per epoch (`train_loss val_loss lr`); `metrics` are logged once; `config` is the
    whole resolved configuration, of which the fleet's run has what its members share; `params` are what identifies
    and compares the member, on its own run in any case; `folder` holds the artifacts; `tags` adds to the contract's
    tags.
    """

    key: str
    model: ModelId
    device: str
    preset: str
    data_digest: str
    as_of: str
    config: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""


def check_place(store: Store) -> None:
    """Raise `CpbError` if artifacts of new runs could not be written: before the training, not after it."""
    folder = local_path(store.artifacts)
    if folder and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise CpbError(
            f"artifacts of runs cannot be written to {folder}, which is not a folder of this machine that you can "
            f"write to; make it one, or set MLFLOW_TRACKING_URI to another store, which this home takes by `{TAKE}`",
            code="artifacts",
            field=str(folder),
        )


def start_parent(
    key: str,
    config: Mapping[str, Any],
    tags: Mapping[str, Any] | None = None,
    name: str = "train-all",
) -> OpenRun:
    """Open the flow's run: a new run, or the unfinished run with the same `key`, which is continued.

    The run's market is that of `tags`, else of `config`. Runs of dead processes are marked as killed.
    """
    store = open_store()
    reconcile(store)
    tags = {KIND: FLOW, MARKET: config.get(MARKET, SPOT), **(tags or {})}
    return _open_run(store, key, name, {SOURCE: f"cpb {tags.get(COMMAND, name)}", **tags}, config)


def start_fleet(
    parent: str,
    architecture: str,
    key: str,
    config: Mapping[str, Any] | None = None,
    tags: Mapping[str, Any] | None = None,
    name: str = "",
) -> OpenRun:
    """Open the run of one fleet under its parent run, whose market, preset and `as_of` it shares unless `tags` says
    otherwise; an unfinished run is continued."""
    store = open_store()
    flow = store.client.get_run(parent)
    shared = {name: flow.data.tags.get(name) for name in ("preset", AS_OF, SOURCE)}
    shared[MARKET] = market_of(flow)
    tags = {KIND: FLEET, "architecture": architecture, PARENT: parent, **shared, **(tags or {})}
    return _open_run(store, key, name or architecture, tags, config or {}, parent)


def log_members(fleet_run: str, records: Iterable[MemberRecord]) -> list[str]:
    """Write the members' runs (about 100 ms each on SQLite) and return their run ids in order.

    Params common to the members' configurations are written once, on the fleet's run; a member's own are those that
    differ, and its `params`. A member whose key already has a finished run under this fleet is not logged again, and
    that run's id is returned; only files damaged since are written again.

    Raises:
        CpbError: a member's folder is missing.
        DamagedError: a member's files do not match its tag `files`.
    """
    store = open_store()
    records = list(records)
    with exclusive(store.uri):  # a concurrent run of the same command finds these members
        before: dict[str, list[Run]] = {}
        for run in search(store, f"tags.`{PARENT}` = '{fleet_run}'"):
            before.setdefault(run.data.tags.get(KEY, ""), []).append(run)
        shared = _share_params(store, fleet_run, records)
        fleet = store.client.get_run(fleet_run)
        ids = [_log_one(store, fleet, record, shared, before.get(record.key, [])) for record in records]
        members = search(store, f"tags.`{PARENT}` = '{fleet_run}'")
        # After all members: the tag says of which coins and recipe the fleet has scores.
        store.client.set_tag(fleet_run, BOARD, board_of(fleet, members))
        if PRUNED in fleet.data.tags:  # its members exist again
            store.client.delete_tag(fleet_run, PRUNED)
        return ids


def log_metrics(
    run_id: str,
    metrics: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]] = (),
    tags: Mapping[str, Any] | None = None,
) -> None:
    """Add metrics to a run, such as a fleet's pooled results; None and NaN values are left out.

    Args:
        history: metrics per epoch; the epoch (`epoch`, else counted from 0) is the step, its `time` (seconds since
            1970, else now) the time.
        tags: what the metrics are of.
    """
    store = open_store()
    _log(store, run_id, metric_entries(metrics) + _history_entries(history))
    if tags:
        store.client.log_batch(run_id, tags=tag_entries(tags))


def finish(run_id: str, outcome: str = COMPLETE, tags: Mapping[str, Any] | None = None) -> None:
    """End a parent or fleet run: `complete`, `partial` (the same command continues it) or `failed`.

    Child runs that a failed run has left open end with it, as failed, for the same reason.
    """
    store, tags = open_store(), dict(tags or {})
    # Children first: a reader that sees the ended flow must find no run open below it.
    if outcome == FAILED:
        _end_open_children(store, run_id, "FAILED", tags.get(REASON, "its flow failed"))
    store.client.log_batch(run_id, tags=tag_entries({OUTCOME: outcome} | tags))
    store.client.set_terminated(run_id, "FAILED" if outcome == FAILED else "FINISHED")


def kill(run_id: str, reason: str) -> None:
    """End a run interrupted by a person or the system, and its open child runs, as KILLED.

    The same command continues it, as after `reconcile`.
    """
    store = open_store()
    _end_open_children(store, run_id, "KILLED", reason)
    store.client.set_tag(run_id, REASON, reason)
    store.client.set_terminated(run_id, "KILLED")


def _end_open_children(store: Store, run_id: str, status: str, reason: str) -> None:
    """End all open runs below a run."""
    for child in list(search(store, f"tags.`{PARENT}` = '{run_id}' and attributes.status = 'RUNNING'")):
        child_id: str = child.info.run_id
        _end_open_children(store, child_id, status, reason)
        store.client.set_tag(child_id, REASON, mlflow_text(reason))
        store.client.set_terminated(child_id, status)


def _open_run(
    store: Store, key: str, name: str, tags: Mapping[str, Any], config: Mapping[str, Any], parent: str = ""
) -> OpenRun:
    condition = f"tags.`{KEY}` = '{key}'" + (f" and tags.`{PARENT}` = '{parent}'" if parent else "")
    opened = {PROCESS: str(ProcessId.current()), OPENED_AT: datetime.now(UTC).isoformat(timespec="seconds")}
    standard = context_tags(tags.get(SOURCE) or "cpb")  # a flow's run of before names no command
    tags = {KEY: key, "git_commit": git_commit(), **opened, **tags, **standard}
    with exclusive(store.uri):
        before = search(store, condition, [NEWEST_FIRST])
        # The newest with this key; a run that another machine may be writing is left to it.
        if usable := [run for run in before if not _is_of_another_machine(run)]:
            return _continue(store, usable[0], tags)
        run = store.client.create_run(store.experiment_id, run_name=mlflow_text(name), tags=tag_texts(tags))
        _log(store, run.info.run_id, params=param_entries(param_texts(config)))
        return OpenRun(run.info.run_id, finished=False)


def _is_of_another_machine(run: "Run") -> bool:
    """Whether another machine may be writing a run: the store's lock is only local."""
    process = run.data.tags.get(PROCESS)
    return (
        run.info.status == "RUNNING" and process is not None and ProcessId.parse(process).is_alive() is None
    )


def _continue(store: Store, run: "Run", tags: Mapping[str, Any]) -> OpenRun:
    """Continue a run with the same key, which this process takes over; a complete run is left unchanged."""
    run_id = run.info.run_id
    # A partial run is finished, too, and the same command goes on with it.
    if run.info.status == "FINISHED" and run.data.tags.get(OUTCOME) == COMPLETE:
        return OpenRun(run_id, finished=True)
    store.client.log_batch(run_id, tags=tag_entries({name: tags[name] for name in (PROCESS, OPENED_AT)}))
    store.client.update_run(run_id, status="RUNNING")
    for name in (REASON, WARNINGS):  # left by the failed attempt
        if name in run.data.tags:
            store.client.delete_tag(run_id, name)
    return OpenRun(run_id, finished=False)


def _log(store: Store, run_id: str, metrics: "Sequence[Metric]" = (), params: "Sequence[Param]" = ()) -> None:
    """Write metrics and params in as few batches as MLflow's limits allow (a single batch for 50 epochs)."""
    while params or metrics:
        store.client.log_batch(run_id, metrics=metrics[:_BATCH_METRICS], params=params[:_BATCH_PARAMS])
        params, metrics = params[_BATCH_PARAMS:], metrics[_BATCH_METRICS:]


def _share_params(store: Store, fleet_run: str, records: Sequence[MemberRecord]) -> dict[str, str]:
    """Write the params common to all members to the fleet's run, and return all params of the fleet's run.

    Params never change: if the fleet's run already has a different value, a member keeps its own.
    """
    stored: dict[str, str] = dict(store.client.get_run(fleet_run).data.params)
    configs = [param_texts(r.config) for r in records if r.config]
    if not configs:
        return stored
    # Most of 40 options are the same for all members: written once instead of a thousand times.
    alike = set.intersection(*(set(config.items()) for config in configs))
    new = {name: value for name, value in sorted(alike) if name not in stored}
    _log(store, fleet_run, params=param_entries(new))
    return stored | new


def _log_one(
    store: Store, fleet: "Run", record: MemberRecord, shared: Mapping[str, str], before: list["Run"]
) -> str:
    digests = digests_to_log(record.folder, digests_of(record.tags)) if record.folder else {}
    # Found by its key: a repeated command logs nothing twice.
    if finished := _settle(store, before):
        # Intact files stay, also if the same training was repeated: its `config.json` then differs, by seconds and
        # memory, and versions are registered with the digest of the first.
        folder = local_path(finished.info.artifact_uri)
        if record.folder and folder and first_damage(folder, digests_of(finished.data.tags)):
            store.client.log_artifacts(finished.info.run_id, str(record.folder))
            store.client.set_tag(finished.info.run_id, FILES, mlflow_text(digests))
        return str(finished.info.run_id)
    run = store.client.create_run(
        store.experiment_id,
        run_name=mlflow_text(str(record.model)),
        tags=_member_tags(fleet, record, digests),
    )
    run_id: str = run.info.run_id
    if record.folder:
        store.client.log_artifacts(run_id, str(record.folder))
    texts = {name: value for name, value in param_texts(record.config).items() if shared.get(name) != value}
    texts |= param_texts(record.params)
    metrics = metric_entries(logged(record.metrics)) + _history_entries(record.history)
    _log(store, run_id, metrics, param_entries(texts))
    store.client.set_terminated(run_id, "FAILED" if record.reason else "FINISHED")
    return run_id


def _member_tags(fleet: "Run", record: MemberRecord, digests: Mapping[str, str]) -> dict[str, str]:
    tags = {
        KEY: record.key,
        KIND: MEMBER,
        PARENT: fleet.info.run_id,
        "fleet": fleet.info.run_id,
        "architecture": record.model.architecture,
        **series_tags(record.model.series),
        "device": record.device,
        "preset": record.preset,
        "recipe": record.model.recipe,
        "git_commit": git_commit(),
        **context_tags(fleet.data.tags.get(SOURCE, "cpb")),
        "data_digest": record.data_digest,
        "as_of": record.as_of,
        **record.tags,
        FILES: dict(digests) or None,
        REASON: record.reason or None,
    }
    return tag_texts(tags)


def _history_entries(history: Sequence[Mapping[str, Any]]) -> "list[Metric]":
    now = int(time.time() * 1000)
    entries = []
    for step, row in enumerate(history):
        epoch = int(row.get("epoch", step))
        at = int(1000 * row["time"]) if "time" in row else now
        values = {k: v for k, v in row.items() if k not in ("epoch", "time")}
        entries += metric_entries(values, step=epoch, timestamp=at)
    return entries


def _settle(store: Store, runs: Sequence["Run"]) -> "Run | None":
    """Keep the newest finished run, and delete the others, left by killed processes."""
    finished = [run for run in runs if run.info.status == "FINISHED"]
    newest = max(finished, key=lambda run: run.info.start_time, default=None)
    for run in runs:
        if run is not newest:
            store.client.delete_run(run.info.run_id)
    return newest


def log_trials(parent: str, trials: Sequence[TrialRecord]) -> None:
    """Write a run for each trial without a run."""
    store = open_store()
    condition = f"tags.`{PARENT}` = '{parent}' and tags.`{KIND}` = '{TRIAL}'"
    logged_names = {run.info.run_name for run in search(store, condition)} if trials else set()
    for trial in trials:
        name = f"trial-{trial.number:05d}"
        if name in logged_names:
            continue
        tags = {KIND: TRIAL, PARENT: parent, OUTCOME: trial.state, **context_tags("cpb tune")}
        run = store.client.create_run(store.experiment_id, run_name=name, tags=tag_texts(tags))
        metrics = metric_entries(trial.metrics)
        for epoch, loss in trial.losses:
            metrics += metric_entries({"val_loss": loss}, step=epoch)
        store.client.log_batch(
            run.info.run_id, metrics=metrics, params=param_entries(param_texts(trial.params))
        )
        store.client.set_terminated(run.info.run_id, "FAILED" if trial.state == "failed" else "FINISHED")
