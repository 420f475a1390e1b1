"""A judged fleet in MLflow: its run, the runs of its members, and what they hold."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import cpbmodels
from cpbmodels.fleet.config import CONFIG
from schemas.chances import OUTCOMES
from schemas.failure import Failure, reasons
from schemas.fleets import base_of
from schemas.handover import FleetJudgement, FleetPlan, Judgement, ShardJob, ShardResult, TrainedMember
from schemas.identity import ModelId
from schemas.run import RunSpec
from tasks.judging.fleet import FleetScore
from tasks.judging.member import P_OF
from tasks.judging.pool import PoolScore
from tasks.storage.model_folder import METRICS, read_config
from tasks.storage.recipes import options_read
from tasks.storage.sealed import sealed_files
from tasks.storage.urls import public_url
from tasks.tracking.metrics import SKILL, with_system
from tasks.tracking.runs import MemberRecord, finish, log_members, log_metrics, start_fleet
from tasks.tracking.tags import (
    COMPLETE,
    FAILED,
    FILES,
    NEWEST,
    PARTIAL,
    REASON,
    run_name,
    scope_tags,
    source_tags,
)
from tasks.training.plan import job_key, member_seed
from tasks.training.shard import member_folder, shard_folder

_LOGGING = threading.Lock()
"""Fleets are logged one at a time: SQLite has a single writer, and a fleet's runs stay adjacent."""

_OPTIONS = ("lr", "batch_size", "epochs", "hidden_dim", "n_layers", "location_share", "mixed_precision")
"""Options that people compare models by."""


def log_fleet(
    spec: RunSpec,
    parent: str,
    fleet: FleetPlan,
    results: Sequence[ShardResult],
    score: FleetScore,
    earlier: Sequence[Failure] = (),
) -> FleetJudgement:
    """Log a judged fleet under the flow's run `parent`, one fleet at a time; return the judgements with their runs.

    Args:
        results: of the fleet's shards, in their order.
        earlier: failures of series before any fleet was trained: each is a failed member of the fleet.
    """
    job = fleet.shards[0]  # the shards differ only in their members
    failures = [
        *(_as_member(spec, fleet, f) for f in earlier if _is_lacked(spec, fleet, f)),
        *(failure for result in results for failure in result.failures),
        *score.failures,
    ]
    as_of = spec.scope.as_of.isoformat() if spec.scope.as_of else NEWEST
    # Without its password: a source may be a URL with one, and MLflow's pages are read by others.
    tags = {"source": public_url(spec.source) if spec.source else "Binance Vision"} | source_tags(spec)
    scope = scope_tags(spec, [member.features for member in fleet.members])
    trained = [
        (member, member_folder(shard_folder(spec.scope.root, shard), member.name), shard)
        for shard, result in zip(fleet.shards, results, strict=True)
        for member in result.members
        if member.name in score.members
    ]
    good = [_record(shard, member, folder, score, as_of, tags) for member, folder, shard in trained]
    failed = [_failed(fleet, failure, as_of, tags) for failure in failures]
    with _LOGGING:
        run = start_fleet(
            parent,
            fleet.architecture,
            # The same fleet of the same flow is the same run, whichever process logs it.
            f"{parent}/{fleet.key}",
            job.model_dump(mode="json", exclude={"members"}) | {"members": [m.name for m in fleet.members]},
            {
                "preset": job.preset,
                "recipe": fleet.label,
                "fleet_key": fleet.key,
                "as_of": as_of,
                **scope,
            },
            run_name(fleet.architecture, fleet.label, scope),
        )
        # Good members first: `ids` pairs with `trained` by position, and the failed come after.
        ids = log_members(run.run_id, [*good, *failed])
        pooled = _named(job, _pooled(score.pools)) | {"train_seconds": sum(r.train_seconds for r in results)}
        # A run that was complete has its epochs: logged twice, a curve in MLflow would have two points a step.
        epochs = [] if run.finished else [*_epochs(results)]
        log_metrics(run.run_id, pooled, history=epochs)
        verdict = "; ".join(pool.verdict for pool in score.pools) or None
        outcome = (PARTIAL if failures else COMPLETE) if good else FAILED
        finish(run.run_id, outcome, {"verdict": verdict, REASON: reasons(failures) or None})
    features = {member.name: member.features for member in fleet.members}
    judgements = [
        Judgement(
            model=member.model,
            folder=folder,
            features=features[member.name],
            run_id=run_id,
            metrics=score.members[member.name].metrics,
            verdict=score.members[member.name].verdict,
            fleet=fleet.spec,
        )
        for (member, folder, _), run_id in zip(trained, ids, strict=False)
    ]
    return FleetJudgement(
        key=fleet.key,
        architecture=fleet.architecture,
        run_id=run.run_id,
        skill={pool.timeframe: _skill(pool) for pool in score.pools},
        judgements=tuple(judgements),
        failures=tuple(score.failures),
    )


def _epochs(results: Sequence[ShardResult]) -> Iterator[dict[str, float]]:
    """Yield the metrics of each epoch of each shard, with the `time` of its end, in seconds since 1970.

    A fleet's GPUs are numbered in the order of their UUIDs.
    """
    devices = [result.work.device if result.work else "" for result in results]
    gpus = sorted({*devices} - {""})
    for result, device in zip(results, devices, strict=True):
        at = result.work.begin if result.work else 0.0
        for epoch in result.epochs:
            at += epoch.get("epoch_seconds", 0.0)
            when = {"time": at} if result.work else {}
            yield with_system(epoch, gpus.index(device) if device else 0) | when


