"""What a new server lacks before a worker may poll it: work pool, GPU limit, deployments."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from flows.deploy.project import environment, password_file, project_folder
from flows.deploy.services import PAGE, Service, log_file
from schemas.errors import CpbError
from tasks.storage.processes import ProcessId

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

log = logging.getLogger("cpb")

POOL = "local-gpu"
GPU_LIMIT = "gpu"


def make_pool_and_limit(client: "SyncPrefectClient") -> None:
    """Create the work pool, and the limit that trainings queue on: a strict acquire fails where it does not exist."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.workers.process import ProcessWorker

    from tasks.training.devices import visible_gpus

    template = ProcessWorker.get_default_base_job_template()
    client.create_work_pool(
        WorkPoolCreate(name=POOL, type="process", base_job_template=template), overwrite=True
    )
    client.upsert_global_concurrency_limit_by_name(GPU_LIMIT, max(1, len(visible_gpus())))


def forget_dead_workers(client: "SyncPrefectClient") -> None:
    """Remove workers of this host from the pool's list that do not run any more: each start adds one."""
    for worker in client.read_workers_for_work_pool(POOL):
        if (process := worker_process(worker.name)) and process.is_alive() is False:
            client.request(
                "DELETE", "/work_pools/{work_pool_name}/workers/{name}",
                path_params={"work_pool_name": POOL, "name": quote(worker.name)},
            )  # fmt: skip


def worker_process(name: str) -> ProcessId | None:
    """Return the process of a worker from its name; None for a worker that cpb did not start."""
    try:
        return ProcessId.parse(name)
    except ValueError:
        return None


@contextmanager
def deploying(server: Service, timeout_s: float) -> Iterator[None]:
    """Run `prefect deploy --all` beside the block, which may take as long, and wait for its end.

    Prefect has no public function that reads prefect.yaml. The command's exit code counts, not what it prints.

    Raises:
        CpbError: it fails, or does not end within `timeout_s` after the block.
    """
    secret = {"PREFECT_API_AUTH_STRING": password_file(server.home).read()}
    with log_file("deploy").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
            cwd=project_folder(), env=environment(server.api, server.home) | secret,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise _not_deployed(f"did not end within {timeout_s:.0f} s") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        raise _not_deployed(f"ended with code {process.returncode}")


def _not_deployed(how: str) -> CpbError:
    return CpbError(f"`prefect deploy --all` {how}; see {log_file('deploy')}", code="deploy-failed")


def drop_missed_runs(client: "SyncPrefectClient") -> int:
    """Delete runs that schedules had due while nothing was up: a worker would do all of them, one after another."""
    from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter

    due = FlowRunFilter.model_validate(
        {"state": {"type": {"any_": ["SCHEDULED"]}}, "expected_start_time": {"before_": datetime.now(UTC)}}
    )
    pool = WorkPoolFilter.model_validate({"name": {"any_": [POOL]}})
    dropped = kept = 0
    while True:  # in the server's order, by id: runs that were asked for stay, and fill the first places
        runs = client.read_flow_runs(flow_run_filter=due, work_pool_filter=pool, limit=PAGE, offset=kept)
        missed = [run for run in runs if run.auto_scheduled]
        for run in missed:
            client.delete_flow_run(run.id)
        dropped, kept = dropped + len(missed), kept + len(runs) - len(missed)
        if len(runs) < PAGE:
            break
    if dropped:
        log.warning("%d scheduled runs were missed while nothing was up; they are dropped", dropped)
    return dropped
