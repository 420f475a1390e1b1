"""`up` starts the processes that are not running; `down` stops both processes and their flow runs."""

import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun

from flows.deploy import services
from flows.deploy.liveness import (
    EndedRun,
    clean_up,
    deploy,
    drop_missed_runs,
    end_dead_runs,
    end_run,
    forget_dead_workers,
    make_pool,
    polls,
    process_of,
    runs_of_worker,
)
from flows.deploy.services import (
    Name,
    Service,
    client_of,
    deployments_file,
    find_alive,
    state_folder,
    until,
)
from flows.ops.serving import check_port
from flows.prefect_server import password_file, prefect_home
from schemas.errors import CpbError
from tasks.storage.locks import locked
from tasks.storage.processes import ProcessId

PORT = 4200
_START_S = 120.0
_Processes = dict[Name, subprocess.Popen[bytes]]


@dataclass
class Started:
    """Result of `up`. `seconds`: its duration."""

    server: Service
    worker: Service
    started: list[Name] = field(default_factory=list)
    dropped: int = 0
    ended: list[EndedRun] = field(default_factory=list)
    seconds: float = 0


def up(port: int | None = None) -> Started:
    """Start server and worker, set up pool and deployments, and end runs whose process has died.

    Args:
        port: None: the port of the last `up`, else 4200.

    Raises:
        CpbError: the port is in use, a process does not start, or a running server has a different port.
    """
    deployments_file()
    start = time.monotonic()
    begun: _Processes = {}
    with locked(state_folder() / "lock"):
        try:
            server = _server(port, begun)
            with client_of(server) as client:
                ended, dropped = _set_up(client, server)
                worker = _worker(client, server, begun)
        except BaseException:
            for process in reversed(begun.values()):
                with suppress(ProcessLookupError):  # already ended
                    services.stop(ProcessId.of(process.pid))
            raise
    return Started(server, worker, list(begun), dropped, ended, round(time.monotonic() - start, 1))


def down(grace_s: float = 30) -> list[Name]:
    """Stop worker, flow runs and server; return the names of the processes that were running."""
    with locked(state_folder() / "lock"), ExitStack() as asking:
        server, worker = services.find("server"), services.find("worker")
        answers = server if server and server.alive and _accepts_us(server) else None
        client = asking.enter_context(client_of(answers)) if answers else None
        interrupted = _interrupted(client, worker)
        stopped: list[Name] = ["worker"] if worker and services.stop(worker.process, grace_s) else []
        interrupted |= _interrupted(client, worker)  # the worker may have started another run meanwhile
        for run in interrupted.values():
            if process := process_of(run):  # of a killed worker: the flow run continued without it
                services.stop(process, grace_s)
        if client and answers:
            for run in interrupted.values():
                state = client.read_flow_run(run.id).state
                if not (state and (state.is_completed() or state.is_failed() or state.is_cancelled())):
                    end_run(client, run, "stopped by `cpb deploy down`", cancel=True)
            clean_up(client)
        if server and services.stop(server.process, grace_s):
            stopped.append("server")
        for name in services.NAMES:
            services.record_file(name).unlink(missing_ok=True)
    return stopped


def _interrupted(client: SyncPrefectClient | None, worker: Service | None) -> dict[UUID, FlowRun]:
    found = runs_of_worker(client, worker.process if worker else None) if client else []
    return {run.id: run for run in found}


def _server(port: int | None, begun: _Processes) -> Service:
    """Return the running server; start it if there is none, restart it if it does not respond."""
    old = services.find("server")
    if old and old.alive:
        if port not in (None, old.port):
            raise CpbError(
                f"the server runs on port {old.port}; stop it with `cpb deploy down` before you choose port {port}",
                code="already-up", field="port",
            )  # fmt: skip
        if until(lambda: _is_ready(old), _START_S):
            return old
        services.stop(old.process)
    port = port or (old.port if old else PORT)
    check_port("127.0.0.1", port)
    home = prefect_home()
    password_file(home).make()
    begun["server"] = services.start("server", port, home)
    return _ready("server", begun["server"], _is_ready)


def _worker(client: SyncPrefectClient, server: Service, begun: _Processes) -> Service:
    """Create the deployments, and return the running worker; start it if there is none for this server."""
    old = services.find("worker")
    if old and old.alive and old.port != server.port:
        services.stop(old.process)
    elif old and old.alive:
        deploy(server)
        return old
    begun["worker"] = services.start("worker", server.port, server.home)
    deploy(server)  # meanwhile the worker imports Prefect

    return _ready("worker", begun["worker"], lambda worker: polls(client, worker))


def _ready(name: Name, process: subprocess.Popen[bytes], answers: Callable[[Service], bool]) -> Service:
    """Wait until a process has written its record and responds; return the record."""

    def ready() -> Service | None:
        if process.poll() is not None:
            raise services.failed_to_start(name, process)
        found = services.find(name)
        return found if found and found.process.pid == process.pid and answers(found) else None

    if found := until(ready, _START_S):
        return found
    raise services.failed_to_start(name, process)


def _set_up(client: SyncPrefectClient, server: Service) -> tuple[list[EndedRun], int]:
    """Create the pool, end runs of dead processes, drop missed schedules; return ended runs, number dropped."""
    make_pool(client)
    forget_dead_workers(client)
    ended = end_dead_runs(client, server.since)
    return ended, 0 if find_alive("worker") else drop_missed_runs(client)


def _is_ready(server: Service) -> bool:
    """Whether the server responds and accepts the password."""
    try:
        with client_of(server, timeout_s=5) as client:
            client.api_version()
    except CpbError as error:
        if error.code == "server-unreachable":
            return False
        raise
    return True


def _accepts_us(server: Service) -> bool:
    """Whether runs can be read and updated; a server that hangs or rejects our password can only be stopped."""
    try:
        return _is_ready(server)
    except CpbError:
        return False
