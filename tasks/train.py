"""Step 4, train: one shard of a fleet, by the run's engine, which is chosen here."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from schemas.errors import CpbError, install_extra
from schemas.handover import Failure, ShardJob, ShardResult
from schemas.run import LOCAL, RAY, RunSpec
from tasks.running.step import Retry, step
from tasks.training.local import Engine, LocalEngine, TrainerDied, check_device
from tasks.training.plan import job_key
from tasks.training.progress import FleetProgress
from tasks.training.ray import ADDRESS, check_cluster, connected

RETRY_WAIT_S = 5.0


@step("train", run_name="train {job.architecture}", workers=64)
def train(
    job: ShardJob, root: Path, engine: Engine, timeout_s: float, progress: FleetProgress
) -> ShardResult:
    """Train a shard below `root/fleets`: continued from its last checkpoint, skipped if done.

    Retried if its trainer died (not after its time limit, which a retry would reach again). If the trainer fails as a
    whole, every member of the shard is a failure.
    """
    run = Retry(on=TrainerDied, times=1, wait_s=RETRY_WAIT_S).around(engine.run, "train")
    try:
        return run(job, root, timeout_s, progress)
    except CpbError as error:
        failures = tuple(Failure.of(member.model, "train", error) for member in job.members)
        return ShardResult(key=job_key(job), architecture=job.architecture, failures=failures)
    finally:
        progress.ended(job)


def check_engine(spec: RunSpec) -> None:
    """Check the engine's settings before anything is fetched.

    Raises:
        UsageError: a setting is invalid, or the device is not available.
        CpbError: Ray is not installed, nothing responds at the cluster's address, or its token is missing or
            readable by other users.
    """
    if _engine_name(spec) == LOCAL:
        check_device(spec.device)
        return
    if find_spec("ray") is None:
        raise CpbError(
            f"engine ray: the package ray is not installed; run {install_extra('ray')}, or train with --engine local",
            code="extra-missing", field="engine",
        )  # fmt: skip
    check_cluster()


def _engine_name(spec: RunSpec) -> str:
    return spec.engine or (RAY if os.environ.get(ADDRESS) else LOCAL)


@contextmanager
def opened_engine(spec: RunSpec) -> Iterator[Engine]:
    """Yield the engine named by the run, or else the cluster of `RAY_ADDRESS`, or else this machine.

    Raises:
        UsageError: the device is not available.
        CpbError: Ray's cluster cannot be used.
    """
    if _engine_name(spec) != LOCAL:
        with connected(spec) as engine:
            yield engine
        return
    local = LocalEngine(spec)
    try:
        yield local
    finally:
        local.leave()
