"""A small project of its own, deployed on a real Prefect server with a real worker."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil

from tests.tools import fork_server
from tests.tools.ports import free_port

ROOT = Path(__file__).resolve().parents[2]

DEPLOYMENTS = """
name: probe
pull:
  - prefect.deployments.steps.set_working_directory:
      directory: "{{ $PWD }}"
deployments:
  - name: quick
    entrypoint: probe.py:quick
    work_pool: { name: local-gpu, work_queue_name: forecasts }
    schedules:
      - { cron: "0 0 1 1 *", timezone: UTC }
  - name: slow
    entrypoint: probe.py:slow
    work_pool: { name: local-gpu, work_queue_name: training }
"""

FLOWS = """
import os
import random
import time
from pathlib import Path

from prefect import flow, get_run_logger, task
from prefect.states import Completed, Failed

from flows.console import continue_without_reader, echo


@flow
def quick(text: str = "", number: int = 0, end: str = "Completed"):
    Path(f"quick-{text}-{number}").write_text(os.environ.get("PREFECT_API_AUTH_STRING", ""))
    return Failed(message="as asked") if end == "Failed" else Completed(name=end)


@task
def hold(seconds):
    Path("holding").write_text(str(os.getpid()))
    continue_without_reader()  # as cpb's flows do
    end = time.monotonic() + seconds
    while time.monotonic() < end:  # a run that prints, through both ways
        echo("holding")
        get_run_logger().info("holding")
        time.sleep(0.5)


@flow
def slow(seconds: float = 600):
    hold(seconds)


if __name__ == "__main__":
    slow()
"""


class Deployed:
    """The code of the deployment in a folder of its own, with its own Prefect home, port and store."""

    def __init__(self, folder, whole=False, **env):
        """`whole`: the deployments of the project itself instead of the small ones above; `env`: more settings."""
        self.folder, self.port = folder, free_port()
        self.home = folder / "prefect home"  # a space: paths are quoted everywhere
        self.state = folder / ".cpb"
        self.elsewhere = folder / "elsewhere"
        self.elsewhere.mkdir()
        self.cwd = folder if whole else self.elsewhere
        (folder / "prefect.yaml").write_text((ROOT / "prefect.yaml").read_text() if whole else DEPLOYMENTS)
        (folder / "probe.py").write_text(FLOWS)
        shutil.copytree(ROOT / "flows", folder / "flows", ignore=shutil.ignore_patterns("__pycache__"))
        self.api = f"http://127.0.0.1:{self.port}/api"
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("CPB_", "MLFLOW_TRACKING", "PREFECT_API"))
        }
        path = os.pathsep.join([str(folder), kept.get("PYTHONPATH", "")])  # before any other checkout
        often = {"PREFECT_WORKER_QUERY_SECONDS": "2"}
        self.env = kept | often | {"PREFECT_HOME": str(self.home), "PYTHONPATH": path} | env

        self.programs = folder / "p"
        self.programs.mkdir()
        fork_server.write_clients(self.programs, self.programs / "s")
        self._forking = fork_server.running(self.programs / "s", self.env, folder)
        self._forking.__enter__()

    def cpb(self, *arguments, timeout=300, **env):
        """Run `cpb ARGUMENTS`, for the small project in another folder than the project's.

        By a fork server with this project's settings; where a call has settings of its own, as a Python of its own.
        """
        program = [sys.executable, "-m", "flows.cli"] if env else [self.programs / "cpb"]
        return subprocess.run(
            [*program, *map(str, arguments)],
            cwd=self.cwd,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def prefect(self, *words):
        """Run Prefect's own command line as a client of the server."""
        env = {"PREFECT_API_URL": self.api, "PREFECT_API_AUTH_STRING": self.password}
        return subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *map(str, words)],
            cwd=self.elsewhere,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def json(self, *arguments, code=0, **env):
        """Return the object that `cpb … --json` prints last; `code` is the exit code it must have (None: any)."""
        done = self.cpb(*arguments, "--json", **env)
        assert code in (None, done.returncode), done.stdout + done.stderr
        return json.loads(done.stdout.strip().splitlines()[-1])

    def up(self, **env):
        return self.json("deploy", "up", "--port", self.port, **env)

    @property
    def password(self):
        return (self.home / "cpb-api-auth").read_text().strip()

    def ask(self, path, body=None, auth=True, **options):
        """Send one request, with the password or without."""
        credentials = tuple(self.password.split(":", 1)) if auth else None
        method = "POST" if body is not None else "GET"
        for _ in range(10):
            answer = httpx.request(
                method,
                f"{self.api}/{path}",
                json=body,
                auth=credentials,
                timeout=30,
                trust_env=False,
                **options,
            )
            # 503: its database is locked by another writer; Prefect's own client asks again, too
            if answer.status_code != 503:
                break
            time.sleep(1)
        return answer

    def runs(self, *states, **filters):
        some = {"state": {"type": {"any_": list(states)}}} if states else {}
        answer = self.ask("flow_runs/filter", {"flow_runs": some, **filters})
        answer.raise_for_status()
        return answer.json()

    def begin(self):
        """Start the slow flow, wait until it holds the GPU slot, and return its run's id and its process."""
        made = self.json("deploy", "run", "slow/slow")
        return made["flow_run_id"], self.holder()

    def holder(self):
        """Return the process of the running task, once the server knows of its task run."""
        holding = self.folder / "holding"
        wait_for(lambda: holding.exists() and holding.read_text())
        running = {"task_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}
        wait_for(lambda: self.ask("task_runs/filter", running).json())  # told as an event, a moment later
        pid = int(holding.read_text())
        holding.unlink()
        return pid

    def slots(self):
        """Return how many slots of the queues' limits are taken: those of runs that have not ended."""
        return len(self.runs("RUNNING", "PENDING", "CANCELLING"))

    def end_of(self, flow_run_id):
        """Return how a run ended, which of its task runs are still open, and the slots that are taken now."""
        tasks = self.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run_id]}}}).json()
        assert tasks
        names = [
            task["state"]["name"] for task in tasks if task["state"]["name"] not in ("Crashed", "Cancelled")
        ]
        return self.run_of(flow_run_id)["state"]["name"], names, self.slots()

    def run_of(self, flow_run_id):
        answer = self.ask(f"flow_runs/{flow_run_id}")
        answer.raise_for_status()
        return answer.json()

    def log_of(self, flow_run_id):
        """Return the lines of a run's log, once its last line is there."""
        body = {"logs": {"flow_run_id": {"any_": [flow_run_id]}}}
        wait_for(lambda: any("Finished" in line["message"] for line in self.ask("logs/filter", body).json()))
        return self.ask("logs/filter", body).json()

    def pid(self, name):
        return self.json("deploy", "status", code=None)["pids"][name]

    def processes(self):
        """Return all processes that were started for this project."""
        running = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("PREFECT_HOME") == str(self.home) and process.pid != os.getpid()
                if ours and fork_server.__file__ not in process.cmdline():
                    running.append(process)
            except (psutil.AccessDenied, psutil.NoSuchProcess):
                continue
        return running

    def close(self):
        self.cpb("deploy", "down")
        left = self.processes()
        for process in left:
            process.kill()
        self._forking.__exit__(None, None, None)
        return left


def wait_for(condition, seconds=120, every=0.3):
    """Return the first true value of `condition`, or fail."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(every)
    raise AssertionError(f"not within {seconds} s")
