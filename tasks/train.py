"""Step 4, train: one shard of a fleet, by the run's engine, which is chosen here."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

from schemas.errors import CpbError, install_extra
from schemas.handover import Failure, ShardJob, ShardResult
from schemas.run import LOCAL, RAY, RunSpec
from tasks.running.step import Retry, step
from tasks.training.local import LocalEngine, TrainerDied
from tasks.training.plan import job_key
from tasks.training.progress import FleetProgress
from tasks.training.ray import ADDRESS, RayEngine, connected

RETRY_WAIT_S = 5.0

Engine = LocalEngine | RayEngine
"""The resources that a run plans for, and that train its shards."""


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


@contextmanager
def opened_engine(spec: RunSpec) -> Iterator[Engine]:
    """Yield the engine named by the run, or else the cluster of `RAY_ADDRESS`, or else this machine.

    Opened before anything is fetched: a trainer on a GPU starts meanwhile, and a device that cannot be used is named.

    Raises:
        UsageError: a setting is invalid, or the device is not available.
        CpbError: Ray is not installed, or its cluster cannot be used.
    """
    if (spec.engine or (RAY if os.environ.get(ADDRESS) else LOCAL)) == LOCAL:
        with closing(LocalEngine(spec)) as local:
            yield local
        return
    if find_spec("ray") is None:
        raise CpbError(
            f"engine ray: the package ray is not installed; run {install_extra('ray')}, or train with --engine local",
            code="extra-missing", field="engine",
        )  # fmt: skip
    with connected(spec) as cluster:
        yield cluster
