"""Step 4, train: one fleet in a process of its own, on one device slot."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from prefect.client.schemas.objects import ConcurrencyLeaseHolder
from prefect.concurrency.sync import concurrency
from prefect.context import FlowRunContext

from schemas.errors import CpbError
from schemas.handover import Failure, FleetJob, FleetResult
from tasks.step import Retry, step
from tasks.training.fleet_files import prepare, read_result
from tasks.training.planning import job_key
from tasks.training.process import TrainerDied, run_trainer
from tasks.training.slots import Slots
from tasks.training.told import TrainerTold, telling_training

RETRY_WAIT_S = 5.0


@step("train", run_name="train {job.architecture}", workers=64)
def train(job: FleetJob, root: Path, slots: Slots, timeout_s: float) -> FleetResult:
    """Train `job` below `root/fleets`: continued from its last checkpoint, skipped where it is done.

    Where the trainer fails as a whole, every member of the fleet is a failure.
    """
    try:
        folder = prepare(root, job)
        with telling_training(job, slots) as told:
            _run(folder, slots, timeout_s, told)
        return read_result(folder)
    except CpbError as error:
        failures = tuple(Failure.of(member.model, "train", error) for member in job.members)
        return FleetResult(key=job_key(job), architecture=job.architecture, failures=failures)


def _run(folder: Path, slots: Slots, timeout_s: float, told: TrainerTold) -> None:
    """Run the trainer, and once more if it died (not after its time limit: it would only run into it again)."""
    retried = Retry(on=TrainerDied, times=1, wait_s=RETRY_WAIT_S).around(run_trainer, "train")
    with _gpu_limit(slots):
        retried(folder, slots, timeout_s, told, told.starting)


def _gpu_limit(slots: Slots) -> AbstractContextManager[None]:
    """Queue on the server's `gpu` limit, so that its page shows who waits; the file lock is the hard guard."""
    if slots.gpus and (run := FlowRunContext.get()) and run.flow_run:
        # The holder tells whose slot it is, so that the slot of a killed run can be freed at once.
        holder = ConcurrencyLeaseHolder(type="flow_run", id=run.flow_run.id)
        return concurrency("gpu", occupy=1, strict=True, holder=holder)
    return nullcontext()
