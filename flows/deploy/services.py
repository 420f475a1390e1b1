"""`up`, `down` and `run`: Prefect's server and a worker for the deployments of prefect.yaml, on this machine.

`python -m flows.deploy.services PORT HOST` is the server: Prefect's own application, with a password, and
behind the guard (`flows/ops`), which `prefect server start` would not have. The worker is Prefect's own
(`flows/deploy/worker.py`). Each server has a password of its own, which ends with it, and so do the worker and its
flow runs. A variable in the environment of both, which their flow runs and trainers inherit, tells which processes
belong to this deployment. Does not import Prefect, which reads its settings on import.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any, Literal, cast

import psutil

from flows.ops.listeners import PREFECT
from flows.ops.logs import keep_bounded, rotate
from flows.ops.passwords import make_password, password_file, prefect_home, read_password
from flows.ops.ports import TAKEN, bind_shared, hold
from flows.ops.serve import end_as_by_ctrl_c, run_server
from schemas.base import parse_value
from schemas.errors import CpbError, UsageError
from schemas.forecasting import ForecastSpec
from schemas.home import default_folder
from schemas.presets import with_preset_files
from schemas.run import RunSpec
from schemas.scope import ScopeSpec
from tasks.storage.locks import locked
from tasks.tracking.home_store import home_store, named_uri, new_store_uri

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

ROOT = Path(__file__).resolve().parents[2]
"""The folder with this code, in which the processes of a deployment run, regardless of the current folder."""

POOL = "local-gpu"
"""The work pool of the deployments in prefect.yaml."""

QUEUES = {"training": 1, "forecasts": 1}
"""Queue of the pool -> flow runs at the same time. `train-all` and `nightly` share the devices, hence one queue; hourly
forecasts have one of their own, so that they go on while a training runs for hours."""

WORKER = f"cpb-{gethostname()}"
PORT = 4200
PAGE = 200
"""Maximum number of rows that the server returns per request."""

_MARK = "CPB_DEPLOYED"
_START_S, _DEPLOY_S, _GRACE_S = 120.0, 120.0, 30.0

Name = Literal["server", "worker"]
_MODULES: dict[Name, str] = {"server": "flows.deploy.services", "worker": "flows.deploy.worker"}
WORKER_COMMAND = (
    "prefect",
    "worker",
    "start",
    "--pool",
    POOL,
    "--name",
    WORKER,
    "--limit",
    str(sum(QUEUES.values())),
)
"""What the worker's module runs in its process."""

NAMES = {
    "train-all": "train-all/train-all",
    "nightly": "train-all/nightly",
    "hourly": "forecast/hourly",
    "forecast": "forecast/hourly",
}
"""Short names of the deployments; Prefect itself only accepts FLOW/DEPLOYMENT."""

_SPECS: dict[str, type[ScopeSpec]] = {"train-all": RunSpec, "forecast": ForecastSpec}


@dataclass
class Started:
    """Result of `up`: the server's port, what was started, the runs that were ended, and the number dropped."""

    port: int
    started: list[Name] = field(default_factory=list)
    runs_ended: list[str] = field(default_factory=list)
    runs_dropped: int = 0


def api_of(port: int) -> str:
    """Return the URL of the API on a port of this machine."""
    return f"http://127.0.0.1:{port}/api"


def state_folder() -> Path:
    """Return the folder of logs and of the port in use: `CPB_DEPLOY_STATE`, or `.cpb` in `default_folder`."""
    return Path(os.environ.get("CPB_DEPLOY_STATE") or default_folder(ROOT) / ".cpb").absolute()


def data_home() -> Path:
    """Return the store used by deployed flows: `CPB_HOME`, or `data` in `default_folder`."""
    return Path(os.environ.get("CPB_HOME") or default_folder(ROOT) / "data").absolute()


def log_file(name: str) -> Path:
    """Return the path of a process's log."""
    return state_folder() / f"{name}.log"


def keep_log(name: Name) -> None:
    """Bound the size of the log of this process, the server's or the worker's."""
    keep_bounded(log_file(name))


def last_port() -> int | None:
    """Return the port of the last `up`; None since `down`. While it is set, server and worker should run."""
    file = state_folder() / "port"
    return int(file.read_text()) if file.exists() else None


def processes() -> list[psutil.Process]:
    """Return the running processes of this deployment: server, worker, flow runs, and all that these have started."""
    running = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or is another user's
            marked = process.environ().get(_MARK) == str(state_folder())
            # In a container the parent may never reap a zombie.
            if marked and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
    return running