def _is_lacked(spec: RunSpec, fleet: FleetPlan, failure: Failure) -> bool:
    """Whether a failure is that of a series on which a fleet would have been trained: with `serving`, only in the
    timeframes in which its recipe serves."""
    if failure.model or not failure.series:
        return False
    timeframes = {member.model.series.timeframe for member in fleet.members}
    return not spec.serving or failure.series.timeframe in timeframes


def _as_member(spec: RunSpec, fleet: FleetPlan, failure: Failure) -> Failure:
    """Return the failure of a series as a failure of the model that this fleet would have trained on it."""
    assert failure.series is not None
    # The seed that it would have had, so that its run tomorrow is found as the same model's.
    seed = member_seed(spec.seed, fleet.architecture, failure.series)
    model = ModelId(fleet.architecture, fleet.label, failure.series, seed)
    return failure.model_copy(update={"model": model})


def _record(
    job: ShardJob, trained: TrainedMember, folder: Path, score: FleetScore, as_of: str, tags: dict[str, str]
) -> MemberRecord:
    judged, report = score.members[trained.name], trained.report
    # `True` is an `int`: switches are params, not metrics.
    measured = {k: v for k, v in report.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    config = read_config(folder / "model").model_dump(mode="json")
    # The copies in MLflow are checked against these digests, which were sealed when the files were written: but for the
    # scores, which a run of more coins may correct meanwhile in a shard that both use.
    expected = {
        name: digest
        for path, digest in sealed_files(folder).items()
        if path.startswith("model/") and (name := PurePosixPath(path).name) not in (CONFIG, METRICS)
    }
    return MemberRecord(
        key=f"{job_key(job)}/{trained.name}",
        model=trained.model,
        device=str(report.get("device", job.device)),
        preset=job.preset,
        data_digest=next(m.features.digest for m in job.members if m.name == trained.name),
        as_of=as_of,
        # What was logged elsewhere, and the digest, which differs with every figure.
        config={k: v for k, v in config.items() if k not in ("metrics", "history", "report", "config_sha256")}
        | ({"kernels": report["kernels"]} if "kernels" in report else {}),
        params=_compared(trained.model, job.preset, config, report),
        history=trained.history,
        metrics=measured | _named(job, judged.metrics),
        folder=folder / "model",
        tags={"verdict": judged.verdict, **tags, FILES: json.dumps(expected)},
    )


def _compared(
    model: ModelId, preset: str, config: Mapping[str, Any], report: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the params that identify and compare a member, of the options those that its architecture reads.

    `mixed_precision` is what was asked for; `compute_dtype`, of a member's report, is what `auto` came to.
    """
    params: dict[str, Any] = {"architecture": model.architecture, "preset": preset}
    params |= {name: config[name] for name in ("context", "features", "dtype") if name in config}
    params |= {name: report[name] for name in ("compute_dtype",) if name in report}
    return params | options_read(config, _OPTIONS)


def _failed(fleet: FleetPlan, failure: Failure, as_of: str, tags: dict[str, str]) -> MemberRecord:
    assert failure.model is not None
    # A series that failed before the plan is in no shard: its key is the fleet's own.
    shard = next((s for s in fleet.shards if any(m.model == failure.model for m in s.members)), None)
    job = fleet.shards[0]
    return MemberRecord(
        key=f"{job_key(shard) if shard else fleet.key}/{failure.model.series.name}",
        model=failure.model,
        device=job.device,
        preset=job.preset,
        data_digest=next((m.features.digest for m in fleet.members if m.model == failure.model), ""),
        as_of=as_of,
        params={"architecture": failure.model.architecture, "preset": job.preset, "dtype": job.dtype},
        tags={"step": failure.step, "code": failure.code, **tags},
        reason=failure.reason,
    )


def _named(job: ShardJob, metrics: dict[str, float]) -> dict[str, float]:
    """Rename a classifier's ranked probability score to `rps`: it is not comparable with CRPS."""
    if not is_classifier(job.architecture):
        return metrics
    return {name.replace("crps", "rps"): value for name, value in metrics.items()}


def is_classifier(architecture: str) -> bool:
    """Whether an architecture states probabilities of classes, not quantiles of prices."""
    return cpbmodels.architecture(base_of(architecture)).classifier


def _skill(pool: PoolScore) -> float:
    return 100 * (1 - pool.metrics["test_crps_ratio"])


def _pooled(pools: list[PoolScore]) -> dict[str, float]:
    """Return the pooled results under the names read by the leaderboard."""
    values = {}
    for pool in pools:
        m, t = pool.metrics, pool.timeframe
        for name, p in P_OF.items():
            if p in m:  # a model without a table of extremes states no chances of highs and lows
                values[f"pooled_{p.removeprefix('test_')}_{t}"] = m[p]
                for end in ("", "_low", "_high"):
                    values[f"pooled_{name}_ratio_{t}{end}"] = m[f"test_{name}_ratio{end}"]
        values[SKILL.format(t)] = _skill(pool)
        means = ("mae_ratio", "directional_accuracy", "coverage_80", "coverage_90", "tail_pinball_ratio")
        for name in (*means, f"{OUTCOMES}_brier_ratio"):
            if f"test_{name}" in m:  # classifiers have no intervals and no tails
                values[f"pooled_{name}_{t}"] = m[f"test_{name}"]
    return values
