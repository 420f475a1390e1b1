"""A Prefect server, a work pool, the deployments and a worker on this machine: started, found again, stopped.

What runs is written to `.cpb/deploy.json`; a process counts as ours only if its start time still matches.
"""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import URLError

import psutil

from schemas.errors import CpbError, UsageError
from tasks.storage.files import read_json, write_json
from tasks.training.launch import count_gpus

log = logging.getLogger(__name__)

POOL = "local-gpu"
STATE = Path(".cpb/deploy.json")
NAMES = {
    "train-all": "train-all/train-all",
    "nightly": "train-all/nightly",
    "hourly": "forecast/hourly",
    "forecast": "forecast/hourly",
}
"""Short names of the deployments; Prefect itself only takes FLOW/DEPLOYMENT."""

_QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # The default keeps leases in memory: a slot whose holder was killed would stay taken over a restart.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}


def up(port: int, workers: int = 2, start_s: float = 120) -> dict[str, Any]:
    """Start server, pool, GPU limit, deployments and worker; return the state that `down` stops.

    Raises:
        CpbError: something is running already, the port is taken, or a part does not start.
    """
    if running():
        raise CpbError(f"already up ({STATE}); stop it with `cpb deploy down` first")
    if not Path("prefect.yaml").exists():
        raise CpbError("there is no prefect.yaml here; run `cpb deploy up` in the project's folder")
    if _answers(_url(port)) or _taken(port):
        raise CpbError(f"port {port} is taken by another program; choose one with --port")
    STATE.parent.mkdir(exist_ok=True)
    server = _start("server", ["server", "start", "--host", "127.0.0.1", "--port", str(port)], port)
    state: dict[str, Any] = {"port": port, "api": f"{_url(port)}/api", "processes": [_identity(server)]}
    write_json(STATE, state)
    try:
        _await_health(server, port, start_s)
        _prefect(port, ["work-pool", "create", POOL, "--type", "process", "--overwrite"])
        _gpu_limit(port)
        _prefect(port, ["deploy", "--all"])
        _drop_missed(port)
        worker = _start("worker", ["worker", "start", "--pool", POOL, "--limit", str(workers)], port)
        state["processes"].insert(0, _identity(worker))
        write_json(STATE, state)
    except BaseException:
        down()
        raise
    return state


@dataclass(frozen=True)
class Started:
    """A flow run that a deployment was asked for: its id on the server, and what Prefect said."""

    deployment: str
    flow_run_id: str | None
    said: str


def run(name: str, parameters: Sequence[str] = (), watch: bool = False) -> Started:
    """Trigger a deployment by its short or full name.

    Raises:
        UsageError: a name that cannot be a deployment's.
        CpbError: nothing is up, Prefect refuses, or the watched run fails.
    """
    full = NAMES.get(name, name)
    if "/" not in full:
        raise UsageError(f"deployment {name!r} is unknown: choose from {', '.join(NAMES)} or FLOW/DEPLOYMENT")
    state = running()
    port = state["port"] if state else None
    if port is None and not os.environ.get("PREFECT_API_URL"):
        raise CpbError("nothing is up; start it with `cpb deploy up`, or set PREFECT_API_URL to your server")
    options = [part for parameter in parameters for part in ("--param", parameter)]
    said = _prefect(port, ["deployment", "run", full, *options, *(["--watch"] if watch else [])]).strip()
    found = re.search(r"UUID: ([0-9a-f-]{36})", said)
    return Started(full, found.group(1) if found else None, said)


def down(grace_s: float = 30) -> list[str]:
    """Stop worker and server, worker first, and return the names of what was stopped."""
    if not STATE.exists():
        return []
    stopped = []
    for identity in read_json(STATE)["processes"]:
        process = _find(identity)
        if process:
            _stop(process, grace_s)
            stopped.append(identity["name"])
    STATE.unlink()
    return stopped


def running() -> dict[str, Any] | None:
    """Return the recorded state while any of its processes lives, else None."""
    if not STATE.exists():
        return None
    state: dict[str, Any] = read_json(STATE)
    return state if any(_find(p) for p in state["processes"]) else None


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _environment(port: int | None) -> dict[str, str]:
    env = os.environ | _QUIET | {"PWD": str(Path.cwd())}
    return env | {"PREFECT_API_URL": f"{_url(port)}/api"} if port else env


def _start(name: str, arguments: list[str], port: int) -> subprocess.Popen[bytes]:
    with (STATE.parent / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "prefect", *arguments],
            env=_environment(port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_default_sigint,
        )


def _default_sigint() -> None:
    # A background job of a script inherits SIGINT as ignored, and Prefect's processes then never stop.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _prefect(port: int | None, arguments: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
        env=_environment(port), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        said = " ".join((done.stderr + done.stdout).split()) or "no output"
        raise CpbError(f"`prefect {' '.join(arguments[:3])}` failed: {said[-400:]}")
    return done.stdout


def _gpu_limit(port: int) -> None:
    """Create the limit that trainings queue on; a strict acquire fails where it does not exist."""
    limit = str(max(1, count_gpus()))
    if '"gpu"' in _prefect(port, ["gcl", "ls", "--output", "json"]):
        _prefect(port, ["gcl", "update", "gpu", "--limit", limit])
    else:
        _prefect(port, ["gcl", "create", "gpu", "--limit", limit])


def _drop_missed(port: int) -> None:
    """Delete runs that schedules had due while nothing was up: a worker would do all of them, one after another."""
    due = {
        "flow_runs": {
            "state": {"type": {"any_": ["SCHEDULED"]}},
            "expected_start_time": {"before_": datetime.now(UTC).isoformat()},
        },
        "work_pools": {"name": {"any_": [POOL]}},
    }
    missed = [run for run in _ask(port, "POST", "flow_runs/filter", due) if run["auto_scheduled"]]
    for one in missed:
        _ask(port, "DELETE", f"flow_runs/{one['id']}")
    if missed:
        log.warning("%d scheduled runs were missed while nothing was up; they are dropped", len(missed))


def _ask(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(
        f"{_url(port)}/api/{path}", data, {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def _await_health(server: subprocess.Popen[bytes], port: int, start_s: float) -> None:
    deadline = time.monotonic() + start_s
    while not _answers(_url(port)):
        if server.poll() is not None or time.monotonic() > deadline:
            raise CpbError(f"the Prefect server did not start; see {STATE.parent / 'server.log'}")
        time.sleep(0.3)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _taken(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _identity(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    name = "worker" if "worker" in process.args else "server"  # type: ignore[operator]
    return {"name": name, "pid": process.pid, "started": psutil.Process(process.pid).create_time()}


def _find(identity: dict[str, Any]) -> psutil.Process | None:
    try:
        process = psutil.Process(identity["pid"])
        same = abs(process.create_time() - identity["started"]) < 1
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _stop(process: psutil.Process, grace_s: float) -> None:
    family = [process, *process.children(recursive=True)]
    process.send_signal(signal.SIGINT)
    _, alive = psutil.wait_procs([process], timeout=grace_s)
    for left in [p for p in family if p.is_running()] if alive else [p for p in family[1:] if p.is_running()]:
        left.terminate()
    _, alive = psutil.wait_procs(family, timeout=5)
    for left in alive:
        left.kill()
