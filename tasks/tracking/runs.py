"""Runs: a flow is a parent, each fleet a child, each member a grandchild `ARCH/SYMBOL/IV`.

Every run has its idempotency key in the tag `cpb.key`. A finished run with the same key is reused; unfinished runs of
killed processes are deleted and created again: no key has two live runs under one parent.
"""

import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import CpbError
from schemas.identity import SPOT
from tasks.storage.processes import ProcessId
from tasks.tracking.artifacts import digests_to_log, mend_files
from tasks.tracking.connection import Store, alone, search
from tasks.tracking.mlflow_store import open_store, reconcile
from tasks.tracking.model import FIGURES, delete_models, open_model
from tasks.tracking.records import (
    MemberRecord,
    OpenRun,
    logged,
    metric_entries,
    param_entries,
    param_texts,
    tag_entries,
    tag_texts,
    text,
)
from tasks.tracking.tags import (
    FILES,
    FLEET,
    FLOW,
    KEY,
    KIND,
    MARKET,
    MEMBER,
    OUTCOME,
    PARENT,
    PROCESS,
    PRUNED,
    REASON,
    WARNINGS,
    digests_of,
    market_of,
    series_tags,
)

if TYPE_CHECKING:
    from mlflow.entities import Metric, Param, Run


COMPLETE, PARTIAL, FAILED = "complete", "partial", "failed"
"""Outcomes of a flow or fleet; `partial` keeps good results, and the same command continues it."""

_BATCH_METRICS, _BATCH_PARAMS = 1000, 100  # MLflow's limits for one log_batch


def start_parent(
    key: str,
    config: Mapping[str, Any],
    tags: Mapping[str, Any] | None = None,
    name: str = "train-all",
    store: Store | None = None,
) -> OpenRun:
    """Open the flow's run: a new run, or the unfinished run with the same `key`, which is continued.

    The run's market is that of `tags`, else of `config`. Runs of dead processes are marked as killed.
    """
    store = store or open_store()
    reconcile(store)
    own = {KIND: FLOW, MARKET: config.get(MARKET, SPOT), **(tags or {})}
    return _open_run(store, key, name, own, config)


def start_fleet(
    parent: str,
    architecture: str,
    key: str,
    config: Mapping[str, Any] | None = None,
    tags: Mapping[str, Any] | None = None,
    name: str = "",
    store: Store | None = None,
) -> OpenRun:
    """Open the run of one fleet under its parent run, whose market it shares; an unfinished run is continued."""
    store = store or open_store()
    market = market_of(store.client.get_run(parent))
    own = {KIND: FLEET, "architecture": architecture, PARENT: parent, MARKET: market, **(tags or {})}
    return _open_run(store, key, name or architecture, own, config or {}, parent)


def log_members(fleet_run: str, records: Iterable[MemberRecord], store: Store | None = None) -> list[str]:
    """Write the members' runs (about 100 ms each on SQLite) and return their run ids in order.

    Params common to the members' configurations are written once, on the fleet's run; a member's own params are those
    that differ. A member whose key already has a finished run under this fleet is not logged again, and that run's id
    is returned; only files damaged since are written again.

    Raises:
        CpbError: a member's folder is missing.
        DamagedError: a member's files do not match its tag `files`.
    """
    store = store or open_store()
    records = list(records)
    with alone(store):  # a concurrent run of the same command finds these members
        before = _children(store, fleet_run)
        shared = _share_params(store, fleet_run, records)
        ids = [_log_one(store, fleet_run, record, shared, before.get(record.key, [])) for record in records]
        if PRUNED in store.client.get_run(fleet_run).data.tags:  # its members exist again
            store.client.delete_tag(fleet_run, PRUNED)
        return ids


