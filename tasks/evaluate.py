"""Step 4, evaluate: judge a fleet on its test span and log it to MLflow."""

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.config import CLASSIFIER, TrainConfig
from schemas.records import Failure, FleetRecord
from tasks.storage.files import read_json
from tasks.judging.fleet import FleetScore, judge_fleet
from tasks.judging.pool import PoolScore
from tasks.tracking.runs import (
    COMPLETE,
    PARTIAL,
    Dataset,
    MemberRecord,
    finish,
    log_members,
    log_metrics,
    start_fleet,
)
from tasks.training.job import Job


@task(name="evaluate", cache_policy=NO_CACHE, persist_result=False)
def evaluate(
    config: TrainConfig, parent: str, fleet: FleetRecord, failures: tuple[Failure, ...] = ()
) -> FleetRecord:
    """Return the fleet with its run ids (member folder name -> run id), judged and logged.

    A member that failed before or in training gets a run too, marked failed, with the reason.
    """
    job = Job.load(fleet.folder)
    score = judge_fleet(fleet.folder)
    tags = {"preset": config.preset, "fleet_key": fleet.key}
    run = start_fleet(parent, fleet.architecture, f"{parent}/{fleet.key}", job.model_dump(mode="json"), tags)
    names = list(score.members)
    records = [_record(config, job, fleet, name, score) for name in names]
    broken = [_failed(config, job, f) for f in (*failures, *fleet.failures)]
    ids = log_members(run.run_id, [*records, *broken])
    log_metrics(
        run.run_id, _named(job, _pooled(score.pools)) | {"train_seconds": _done(fleet)["train_seconds"]}
    )
    finish(
        run.run_id, PARTIAL if broken else COMPLETE, {"verdict": "; ".join(p.verdict for p in score.pools)}
    )
    return fleet.model_copy(update={"run_id": run.run_id, "run_ids": dict(zip(names, ids, strict=False))})


def _done(fleet: FleetRecord) -> dict[str, Any]:
    return read_json(fleet.folder / "done.json")


def _record(config: TrainConfig, job: Job, fleet: FleetRecord, name: str, score: FleetScore) -> MemberRecord:
    spec = next(m for m in job.members if m.name == name)
    folder = fleet.folder / "members" / name
    model, trained = read_json(folder / "model" / "config.json"), read_json(folder / "history.json")
    judged = score.members[name]
    report = trained["report"]
    measured = {k: v for k, v in report.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return MemberRecord(
        key=f"{fleet.key}/{name}",
        architecture=job.architecture,
        symbol=spec.symbol,
        timeframe=spec.timeframe,
        device=str(report.get("device", job.device)),
        preset=job.preset,
        data_digest=spec.digest,
        as_of=_as_of(config),
        config={k: v for k, v in model.items() if k not in ("metrics", "history", "report")},
        history=trained["history"],
        metrics=measured | _named(job, judged.metrics),
        folder=folder / "model",
        dataset=Dataset(name, spec.digest, str(spec.features), spec.rows),
        tags={"verdict": judged.verdict, "source": config.scope.source or "Binance Vision"},
    )


def _failed(config: TrainConfig, job: Job, failure: Failure) -> MemberRecord:
    return MemberRecord(
        key=f"{job.key}/{failure.symbol}-{failure.timeframe}",
        architecture=job.architecture,
        symbol=failure.symbol,
        timeframe=failure.timeframe,
        device=job.device,
        preset=job.preset,
        data_digest="",
        as_of=_as_of(config),
        tags={"step": failure.step},
        reason=failure.reason,
    )


def _named(job: Job, metrics: dict[str, float]) -> dict[str, float]:
    """Name a classifier's ranked probability score as such: beside CRPS ratios it would compare what cannot be."""
    if job.base_architecture != CLASSIFIER:
        return metrics
    return {name.replace("crps", "rps"): value for name, value in metrics.items()}


def _as_of(config: TrainConfig) -> str:
    return config.scope.as_of.isoformat() if config.scope.as_of else "newest"


def _pooled(pools: list[PoolScore]) -> dict[str, float]:
    """Return the pooled results under the names that the leaderboard reads."""
    values = {}
    for pool in pools:
        m = pool.metrics
        values[f"pooled_crps_ratio_{pool.timeframe}"] = m["test_crps_ratio"]
        values[f"pooled_crps_ratio_{pool.timeframe}_low"] = m["test_crps_ratio_low"]
        values[f"pooled_crps_ratio_{pool.timeframe}_high"] = m["test_crps_ratio_high"]
        values[f"pooled_p_{pool.timeframe}"] = m["test_p"]
        values[f"crps_skill_percent_{pool.timeframe}"] = 100 * (1 - m["test_crps_ratio"])
        for name in ("mae_ratio", "directional_accuracy", "coverage_80", "coverage_90", "tail_pinball_ratio"):
            if f"test_{name}" in m:  # classifiers have no intervals and no tails
                values[f"pooled_{name}_{pool.timeframe}"] = m[f"test_{name}"]
    return values