def find(name: Name) -> psutil.Process | None:
    """Return the running server or worker of this deployment."""
    for process in processes():
        with suppress(psutil.Error):
            if process.cmdline()[1:3] == ["-m", _MODULES[name]]:
                return process
    return None


@contextmanager
def client_of(port: int, timeout_s: float = 30) -> Iterator["SyncPrefectClient"]:
    """Yield a client of this deployment's server, which is the server in use in the block.

    The port is held in the block, so that the password goes to a server of this user, or nowhere.

    Raises:
        CpbError: another program has the port; else as `client_of_settings`.
    """
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    from flows.prefect import client_of_settings

    secret = read_password(password_file())
    with (
        closing(hold(port)),
        temporary_settings({PREFECT_API_URL: api_of(port), PREFECT_API_AUTH_STRING: secret}),
        client_of_settings(timeout_s) as client,
    ):
        yield client


def up(port: int | None = None, host: str | None = None) -> Started:
    """Start what does not run of server and worker; with a worker, set up the deployments and end earlier runs.

    A new server has a new password: an earlier worker, which has the earlier one, ends first with its flow runs.

    Args:
        port: None: the port of the last `up`, else 4200.
        host: address that the server listens on: 127.0.0.1, or 0.0.0.0, since worker and commands use loopback. None:
            that of a running server, else 127.0.0.1.

    Raises:
        CpbError: the port is in use, a process does not start, or a running server has a different port or address.
    """
    result = Started(port or last_port() or PORT)
    with locked(state_folder() / "lock"):
        server = find("server")
        has = server.cmdline()[3:5] if server else []
        host = host or "".join(has[1:]) or "127.0.0.1"
        wanted = [str(result.port), host]
        if server and has != wanted:
            raise CpbError(
                f"the server runs at {':'.join(reversed(has))}; stop it with `cpb deploy down` before you "
                "choose another address",
                code="already-up",
                field="port" if has[0] != wanted[0] else "host",
            )
        # A server that hangs is as good as none, and would keep the port.
        if find("server") and not _until(lambda: _answers(result.port), _START_S):
            _stop("server")
        if not find("server"):
            _stop("worker")
            bind_shared(host, result.port).close()  # can be had
            make_password(password_file(), new=True)
            # Before the start: if this process is killed now, `status` names a server that does not run.
            (state_folder() / "port").write_text(str(result.port))
            _start("server", result, [host], ready=lambda: _answers(result.port))
        if not find("worker"):
            with client_of(result.port) as client:
                _start_worker(client, result)
    return result


