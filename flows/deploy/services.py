"""The two processes of a deployment, server and worker: folders and settings, starting, finding and stopping them.

Does not import Prefect, which reads the settings that a process makes here when it is imported.

Each process writes a record of itself into the state folder when it starts, whether started by hand, by `up` or by
systemd. A record means that the process should run: it stays when the process dies, and `down` removes it.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import psutil
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from flows.prefect_server import client_of_settings, password_file, prefect_home
from schemas.errors import CpbError
from schemas.handover import Record
from schemas.scope import default_folder
from tasks.storage.processes import ProcessId
from tasks.storage.records import find_record, write_record

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun


ROOT = Path(__file__).resolve().parents[2]
"""The folder with this code, in which the processes of a deployment run, regardless of the current folder."""

QUIET = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
_SQLITE = "sqlite:///"


def api_of(port: int) -> str:
    """Return the URL of the API on a port of this machine."""
    return f"http://127.0.0.1:{port}/api"


def deployments_file() -> Path:
    """Return the clone's prefect.yaml, or its copy in an installed wheel.

    Raises:
        CpbError: this copy of cpb has neither.
    """
    places = (ROOT / "prefect.yaml", Path(__file__).with_name("prefect.yaml"))
    found = next((path for path in places if path.is_file()), None)
    if not found:
        raise CpbError(
            f"prefect.yaml, which defines the deployments, is missing in {ROOT}: copy it from the repository",
            code="no-project",
        )
    return found


def state_folder() -> Path:
    """Return the folder of process records and logs: `CPB_DEPLOY_STATE`, or `.cpb` in `default_folder`."""
    return Path(os.environ.get("CPB_DEPLOY_STATE") or default_folder(ROOT) / ".cpb").absolute()


def data_home() -> Path:
    """Return the store used by deployed flows: `CPB_HOME`, or `data` in `default_folder`."""
    return Path(os.environ.get("CPB_HOME") or default_folder(ROOT) / "data").absolute()


def settings(port: int, home: Path) -> dict[str, str]:
    """Return the Prefect settings of each process of a deployment, without the password."""
    return QUIET | {"PREFECT_HOME": str(home), "PREFECT_API_URL": api_of(port)}


def environment(port: int, home: Path) -> dict[str, str]:
    """Return the environment of server, worker and `prefect deploy`, which all run in the project's folder.

    Relative paths given by the user become absolute. The password is not included: each process reads it from its file.
    """
    env = os.environ | settings(port, home) | {"PWD": str(ROOT)}
    for name in ("CPB_HOME", "CPB_DEPLOY_STATE"):
        if env.get(name):
            env[name] = str(Path(env[name]).absolute())
    uri = env.get("MLFLOW_TRACKING_URI", "")
    if uri.startswith(_SQLITE) and not uri.startswith(f"{_SQLITE}/"):
        env["MLFLOW_TRACKING_URI"] = f"{_SQLITE}{Path(uri.removeprefix(_SQLITE)).absolute()}"
    return env


T = TypeVar("T")
Name = Literal["server", "worker"]
NAMES: tuple[Name, ...] = ("server", "worker")
_POLL_S = 0.2
POOL = "local-gpu"
"""The work pool of the deployments in prefect.yaml."""
PAGE = 200
"""Maximum number of rows that the server returns per request."""


class Service(Record):
    """A process of the deployment.

    `home`: Prefect's folder; `data_home`: the store (`CPB_HOME`).
    """

    name: Name
    process: ProcessId
    since: datetime
    port: int
    home: Path
    data_home: Path

    @property
    def api(self) -> str:
        """The URL of the server's API."""
        return api_of(self.port)

    @property
    def alive(self) -> bool:
        """Whether the process runs on this host."""
        return self.process.is_alive() is True


def find(name: Name) -> Service | None:
    """Return the record of a process that should be running, whether or not it is alive."""
    return find_record(record_file(name), Service)


def find_alive(name: Name) -> Service | None:
    """Return the record of a process if it is running."""
    found = find(name)
    return found if found and found.alive else None


def log_file(name: str) -> Path:
    """Return the path of a process's log."""
    return state_folder() / f"{name}.log"


