"""The two processes of a deployment, server and worker: started, found again, stopped.

Each writes a record of itself into the state folder when it starts, by hand, by `up` or by systemd alike. A record
says that the process should run: it stays when the process dies, and `down` removes it.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import psutil
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from flows.deploy.project import (
    ROOT,
    api_of,
    data_home,
    environment,
    password_file,
    prefect_home,
    state_folder,
)
from flows.prefect_server import client_of_settings
from schemas.errors import CpbError
from schemas.handover import Record
from tasks.storage.processes import ProcessId
from tasks.storage.records import find_record, write_record

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

T = TypeVar("T")
Name = Literal["server", "worker"]
NAMES: tuple[Name, ...] = ("server", "worker")
_POLL_S = 0.2
PAGE = 200
"""Rows that the server returns to one request, at most."""
MAX_BYTES, MAX_OLD_FILES = 5_000_000, 3
CHECK_EVERY_S = 10.0
"""Length of a log, number of older ones that are kept, and how often a process looks at its own."""


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


def find(name: Name) -> Service | None:
    """Return the record of a process that should run, alive or not."""
    return find_record(record_file(name), Service)


def find_alive(name: Name) -> Service | None:
    """Return the record of a process that runs."""
    found = find(name)
    return found if found and found.alive else None


def log_file(name: str) -> Path:
    """Return the log of a process."""
    return state_folder() / f"{name}.log"


def announce(name: Name, port: int, workers: int = 0) -> None:
    """Record the calling process as the server or the worker."""
    found = Service(
        name=name, process=ProcessId.current(), since=datetime.now(UTC), port=port, home=prefect_home(),
        data_home=data_home(), workers=workers,
    )  # fmt: skip
    write_record(record_file(name), found)


def entry_options(name: Name, about: str | None) -> argparse.Namespace:
    """Return the options of a process's entry point, and keep its log short from now on."""
    parser = argparse.ArgumentParser(prog=f"python -m flows.deploy.{name}", description=about)
    parser.add_argument("--port", type=int, default=4200)
    if name == "worker":
        parser.add_argument("--workers", type=int, default=2, help="flow runs at the same time")
    parser.add_argument(
        "--log", type=Path, help="the file that stdout and stderr go to; its length is limited"
    )
    options = parser.parse_args()
    if options.log:
        cap_log(options.log)
    return options


def start(name: Name, port: int, home: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one, with its output in the log file."""
    log = log_file(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    rotate(log)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", f"flows.deploy.{name}", "--port", str(port), "--log", str(log), *options],
            cwd=ROOT, env=environment(port, home), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
            # A background job of a script inherits SIGINT as ignored, and Prefect's processes would then never stop.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
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
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for member in _running(family):
            with suppress(psutil.NoSuchProcess):
                end(member)
        until(lambda: not _running(family), 5)
    return True


def until(look: Callable[[], T], timeout_s: float) -> T | None:
    """Return what `look` finds, as soon as that is true; None where it is not in time."""
    waiting = Retrying(
        retry=retry_if_result(lambda found: not found), stop=stop_after_delay(timeout_s), wait=wait_fixed(_POLL_S),
        retry_error_callback=lambda _last: None,
    )  # fmt: skip
    return waiting(look)


def _running(family: list[psutil.Process]) -> list[psutil.Process]:
    """Return those that run. A zombie does not: in a container its parent may never reap it."""
    found = []
    for member in family:
        with suppress(psutil.NoSuchProcess):
            if member.is_running() and member.status() != psutil.STATUS_ZOMBIE:
                found.append(member)
    return found


def record_file(name: Name) -> Path:
    """Return the record of a process."""
    return state_folder() / f"{name}.json"


@contextmanager
def client_of(server: Service, timeout_s: float = 30) -> Iterator["SyncPrefectClient"]:
    """Yield a client of this deployment's server.

    Raises:
        CpbError: the server cannot be reached, refuses the password, or answers with an error.
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
    """Return all flow runs that the filters of Prefect's client choose, which the server returns in pages."""
    found: list[FlowRun] = []
    while page := client.read_flow_runs(limit=PAGE, offset=len(found), **filters):
        found += page
        if len(page) < PAGE:
            break
    return found


def cap_log(path: Path) -> None:
    """Keep a log of this process below about `MAX_BYTES`, from a thread, as long as the process lives."""
    threading.Thread(target=_watch, args=(path,), daemon=True, name="log-cap").start()


def rotate(path: Path, max_bytes: int = MAX_BYTES) -> bool:
    """Move the content of a log that is too long to `NAME.1`, older ones to `.2` …; return whether it was.

    A process and all its children write to the same open file. So the file is not renamed, which would need each of
    them to open it again, but copied and cut: they append, and go on at the new end. A pump between process and file
    would block or kill the process when the pump dies. What is written between copy and cut is lost.
    """
    if not path.exists() or path.stat().st_size <= max_bytes:
        return False
    for number in range(MAX_OLD_FILES, 1, -1):
        with suppress(FileNotFoundError):
            _old(path, number - 1).replace(_old(path, number))
    shutil.copyfile(path, _old(path, 1))
    with path.open("r+b") as file:
        file.truncate(0)
    return True


def last_lines(path: Path, count: int = 3) -> str:
    """Return the last lines of a log as one text, for an error message."""
    if not path.exists():
        return "it wrote nothing"
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return " / ".join(line.strip() for line in lines[-count:]) or "it wrote nothing"


def _old(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _watch(path: Path) -> None:
    while True:
        time.sleep(CHECK_EVERY_S)
        with suppress(OSError):  # a full disk must not end the thread: there may be room later
            rotate(path)