def log_metrics(
    run_id: str,
    metrics: Mapping[str, Any],
    store: Store | None = None,
    history: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Add metrics to a run, such as a fleet's pooled results; None and NaN values are left out.

    Args:
        history: metrics per epoch; the epoch (`epoch`, else counted from 0) is the step.
    """
    _log(store or open_store(), run_id, metric_entries(metrics) + _history_entries(history))


def finish(
    run_id: str, outcome: str = COMPLETE, tags: Mapping[str, Any] | None = None, store: Store | None = None
) -> None:
    """End a parent or fleet run: `complete`, `partial` (the same command continues it) or `failed`."""
    client = (store or open_store()).client
    client.log_batch(run_id, tags=tag_entries({OUTCOME: outcome} | dict(tags or {})))
    client.set_terminated(run_id, "FAILED" if outcome == FAILED else "FINISHED")


def kill(run_id: str, reason: str, store: Store | None = None) -> None:
    """End a run interrupted by a person or the system, and its open child runs, as KILLED.

    The same command continues it, as after `reconcile`.
    """
    store = store or open_store()
    for child in search(store, f"tags.`{PARENT}` = '{run_id}' and attributes.status = 'RUNNING'"):
        kill(child.info.run_id, reason, store)
    store.client.set_tag(run_id, REASON, reason)
    store.client.set_terminated(run_id, "KILLED")


def _open_run(
    store: Store, key: str, name: str, tags: Mapping[str, Any], config: Mapping[str, Any], parent: str = ""
) -> OpenRun:
    condition = f"tags.`{KEY}` = '{_quoted(key)}'" + (f" and tags.`{PARENT}` = '{parent}'" if parent else "")
    tags = {KEY: key, "git_commit": git_commit(), PROCESS: str(ProcessId.current()), **tags}
    with alone(store):
        before = search(store, condition, ["attributes.start_time DESC"])
        if usable := [run for run in before if not _is_of_another_machine(run)]:
            return _continue(store, usable[0], tags)
        run = store.client.create_run(store.experiment_id, run_name=text(name), tags=tag_texts(tags))
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
    if run.info.status == "FINISHED" and run.data.tags.get(OUTCOME) == COMPLETE:
        return OpenRun(run_id, finished=True)
    store.client.log_batch(run_id, tags=tag_entries({PROCESS: tags[PROCESS]}))
    store.client.update_run(run_id, status="RUNNING")
    for name in (
        REASON,
        WARNINGS,
    ):  # left by the failed attempt; this attempt may succeed
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
    alike = set.intersection(*(set(config.items()) for config in configs))
    new = {name: value for name, value in sorted(alike) if name not in stored}
    _log(store, fleet_run, params=param_entries(new))
    return stored | new


def _log_one(
    store: Store, fleet_run: str, record: MemberRecord, shared: Mapping[str, str], before: list["Run"]
) -> str:
    digests = digests_to_log(record.folder, digests_of(record.tags)) if record.folder else {}
    known = _settle(store, before)
    if known:
        finished = next(run for run in before if run.info.run_id == known)
        if record.folder and mend_files(store, finished, record.folder):
            store.client.set_tag(known, FILES, text(digests))
        return known
    run = store.client.create_run(
        store.experiment_id, run_name=text(str(record.model)), tags=_member_tags(fleet_run, record, digests)
    )
    run_id = run.info.run_id
    if record.folder:
        store.client.log_artifacts(run_id, str(record.folder))
    model = "" if record.reason else open_model(store, run_id, record)
    _log_values(store, run_id, record, shared, model)
    if model:
        store.client.finalize_logged_model(model, "READY")
    store.client.set_terminated(run_id, "FAILED" if record.reason else "FINISHED")
    return run_id


def _member_tags(fleet_run: str, record: MemberRecord, digests: Mapping[str, str]) -> dict[str, str]:
    tags = {
        KEY: record.key,
        KIND: MEMBER,
        PARENT: fleet_run,
        "fleet": fleet_run,
        "architecture": record.model.architecture,
        **series_tags(record.model.series),
        "device": record.device,
        "preset": record.preset,
        "git_commit": git_commit(),
        "data_digest": record.data_digest,
        "as_of": record.as_of,
        **record.tags,
        FILES: dict(digests) or None,
        REASON: record.reason or None,
    }
    return tag_texts(tags)


def _log_values(
    store: Store, run_id: str, record: MemberRecord, shared: Mapping[str, str], model: str
) -> None:
    """Write params and metrics, of which the run's logged model gets `FIGURES` too; `model` is its id, or ""."""
    texts = {name: value for name, value in param_texts(record.config).items() if shared.get(name) != value}
    scores = logged(record.metrics)
    shown = {name: scores.pop(name) for name in FIGURES if model and name in scores}
    metrics = metric_entries(shown, model=model) + metric_entries(scores) + _history_entries(record.history)
    _log(store, run_id, metrics, param_entries(texts))


def _history_entries(history: Sequence[Mapping[str, Any]]) -> "list[Metric]":
    now = int(time.time() * 1000)
    entries = []
    for step, row in enumerate(history):
        epoch = int(row.get("epoch", step))
        entries += metric_entries({k: v for k, v in row.items() if k != "epoch"}, step=epoch, timestamp=now)
    return entries


def _children(store: Store, parent: str) -> dict[str, list["Run"]]:
    found: dict[str, list[Run]] = {}
    for run in search(store, f"tags.`{PARENT}` = '{parent}'"):
        found.setdefault(run.data.tags.get(KEY, ""), []).append(run)
    return found


def _settle(store: Store, runs: Sequence["Run"]) -> str | None:
    """Keep the newest finished run and delete the others, left by killed processes."""
    finished = [r for r in runs if r.info.status == "FINISHED"]
    kept = max(finished, key=lambda r: r.info.start_time).info.run_id if finished else None
    unfinished = [r.info.run_id for r in runs if r.info.run_id != kept]
    delete_models(store, unfinished)
    for run_id in unfinished:
        store.client.delete_run(run_id)
    return kept


def _quoted(value: str) -> str:
    if "'" in value or "\\" in value:
        raise CpbError(f"run key {value!r} may not contain quotes or backslashes", code="run-key")
    return value


@cache
def git_commit() -> str:
    """Return the commit of the code in use, `-dirty` if changed, `unknown` outside a git checkout."""
    # No tag matches the excluded pattern, so that the whole commit is its name.
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.check_output(
            command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, text=True, timeout=10
        ).strip()
    except (OSError, subprocess.SubprocessError):  # no git, or no checkout: an installed package
        return "unknown"
