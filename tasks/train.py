"""Step 4, train: one shard of a fleet, by the run's executor."""

from pathlib import Path

from schemas.errors import CpbError
from schemas.handover import Failure, ShardJob, ShardResult
from tasks.running.step import Retry, step
from tasks.training.plan import job_key
from tasks.training.progress import FleetProgress
from tasks.training.runner import EngineLost, Executor, TrainerDied

RETRY_WAIT_S = 5.0


@step("train", run_name="train {job.architecture}", workers=64)
def train(
    job: ShardJob, root: Path, executor: Executor, timeout_s: float, progress: FleetProgress
) -> ShardResult:
    """Train a shard below `root/fleets`: continued from its last checkpoint, skipped if done.

    Retried if its trainer died (not after its time limit, which a retry would reach again). If the trainer fails as a
    whole, every member of the shard is a failure.

    Raises:
        EngineLost: no shard of the run can be trained any more.
    """
    run = Retry(on=TrainerDied, times=executor.retries, wait_s=RETRY_WAIT_S).around(executor.run, "train")
    try:
        return run(job, root, timeout_s, progress)
    except EngineLost:
        raise
    except CpbError as error:
        failures = tuple(Failure.of(member.model, "train", error) for member in job.members)
        return ShardResult(key=job_key(job), architecture=job.architecture, failures=failures)
    finally:
        progress.ended(job)
