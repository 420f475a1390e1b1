"""Runs: a flow is a parent, each fleet a child, each member a grandchild `ARCH/SYMBOL/IV`.

A flow is called `train-all · 20 coins · 15m 1h · default · 2025-06-06`, a fleet `har · 20 coins · 1h · default ·
2025-06-06`. Every run has its idempotency key in the tag `cpb.key`. A finished run with the same key is reused;
unfinished runs of killed processes are deleted and created again: no key has two live runs under one parent.

Every text stored in MLflow passes `text`, which removes user names, passwords and tokens from URLs.
"""

import hashlib
import json
import math
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import CpbError, DamagedError
from schemas.handover import SeriesRecord
from schemas.identity import SIM, SPOT, ModelId, coins_label
from schemas.run import RunSpec
from schemas.tuning import TrialRecord
from tasks.storage.files import local_path, without_credentials
from tasks.storage.locks import ProcessId
from tasks.storage.model_folder import file_digests
from tasks.tracking.store import (
    CANDLES_UNTIL,
    COINS,
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
    REAL,
    REASON,
    SEED,
    SIMULATED,
    SOURCE_KIND,
    TIMEFRAMES,
    TRIAL,
    WARNINGS,
    Store,
    damaged,
    digests_of,
    exclusive,
    market_of,
    open_store,
    reconcile,
    search,
    series_tags,
)

if TYPE_CHECKING:
    from mlflow.entities import Metric, Param, Run, RunTag

_CONTRACT = (
    "test_crps", "test_crps_ratio", "test_mae_ratio", "test_directional_accuracy", "test_coverage_80", "windows_per_s",
    "epochs_run", "gpu_mem_allocated_peak_mb", "gpu_mem_reserved_peak_mb", "gpu_util_mean", "rss_peak_mb",
)  # fmt: skip
_READ = (
    "test_crps_ratio_low", "test_crps_ratio_high", "test_p", "test_p_holm", "test_n", "test_coverage_90",
    "validation_crps_ratio",
)  # fmt: skip
"""Metrics of members other than champions that leaderboard, the page's lists, model card and gate read."""
LOGGED = frozenset((*_CONTRACT, *_READ, *(name.replace("crps", "rps") for name in (*_CONTRACT, *_READ))))
"""Metrics of a member's run in MLflow: those of the contract, and those read by lists and gates.

A metric of a run costs SQLite 380 bytes of rows and indexes (six of them), and a night over the whole exchange has
thousands of members. All other metrics are beside the model, in `metrics.json` and `config.json`.
"""
_CLASSIFIER = "test_accuracy"
"""A metric that only classifiers have; there are few classifiers, so all their metrics are logged."""
_TEXT_LIMIT = 6000  # MLflow's limit for a param; a tag may have 8000
SEPARATOR = " · "
COMPLETE, PARTIAL, FAILED = "complete", "partial", "failed"
"""Outcomes of a flow or fleet; `partial` keeps good results, and the same command continues it."""
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
    whole resolved configuration; `folder` holds the artifacts; `tags` adds to the contract's tags.
    """

    key: str
    model: ModelId
    device: str
    preset: str
    data_digest: str
    as_of: str
    config: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""


def logged(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a member that are logged in MLflow."""
    if _CLASSIFIER in metrics:
        return dict(metrics)
    return {name: value for name, value in metrics.items() if name in LOGGED}


def text(value: Any) -> str:
    """Return a value as MLflow text, JSON unless it is a text, without credentials in URLs.

    A truncated text ends with its length and digest.
    """
    out = without_credentials(value if isinstance(value, str) else json.dumps(value, default=str))
    if len(out) <= _TEXT_LIMIT:
        return out
    note = f"… [{len(out)} chars, sha256 {hashlib.sha256(out.encode()).hexdigest()[:12]}]"
    return out[: _TEXT_LIMIT - len(note)] + note


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one level, `{"optimizer": {"lr": 1}}` -> `{"optimizer.lr": 1}`; lists are kept."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def param_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the flattened configuration as MLflow param texts."""
    return {name: text(value) for name, value in flatten(config).items()}


def param_entries(texts: Mapping[str, str]) -> list["Param"]:
    """Return texts as MLflow params."""
    from mlflow.entities import Param

    return [Param(name, value) for name, value in texts.items()]


def tag_texts(tags: Mapping[str, Any]) -> dict[str, str]:
    """Return tags as MLflow texts; None values are left out."""
    return {name: text(value) for name, value in tags.items() if value is not None}


def tag_entries(tags: Mapping[str, Any]) -> list["RunTag"]:
    """Return tags as MLflow run tags."""
    from mlflow.entities import RunTag

    return [RunTag(name, value) for name, value in tag_texts(tags).items()]


def metric_entries(values: Mapping[str, Any], step: int = 0, timestamp: int | None = None) -> list["Metric"]:
    """Return the numbers as MLflow metrics; None, NaN, infinite and non-numeric values are left out."""
    from mlflow.entities import Metric

    stamp = timestamp or int(time.time() * 1000)
    numbers = {n: float(v) for n, v in values.items() if isinstance(v, Real) and math.isfinite(v)}
    return [Metric(name, value, stamp, step) for name, value in numbers.items()]


def run_name(what: str, spec: RunSpec, records: Sequence[SeriesRecord]) -> str:
    """Return the name of a flow's run (`what`: its command) or a fleet's (its architecture) on these series."""
    coins = coins_label(record.series.symbol for record in records)
    return SEPARATOR.join((what, coins, _timeframes(records), spec.preset, _data_end(spec, records)))