def _start_worker(client: "SyncPrefectClient", result: Started) -> None:
    """Create pool, queues and deployments, end what an earlier worker has left, and start a worker."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists

    with suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
    for queue, runs in QUEUES.items():
        with suppress(ObjectAlreadyExists):  # a limit that its user has changed stays
            client.create_work_queue(queue, concurrency_limit=runs, work_pool_name=POOL)
    # Read before: deploying makes the schedules anew, and every deployment and schedule active again.
    before = {deployment.id: deployment for deployment in client.read_deployments(limit=PAGE)}
    _deploy(result.port)
    for deployment in client.read_deployments(limit=PAGE):
        _pause_as(before.get(deployment.id, deployment), deployment, client)
    _stop("worker")  # its flow runs go on without it
    result.runs_ended = _end_open_runs(client)
    result.runs_dropped = _drop_missed_runs(client)
    begun = datetime.now(UTC)

    def polls() -> bool:
        workers = client.read_workers_for_work_pool(POOL)
        return any(w.name == WORKER and (w.last_heartbeat_time or begun) > begun for w in workers)

    server = find("server")
    if not server:
        raise CpbError(f"the Prefect server has ended (log: {log_file('server')})", code="server-ended")
    _start("worker", result, [server.pid], ready=polls)


def _pause_as(earlier: "DeploymentResponse", now: "DeploymentResponse", client: "SyncPrefectClient") -> None:
    # Each pause in its own kind: Prefect's page has a switch for both, and one does not undo the other.
    if earlier.paused:
        client.pause_deployment(now.id)
    for schedule in now.schedules if is_unscheduled(earlier) else ():
        client.update_deployment_schedule(now.id, schedule.id, active=False)


def is_unscheduled(deployment: "DeploymentResponse") -> bool:
    """Whether a deployment has schedules, none of which is active."""
    return bool(deployment.schedules) and not any(schedule.active for schedule in deployment.schedules)


def _start(name: Name, result: Started, options: Sequence[object], ready: Callable[[], bool]) -> None:
    """Start a process that outlives the calling process, and wait until it is ready.

    Its log goes on where that of an earlier process ended, which says why that one did.
    """
    log = log_file(name)
    rotate(log)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULES[name], str(result.port), *map(str, options)],
            cwd=ROOT,
            env=_environment(result.port) | {_MARK: str(state_folder())},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            # A script's background job inherits an ignored SIGINT, with which Prefect's processes could not be stopped.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
    if not _until(lambda: process.poll() is not None or ready(), _START_S) or process.poll() is not None:
        last = " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
        raise CpbError(f"the Prefect {name} did not start: {last} (log: {log})", code=f"{name}-not-started")
    result.started.append(name)


def _deploy(port: int) -> None:
    """Run `prefect deploy --all`: Prefect has no public function that reads prefect.yaml."""
    clone = ROOT / "prefect.yaml"
    file = clone if clone.is_file() else Path(__file__).with_name("prefect.yaml")  # of an installed wheel
    log = log_file("deploy")
    with log.open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)],
            cwd=ROOT,
            env=_environment(port),
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    if done.returncode:
        raise CpbError(f"`prefect deploy --all` failed; see {log}", code="deploy-failed")


def _environment(port: int) -> dict[str, str]:
    """Return the environment of server, worker and flow runs, which work in the project's folder: absolute paths."""
    auth = make_password(password_file())
    store = named_uri()
    if not store and home_store(data_home()) is None:
        store = new_store_uri(ROOT)  # a flow has CPB_HOME, also where it is the default one
    return (
        os.environ
        | ({"MLFLOW_TRACKING_URI": store} if store else {})
        | {
            "PWD": str(ROOT),
            "CPB_HOME": str(data_home()),
            "CPB_DEPLOY_STATE": str(state_folder()),
            "PREFECT_HOME": str(prefect_home()),
            "PREFECT_API_URL": api_of(port),
            "PREFECT_API_AUTH_STRING": auth,
            "PREFECT_SERVER_API_AUTH_STRING": auth,
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(_origins(port)),
            "PREFECT_SERVER_API_HOST": "127.0.0.1",
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }
    )


def _origins(port: int) -> list[str]:
    """Return the origins of the server's own page, which calls the API by address even if it was opened by name."""
    return [f"http://127.0.0.1:{port}", f"http://localhost:{port}"]


def _runs(client: "SyncPrefectClient", *states: str) -> list["FlowRun"]:
    """Return the runs of the pool in these types of state, those that are due first."""
    from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
    from prefect.client.schemas.sorting import FlowRunSort

    return client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": states}}}),
        work_pool_filter=WorkPoolFilter.model_validate({"name": {"any_": [POOL]}}),
        sort=FlowRunSort.EXPECTED_START_TIME_ASC,
        limit=PAGE,
    )


def _open_runs(client: "SyncPrefectClient") -> list["FlowRun"]:
    """Return the runs that this host's worker has taken and that have not ended."""
    runs = _runs(client, "RUNNING", "PENDING", "CANCELLING")
    # A worker names itself in a run a moment after it has taken it.
    return [run for run in runs if (run.labels or {}).get("prefect.worker.name", WORKER) == WORKER]


def _end_open_runs(client: "SyncPrefectClient") -> list[str]:
    """Mark the open runs and their tasks as Crashed: without a worker nobody reports their end, and they hold slots."""
    from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
    from prefect.states import Crashed

    running = TaskRunFilter.model_validate({"state": {"type": {"any_": ["RUNNING", "PENDING"]}}})
    ended = _open_runs(client)
    for run in ended:
        client.set_flow_run_state(run.id, Crashed(message="its worker has ended"), force=True)
        this = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})
        for task in client.read_task_runs(flow_run_filter=this, task_run_filter=running):
            client.set_task_run_state(task.id, Crashed(message="its flow run has ended"), force=True)
    return [run.name for run in ended]


def _drop_missed_runs(client: "SyncPrefectClient") -> int:
    """Delete runs scheduled while no worker was running: a worker would execute all of them in sequence."""
    now = datetime.now(UTC)
    scheduled = (run for run in _runs(client, "SCHEDULED") if run.auto_scheduled)
    missed = [run.id for run in scheduled if run.expected_start_time and run.expected_start_time < now]
    for run in missed:
        client.delete_flow_run(run)
    return len(missed)


