"""Step 3, train: one fleet in a process of its own, on one device slot."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import ConcurrencyLeaseHolder
from prefect.concurrency.sync import concurrency
from prefect.context import FlowRunContext

from schemas.records import Failure, FleetRecord
from tasks.storage.files import read_json
from tasks.training.job import Job
from tasks.training.launch import Slots, launch

Progress = Callable[[dict[str, Any]], None]


@task(name="train", cache_policy=NO_CACHE, persist_result=False, retries=1, retry_delay_seconds=5)
def train(
    job: Job, folder: Path, slots: Slots, timeout_s: float, on_progress: Progress | None = None
) -> FleetRecord:
    """Train `job` in `folder` (continued from its last checkpoint, skipped where done)."""
    with _gpu_limit(slots):
        launch(folder, slots, timeout_s, on_progress)
    done = read_json(folder / "done.json")
    failures = tuple(Failure.model_validate(f) for f in done["failures"])
    return FleetRecord(architecture=job.architecture, key=job.key, folder=folder, failures=failures)


def _gpu_limit(slots: Slots) -> AbstractContextManager[None]:
    """Queue on the server's `gpu` limit, so that its page shows who waits; the file lock is the hard guard."""
    if slots.gpus and (run := FlowRunContext.get()) and run.flow_run:
        # The holder tells whose slot it is, so that the slot of a killed run can be freed at once.
        holder = ConcurrencyLeaseHolder(type="flow_run", id=run.flow_run.id)
        return concurrency("gpu", occupy=1, strict=True, holder=holder)
    return nullcontext()
