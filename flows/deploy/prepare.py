"""What a new server lacks before a worker may poll it: work pool, GPU limit, deployments."""

import logging
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from flows.deploy.project import environment, password_file, project_folder
from flows.deploy.services import Service, flow_runs, log_file
from schemas.errors import CpbError
from tasks.storage.processes import ProcessId

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

log = logging.getLogger("cpb")

POOL = "local-gpu"
GPU_LIMIT = "gpu"
_DEPLOY_S = 120.0


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


def deploy(server: Service) -> None:
    """Run `prefect deploy --all` to its end. Its exit code counts, not what it prints.

    Prefect has no public function that reads prefect.yaml.

    Raises:
        CpbError: it fails, or does not end within `_DEPLOY_S`.
    """
    secret = {"PREFECT_API_AUTH_STRING": password_file(server.home).read()}
    log = log_file("deploy")
    try:
        with log.open("wb") as output:
            subprocess.run(
                [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
                cwd=project_folder(), env=environment(server.port, server.home) | secret, timeout=_DEPLOY_S, check=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
    except subprocess.SubprocessError as error:
        code = getattr(error, "returncode", None)
        how = f"did not end within {_DEPLOY_S:.0f} s" if code is None else f"ended with code {code}"
        raise CpbError(f"`prefect deploy --all` {how}; see {log}", code="deploy-failed") from None


def drop_missed_runs(client: "SyncPrefectClient") -> int:
    """Delete runs that schedules had due while nothing was up: a worker would do all of them, one after another."""
    from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter

    due = FlowRunFilter.model_validate(
        {"state": {"type": {"any_": ["SCHEDULED"]}}, "expected_start_time": {"before_": datetime.now(UTC)}}
    )
    pool = WorkPoolFilter.model_validate({"name": {"any_": [POOL]}})
    missed = [
        run for run in flow_runs(client, flow_run_filter=due, work_pool_filter=pool) if run.auto_scheduled
    ]
    for run in missed:
        client.delete_flow_run(run.id)
    if missed:
        log.warning("%d scheduled runs were missed while nothing was up; they are dropped", len(missed))
    return len(missed)
