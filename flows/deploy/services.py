"""The two processes of a deployment, server and worker: started, found again, stopped.

Each writes a record of itself into the state folder when it starts, by hand, by `up` or by systemd alike. A record
says that the process should run: it stays when the process dies, and `down` removes it.
"""

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import psutil
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from flows.deploy.logfile import last_lines, rotate
from flows.deploy.project import ROOT, data_home, environment, prefect_home, state_folder
from schemas.errors import CpbError
from schemas.handover import Record
from tasks.storage.files import read_json
from tasks.storage.processes import ProcessId
from tasks.storage.records import find_record, write_record

Name = Literal["server", "worker"]
NAMES: tuple[Name, ...] = ("server", "worker")
_POLL_S = 0.2


class Service(Record):
    """A process of the deployment.

    `home` is Prefect's folder, `data_home` the store's (`CPB_HOME`); `workers`: flow runs at the same time.
    """

    name: Name
    process: ProcessId
    since: datetime
    port: int
    home: Path
    data_home: Path
    workers: int = 0

    @property
    def api(self) -> str:
        """The address of the server's API."""
        return api_of(self.port)

    @property
    def alive(self) -> bool:
        """Whether the process runs on this host."""
        return self.process.is_alive() is True


def api_of(port: int) -> str:
    """Return the address of the API on a port of this machine."""
    return f"http://127.0.0.1:{port}/api"


def find(name: Name) -> Service | None:
    """Return the record of a process that should run, alive or not."""
    return find_record(_record_file(name), Service) or _of_older_version(name)


def log_file(name: str) -> Path:
    """Return the log of a process."""
    return state_folder() / f"{name}.log"


def announce(name: Name, port: int, home: Path, workers: int = 0) -> None:
    """Record the calling process as the server or the worker."""
    found = Service(
        name=name, process=ProcessId.current(), since=datetime.now(UTC), port=port, home=home, data_home=data_home(),
        workers=workers,
    )  # fmt: skip
    write_record(_record_file(name), found)


def forget(name: Name) -> None:
    """Remove the record of a process that need not run any more."""
    _record_file(name).unlink(missing_ok=True)
    (state_folder() / _OLD).unlink(missing_ok=True)


def start(name: Name, port: int, home: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one, with its output in the log file."""
    log = log_file(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    rotate(log)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", f"flows.deploy.{name}", "--port", str(port), "--log", str(log), *options],
            cwd=ROOT, env=environment(api_of(port), home), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, preexec_fn=_default_sigint,
        )  # fmt: skip


def failed_to_start(name: Name, process: subprocess.Popen[bytes]) -> CpbError:
    """Return the error for a process that ended, or did not get ready in time."""
    code = process.poll()
    how = f"ended with code {code}" if code is not None else "is not ready in time"
    return CpbError(
        f"the Prefect {name} {how}: {last_lines(log_file(name))} (log: {log_file(name)})",
        code=f"{name}-not-started",
    )


def stop(process: ProcessId, grace_s: float = 30) -> bool:
    """End a process with its children: SIGINT, after `grace_s` SIGTERM, then SIGKILL; return whether it was alive."""
    try:
        family = [(first := psutil.Process(process.pid)), *first.children(recursive=True)]
        if process.is_alive() is not True:
            return False
        first.send_signal(signal.SIGINT)
    except psutil.NoSuchProcess:
        return False
    until(lambda: not _running([first]), grace_s)
    for member in _running(family):
        with suppress(psutil.NoSuchProcess):
            member.terminate()
    until(lambda: not _running(family), 5)
    for member in _running(family):
        with suppress(psutil.NoSuchProcess):
            member.kill()
    until(lambda: not _running(family), 5)
    return True


def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until the condition holds; False where it does not in time."""
    waiting = Retrying(
        retry=retry_if_result(lambda met: not met), stop=stop_after_delay(timeout_s), wait=wait_fixed(_POLL_S)
    )
    try:
        return waiting(condition)
    except RetryError:
        return False


def _running(family: list[psutil.Process]) -> list[psutil.Process]:
    """Return those that run. A zombie does not: in a container its parent may never reap it."""
    found = []
    for member in family:
        with suppress(psutil.NoSuchProcess):
            if member.is_running() and member.status() != psutil.STATUS_ZOMBIE:
                found.append(member)
    return found


def _default_sigint() -> None:
    # A background job of a script inherits SIGINT as ignored, and Prefect's processes would then never stop.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _record_file(name: Name) -> Path:
    return state_folder() / f"{name}.json"


_OLD = "deploy.json"


def _of_older_version(name: Name) -> Service | None:
    """Return a process that cpb 0.1 recorded: its server asks for no password, so `up` and `down` must find it."""
    path = state_folder() / _OLD
    if not path.exists():
        return None
    state = read_json(path)
    for old in state["processes"]:
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if old["name"] == name and abs(psutil.Process(old["pid"]).create_time() - old["started"]) < 1:
                since = datetime.fromtimestamp(old["started"], UTC)
                return Service(
                    name=name, process=ProcessId.of(old["pid"]), since=since, port=state["port"], home=prefect_home(),
                    data_home=data_home(),
                )  # fmt: skip
    return None