def announce(name: Name, port: int) -> None:
    """Record the calling process as the server or the worker."""
    found = Service(
        name=name, process=ProcessId.current(), since=datetime.now(UTC), port=port, home=prefect_home(),
        data_home=data_home(),
    )  # fmt: skip
    write_record(record_file(name), found)


def entry_port(name: Name, about: str | None) -> int:
    """Return the server's port, the option of a process's entry point."""
    parser = argparse.ArgumentParser(prog=f"python -m flows.deploy.{name}", description=about)
    parser.add_argument("--port", type=int, default=4200)
    return int(parser.parse_args().port)


def start(name: Name, port: int, home: Path) -> subprocess.Popen[bytes]:
    """Start a process that outlives the calling process, with its output in a new log file; one old log is kept."""
    log = log_file(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", f"flows.deploy.{name}", "--port", str(port)],
            cwd=ROOT, env=environment(port, home), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
            # A script's background job inherits an ignored SIGINT, with which Prefect's processes could not be stopped.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip


def failed_to_start(name: Name, process: subprocess.Popen[bytes]) -> CpbError:
    """Return the error for a process that ended or was not ready in time."""
    code = process.poll()
    how = f"ended with code {code}" if code is not None else "is not ready in time"
    return CpbError(
        f"the Prefect {name} {how}: {last_lines(log_file(name))} (log: {log_file(name)})",
        code=f"{name}-not-started",
    )


def stop(process: ProcessId, grace_s: float = 30) -> bool:
    """Stop a process and its children: SIGINT, after `grace_s` SIGTERM, then SIGKILL; return whether it was alive."""
    try:
        family = [(first := psutil.Process(process.pid)), *first.children(recursive=True)]
        if process.is_alive() is not True:
            return False
        first.send_signal(signal.SIGINT)
    except psutil.NoSuchProcess:
        return False
    until(lambda: not _running([first]), grace_s)
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for member in _running(family):
            with suppress(psutil.NoSuchProcess):
                end(member)
        until(lambda: not _running(family), 5)
    return True


def until(look: Callable[[], T], timeout_s: float) -> T | None:
    """Return the first truthy result of `look`, which is polled; None on timeout."""
    waiting = Retrying(
        retry=retry_if_result(lambda found: not found), stop=stop_after_delay(timeout_s), wait=wait_fixed(_POLL_S),
        retry_error_callback=lambda _last: None,
    )  # fmt: skip
    return waiting(look)


def _running(family: list[psutil.Process]) -> list[psutil.Process]:
    """Return the running processes, without zombies: in a container their parent may never reap them."""
    found = []
    for member in family:
        with suppress(psutil.NoSuchProcess):
            if member.is_running() and member.status() != psutil.STATUS_ZOMBIE:
                found.append(member)
    return found


def record_file(name: Name) -> Path:
    """Return the path of a process's record."""
    return state_folder() / f"{name}.json"


@contextmanager
def client_of(server: Service, timeout_s: float = 30) -> Iterator["SyncPrefectClient"]:
    """Yield a client of this deployment's server.

    Raises:
        CpbError: the server cannot be reached, rejects the password, or responds with an error.
    """
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES
    from prefect.settings import temporary_settings as settings

    chosen = {
        PREFECT_API_URL: server.api,
        PREFECT_API_AUTH_STRING: password_file(server.home).read(),
        PREFECT_CLIENT_MAX_RETRIES: 2,
    }
    with settings(chosen), client_of_settings(timeout_s) as client:
        yield client


def flow_runs(client: "SyncPrefectClient", **filters: Any) -> list["FlowRun"]:
    """Return all flow runs that match the filters of Prefect's client, reading all pages."""
    found: list[FlowRun] = []
    while page := client.read_flow_runs(limit=PAGE, offset=len(found), **filters):
        found += page
        if len(page) < PAGE:
            break
    return found


def last_lines(path: Path, count: int = 3) -> str:
    """Return the last lines of a log as a text for an error message."""
    if not path.exists():
        return "it wrote nothing"
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return " / ".join(line.strip() for line in lines[-count:]) or "it wrote nothing"