def _data_end(spec: RunSpec, records: Iterable[SeriesRecord]) -> str:
    """Return the day (UTC) before which the data ends: `--as-of`, with its time unless midnight, else the day of the
    newest candle.
    """
    as_of = spec.scope.as_of
    if as_of is None:
        return f"{datetime.fromtimestamp(max(r.last_us for r in records) / 1e6, UTC):%Y-%m-%d}"
    return f"{as_of:%Y-%m-%d}" if as_of.time() == as_of.time().min else f"{as_of:%Y-%m-%dT%H:%M}"


def scope_tags(spec: RunSpec, records: Sequence[SeriesRecord]) -> dict[str, str]:
    """Return the tags of a flow's or a fleet's run on these series."""
    return {
        COINS: coins_label(record.series.symbol for record in records),
        TIMEFRAMES: _timeframes(records),
        CANDLES_UNTIL: _data_end(spec, records),
        **source_tags(spec),
    }


def source_tags(spec: RunSpec) -> dict[str, str]:
    """Return the tags that members also have, in addition to their series' tags."""
    return {SOURCE_KIND: SIMULATED if spec.market == SIM else REAL, SEED: str(spec.seed)}


def _timeframes(records: Iterable[SeriesRecord]) -> str:
    found = {record.series.timeframe: record.series.seconds for record in records}
    return " ".join(sorted(found, key=found.__getitem__))


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
    with exclusive(store.uri):  # a concurrent run of the same command finds these members
        before: dict[str, list[Run]] = {}
        for run in search(store, f"tags.`{PARENT}` = '{fleet_run}'"):
            before.setdefault(run.data.tags.get(KEY, ""), []).append(run)
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
    if "'" in key or "\\" in key:
        raise CpbError(f"run key {key!r} may not contain quotes or backslashes", code="run-key")
    condition = f"tags.`{KEY}` = '{key}'" + (f" and tags.`{PARENT}` = '{parent}'" if parent else "")
    tags = {KEY: key, "git_commit": git_commit(), PROCESS: str(ProcessId.current()), **tags}
    with exclusive(store.uri):
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
    texts = {name: value for name, value in param_texts(record.config).items() if shared.get(name) != value}
    metrics = metric_entries(logged(record.metrics)) + _history_entries(record.history)
    _log(store, run_id, metrics, param_entries(texts))
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


def _history_entries(history: Sequence[Mapping[str, Any]]) -> "list[Metric]":
    now = int(time.time() * 1000)
    entries = []
    for step, row in enumerate(history):
        epoch = int(row.get("epoch", step))
        entries += metric_entries({k: v for k, v in row.items() if k != "epoch"}, step=epoch, timestamp=now)
    return entries


def _settle(store: Store, runs: Sequence["Run"]) -> str | None:
    """Keep the newest finished run and delete the others, left by killed processes."""
    finished = [r for r in runs if r.info.status == "FINISHED"]
    kept = max(finished, key=lambda r: r.info.start_time).info.run_id if finished else None
    unfinished = [r.info.run_id for r in runs if r.info.run_id != kept]
    for run_id in unfinished:
        store.client.delete_run(run_id)
    return kept


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


def digests_to_log(folder: Path, expected: "Mapping[str, str]") -> dict[str, str]:
    """Return the sha256 of each file of a model folder before it is logged.

    Args:
        expected: digests recorded when the files were written, which the files must match.

    Raises:
        CpbError: the folder is missing.
        DamagedError: a file does not match its recorded digest.
    """
    if not folder.is_dir():
        raise CpbError(
            f"the model folder {folder} does not exist; run the same command again to train it",
            code="no-model",
        )
    found = file_digests(folder)
    changed = [name for name, digest in expected.items() if found.get(name) != digest]
    if changed:
        raise DamagedError(
            f"{folder / changed[0]} is not the file that was trained (its sha256 differs); "
            f"remove {folder.parent} and run the same command again",
            field=str(folder / changed[0]),
        )
    return found


def mend_files(store: Store, run: "Run", folder: Path) -> bool:
    """Copy the files of a finished run again if any of them is not the file that its tag `files` records.

    Intact files stay, also if the same training was repeated: its `config.json` then differs, by seconds and memory,
    and versions are registered with the digest of the first.

    Args:
        folder: the model's folder.

    Returns:
        Whether the files were copied.
    """
    target = local_path(run.info.artifact_uri)
    if target is None or not damaged(target, digests_of(run.data.tags)):
        return False
    store.client.log_artifacts(run.info.run_id, str(folder))
    return True


def log_trials(parent: str, trials: Sequence[TrialRecord], store: Store | None = None) -> None:
    """Write a run for each trial without a run."""
    store = store or open_store()
    condition = f"tags.`{PARENT}` = '{parent}' and tags.`{KIND}` = '{TRIAL}'"
    known = {run.info.run_name for run in search(store, condition)} if trials else set()
    for trial in trials:
        name = f"trial-{trial.number:05d}"
        if name in known:
            continue
        tags = {KIND: TRIAL, PARENT: parent, OUTCOME: trial.state}
        run = store.client.create_run(store.experiment_id, run_name=name, tags=tag_texts(tags))
        metrics = metric_entries(trial.metrics)
        for epoch, loss in trial.losses:
            metrics += metric_entries({"val_loss": loss}, step=epoch)
        store.client.log_batch(
            run.info.run_id, metrics=metrics, params=param_entries(param_texts(trial.params))
        )
        store.client.set_terminated(run.info.run_id, "FAILED" if trial.state == "failed" else "FINISHED")
