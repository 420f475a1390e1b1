"""Setup of a new server before a worker polls it: work pool, deployments."""

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
_DEPLOY_S = 120.0


def make_pool(client: "SyncPrefectClient") -> None:
    """Create the work pool."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    client.create_work_pool(
        WorkPoolCreate(name=POOL, type="process", base_job_template=template), overwrite=True
    )


def forget_dead_workers(client: "SyncPrefectClient") -> None:
    """Remove dead workers of this host from the pool's list, to which each start adds a worker."""
    for worker in client.read_workers_for_work_pool(POOL):
        if (process := worker_process(worker.name)) and process.is_alive() is False:
            client.request(
                "DELETE", "/work_pools/{work_pool_name}/workers/{name}",
                path_params={"work_pool_name": POOL, "name": quote(worker.name)},
            )  # fmt: skip


def worker_process(name: str) -> ProcessId | None:
    """Return the process that a worker's name contains; None for a worker not started by cpb."""
    try:
        return ProcessId.parse(name)
    except ValueError:
        return None


def deploy(server: Service) -> None:
    """Run `prefect deploy --all` and check its exit code, not its output.

    Prefect has no public function that reads prefect.yaml.

    Raises:
        CpbError: the command fails, or does not end within `_DEPLOY_S`.
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
    """Delete runs scheduled while no worker was running: a worker would execute all of them in sequence."""
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