def stay() -> None:
    """Wait for a signal, or for the end of server or worker; then stop both, as `down`.

    Raises:
        CpbError: one of them ended by itself.
    """
    end_as_by_ctrl_c()
    missing: list[Name] = []
    with suppress(KeyboardInterrupt):
        while not missing:
            time.sleep(1)
            missing = [name for name in _MODULES if not find(name)]
    with locked(state_folder() / "lock"):  # a `cpb deploy down` may be at work
        was_up = last_port()
    down()
    # By `cpb deploy down` they end as wanted.
    if missing and was_up:
        raise CpbError(
            f"{' and '.join(missing)} ended; see {log_file(missing[0])}, and start again with `cpb deploy up`",
            code="process-ended",
        )


def down() -> list[Name]:
    """Cancel the runs, stop worker and server; return which of the two were running."""
    from prefect.states import Cancelling

    with locked(state_folder() / "lock"):
        running: list[Name] = [name for name in ("worker", "server") if find(name)]
        port = last_port()
        if len(running) == 2 and port:
            with suppress(CpbError), client_of(port) as client:  # a server that hangs can only be stopped
                for run in _open_runs(client):
                    client.set_flow_run_state(run.id, Cancelling())
                _until(lambda: not _open_runs(client), _GRACE_S)
        _stop("worker")
        _stop("server")
        # Last: while it is there, `status` calls a missing server or worker wrong.
        (state_folder() / "port").unlink(missing_ok=True)
    return running


def _stop(name: Name) -> None:
    """Interrupt the server, or all processes but the server; kill those that have not ended after a time."""
    server = find("server")
    ending = [process for process in processes() if (process == server) == (name == "server")]
    for number in (signal.SIGINT, signal.SIGKILL):
        for process in ending:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        _until(lambda: not set(ending) & set(processes()), _GRACE_S)


def run(name: str, parameters: Sequence[str] = (), *, watch: bool = False) -> "FlowRun":
    """Start a run of a deployment, given by its short or full name; with `watch`, return it after its end.

    Args:
        parameters: NAME=VALUE each; a value is parsed as JSON if possible, otherwise text.

    Raises:
        UsageError: the name is not a valid deployment name, or a parameter is not NAME=VALUE or has a wrong value.
        CpbError: no server is running, or the server does not have the deployment.
    """
    full = NAMES.get(name, name)
    if "/" not in full:
        raise UsageError(
            f"deployment {name!r} is unknown: choose from {', '.join(NAMES)} or FLOW/DEPLOYMENT",
            code="deployment",
            field="name",
        )
    values: dict[str, Any] = {}
    for text in parameters:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UsageError(f"--param {text!r} is not NAME=VALUE", code="parameter", field="param")
        values[key] = parse_value(value)
    # Checked here, as on the command line: a run that could only fail is never made.
    if spec := _SPECS.get(full.partition("/")[0]):
        values = with_preset_files(values)  # the worker does not need the files
        spec(**values)  # the same validation as on the command line, before a run exists
    from flows.prefect import client_of_settings, server_in_use

    port = last_port()
    if not (port or server_in_use()):
        raise CpbError(
            "no server is running; start it with `cpb deploy up`, or set PREFECT_API_URL to yours",
            code="not-up",
        )
    from prefect.deployments import run_deployment
    from prefect.exceptions import ObjectNotFound

    with client_of(port) if port else client_of_settings():
        try:
            flow_run = run_deployment(full, parameters=values, timeout=None if watch else 0, as_subflow=False)
        except ObjectNotFound as error:
            raise CpbError(
                f"the server has no deployment {full!r}; `cpb deploy status` lists its deployments",
                code="deployment",
                field="name",
            ) from error
    return cast("FlowRun", flow_run)


def _answers(port: int) -> bool:
    """Whether the server responds and accepts the password."""
    try:
        with client_of(port, timeout_s=5) as client:
            client.api_version()
    except CpbError as error:
        # Taken: for a minute by a connection of an earlier server whose other end is still open.
        if error.code in ("server-unreachable", TAKEN):
            return False
        raise
    return True


def _until(look: Callable[[], Any], timeout_s: float) -> bool:
    """Return whether a condition, which is polled, holds within a time."""
    deadline = time.monotonic() + timeout_s
    while not (holds := bool(look())) and time.monotonic() < deadline:
        time.sleep(0.2)
    return holds


def main() -> None:
    """Serve Prefect's application until a signal arrives."""
    port, host = int(sys.argv[1]), sys.argv[2]
    os.environ |= _environment(port)  # Prefect reads its settings on import
    keep_log("server")
    from prefect.server.api.server import create_app

    run_server(
        PREFECT,
        partial(create_app, final=True),
        host,
        port,
        lambda url: None,
        origins=_origins(port),
        shared=True,
    )


if __name__ == "__main__":
    main()
