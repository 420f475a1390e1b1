"""Shards as tasks of a Ray cluster, which places them, assigns GPUs, and repeats those whose node was lost.

The command runs on a machine of the cluster, usually its head; without `RAY_ADDRESS` a cluster of this machine is
started for it. A shard's features go to its node through Ray's object store, and its files come back as the task's
value: nodes keep nothing, and only the command writes into the home. A lost node costs its shard, which another node
trains again from the start: checkpoints that travel cost more code than a shard costs time, minutes by design.

Anyone with Ray's token can run code on every machine of the cluster, so its file must be readable by its owner only.
"""

import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import CpbError, UsageError
from schemas.handover import ShardJob, ShardResult
from schemas.run import RunSpec
from tasks.running.cores import Cores, usable_cores
from tasks.running.progress import reporting
from tasks.storage.files import write_bytes, write_secret
from tasks.storage.folders import new_folder
from tasks.storage.interrupts import check_interrupted
from tasks.storage.locks import locked
from tasks.training.fleet_progress import FleetProgress
from tasks.training.gpus import visible_gpus
from tasks.training.plan import memory_bytes, training_code
from tasks.training.shard import CHECKPOINTS, EPOCHS, JOB, LOCK, LOG, RESULT, prepare, read_result
from tasks.training.trainers import Slots, plan_slots, run_trainer

ADDRESS = "RAY_ADDRESS"
"""Ray's variable, HOST:PORT of a cluster's head: if set, runs without a named engine train there.

Ray's `auto` is not used: it tries every cluster on the machine, including those of other users and dead clusters.
"""

AUTH_MODE, TOKEN, TOKEN_FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"

HERE = ("", "local")
"""Addresses for a cluster started on this machine for one command."""

MAX_RETRIES = 3
"""Ray's retries of a shard whose node was lost."""

MIN_CALLS = 64
"""Shards submitted at once on a small cluster; on a larger one twice as many as it trains at once. Each has a thread
here, and its features in Ray's object store."""

_CONNECT_S, _POLL_S = 5.0, 0.3
_CANCEL_S = 1.5
"""Maximum seconds for a cancelled task to end its trainer: Ctrl-C takes 3 s in total."""

Files = dict[str, NDArray[np.uint8]]
"""Contents of files by path below a folder, as arrays: Ray transfers arrays without copying."""


def check_cluster() -> None:
    """Check the cluster's address and token, and whether something listens there: Ray would wait for minutes.

    Makes the token of a cluster on this machine if there is none: Ray would make it readable by all users.

    Raises:
        UsageError: the address is invalid; it is not shown, it may hold a password.
        CpbError: nothing responds at the address, or there is no token, or other users can read it.
    """
    address = os.environ.get(ADDRESS, "")
    if address not in HERE:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or {"/", "@"} & {*host}:
            message = f"{ADDRESS} is not HOST:PORT of a cluster's head, as in 10.0.0.5:6379"
            raise UsageError(message, code="ray-address", field=ADDRESS)
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise _unreachable(error) from error
    if os.environ.get(AUTH_MODE, "token") != "token" or os.environ.get(TOKEN):
        return
    path = Path(os.environ.get(TOKEN_FILE) or "~/.ray/auth_token").expanduser()
    if not path.exists() and address in HERE:
        write_secret(path, secrets.token_hex(32))
    elif not path.exists() or path.stat().st_mode & 0o077:
        raise CpbError(
            f"Ray's token {path} must be there with mode 600, as whoever reads it can run code on the cluster: "
            "copy it from the head, or make a new one",
            code="ray-token",
            field=str(path),
        )


def _unreachable(error: Exception) -> CpbError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return CpbError(
        f"the Ray cluster {os.environ.get(ADDRESS) or 'of this machine'} cannot be used ({lines[0]}); start it as "
        "docs/cluster.md says, with the same Ray, Python and token on every machine, or train with --engine local",
        code="ray-unreachable",
        field=ADDRESS,
    )


@contextmanager
def connected(spec: RunSpec) -> Iterator["RayEngine"]:
    """Connect to the cluster, and disconnect at the end of the block, which ends running tasks.

    Raises:
        CpbError: the cluster cannot be used, or none of its nodes can train on the run's device.
    """
    check_cluster()
    os.environ.setdefault(AUTH_MODE, "token")  # read when Ray is imported
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    address, on_sigterm = os.environ.get(ADDRESS, ""), signal.getsignal(signal.SIGTERM)
    with redirect_stdout(sys.stderr):  # stdout is for results
        try:
            with reporting("connect to the Ray cluster", 0, ""):
                ray.init(
                    address="local" if address in HERE else address,
                    include_dashboard=False if address in HERE else None,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
        except (ray.exceptions.RayError, RuntimeError, ValueError, OSError) as error:
            raise _unreachable(error) from error
        finally:  # Ray's own handler prints machine code and exits with 15
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, on_sigterm)
        try:
            yield RayEngine(ray, spec)
        finally:
            ray.shutdown()


class RayEngine:
    """A connected cluster as the engine of a run: does what `LocalEngine` does."""

    def __init__(self, ray: Any, spec: RunSpec) -> None:
        self._ray, self._home, self._threads = ray, spec.scope.home.absolute(), 1
        self._reading = threading.Lock()
        self.cores = Cores(usable_cores())
        # "auto" is decided by the cluster, not by this machine, which may be a laptop without a GPU.
        self.gpus = spec.device != "cpu" and (
            spec.device != "auto" or any(n.get("GPU") for n in self._nodes())
        )
        self._check_fits({"CPU": 1, "GPU": int(self.gpus)})

    def _nodes(self) -> list[dict[str, float]]:
        """Return the resources of each node, by Ray's names; memory in bytes."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _check_fits(self, needed: dict[str, float]) -> None:
        """Raise `CpbError` if no node is large enough: Ray would wait forever."""
        if not any(all(node.get(name, 0) >= n for name, n in needed.items()) for node in self._nodes()):
            wanted = ", ".join(f"{name} {number:,}" for name, number in needed.items() if number)
            raise CpbError(
                f"no node of the Ray cluster has {wanted} (memory in bytes): add one, or train fewer candles (since) "
                "or on another device",
                code="ray-resources",
            )

    def plan(self, shards: int) -> int:
        """Prepare for a plan of `shards` shards; return how many to submit at once."""
        nodes = self._nodes()
        # As on this machine: bits depend on the number of threads, and must not on where a shard trains. A node with
        # fewer cores would never be given a task that asks for more.
        self._threads = min(plan_slots("cpu", shards).threads, int(max(node.get("CPU", 0) for node in nodes)))
        # Twice as many as it trains: the next shard's features travel while one trains.
        at_once = sum(
            node.get("GPU", 0) if self.gpus else node.get("CPU", 0) // self._threads for node in nodes
        )
        return min(shards, max(MIN_CALLS, 2 * int(at_once)))

    def run(self, job: ShardJob, root: Path, timeout_s: float, progress: FleetProgress) -> ShardResult:
        """Train a shard on the cluster: skipped if done, else with its files from and to this machine."""
        folder = prepare(root, job)
        progress.begin(job, folder)
        if not (folder / RESULT).exists():
            progress.waiting("on the Ray cluster")
            files, error = self._train(job, folder, timeout_s, progress.name)
            if LOG in files:
                write_bytes(folder / LOG, files[LOG].data)
            if error:
                raise error
            keep_result(folder, files)
        return read_result(folder)

    def _train(
        self, job: ShardJob, folder: Path, timeout_s: float, fleet: str
    ) -> tuple[Files, CpbError | None]:
        """Return what `train_shard` returns on a node; raises `CpbError` with Ray's reason if Ray gives up."""
        cpus, gpus, memory = self._threads, int(self.gpus), memory_bytes(job)
        self._check_fits({"CPU": cpus, "GPU": gpus, "memory": memory})
        task = self._ray.remote(train_shard).options(
            num_cpus=cpus, num_gpus=gpus, memory=memory, max_retries=MAX_RETRIES, name=f"train {fleet}"
        )
        # Paths relative to the home: the node has one of its own, and jobs name features below it.
        key, errors = folder.absolute().relative_to(self._home).as_posix(), self._ray.exceptions
        # A missing file is left out: the trainer then reports it, as on this machine.
        names = [f"{key}/{JOB}", *sorted({member.features.path for member in job.members})]
        with self._reading:  # one shard's files at a time are in this process's memory
            inputs = read_files(self._home, names)
            value = task.remote(inputs, key, cpus, gpus, timeout_s, environment())
        try:
            while not self._ray.wait([value], timeout=_POLL_S)[0]:
                check_interrupted()
            return self._ray.get(value)  # type: ignore[no-any-return]
        except errors.RayTaskError:  # a defect of cpb, with its traceback
            raise
        except errors.RayError as error:
            reason = " ".join(str(error).split())
            raise CpbError(f"{type(error).__name__} of the Ray cluster: {reason}", code="ray") from error
        except BaseException:
            self._ray.cancel(value)
            self._ray.wait([value], timeout=_CANCEL_S)
            raise

    def close(self) -> None:
        """Disconnect: from now on, losing the head does not end this process."""
        self._ray.shutdown()


def environment() -> str:
    """Return what must be equal on all machines for equal results; Ray compares itself and Python."""
    return f"torch {version('torch').partition('+')[0]} and cpb's code {training_code()}"


def train_shard(
    inputs: Files, key: str, threads: int, gpus: int, timeout_s: float, expected: str
) -> tuple[Files, CpbError | None]:
    """Train a shard on this node, in a temporary folder and by the same process as on one machine.

    Args:
        inputs: job and features, by their path below a home.
        key: the shard's path below any home, such as `sim/fleets/KEY`.
        expected: the driver's `environment`.

    Returns:
        The files of its folder that the driver keeps, and the error that ended it, which names the node.
    """
    host, error = socket.gethostname(), None
    if (here := environment()) != expected:
        return {}, CpbError(
            f"node {host} has {here} instead of {expected}: install the same", code="versions"
        )
    with tempfile.TemporaryDirectory(prefix="cpb-shard-") as place:
        folder = Path(place) / key
        try:
            write_files(Path(place), inputs)
            run_trainer(folder, Slots(visible_gpus() if gpus else (), 1, threads), timeout_s)
        except (CpbError, OSError) as failure:
            message = f"node {host}: {str(failure).replace(f'{place}/', '')}"
            error = CpbError(message, code="node")
            if isinstance(failure, CpbError):
                error = type(failure)(message, code=failure.code)
        paths = (path for path in (folder / "members").rglob("*") if path.is_file())
        names = [path.relative_to(folder).as_posix() for path in paths]
        return read_files(folder, [*names, LOG, RESULT]), error


def read_files(folder: Path, names: Iterable[str]) -> Files:
    """Return the files of these names below a folder; missing files are left out."""
    files = {}
    for name in names:
        with suppress(FileNotFoundError):
            files[name] = np.fromfile(folder / name, np.uint8)
    return files


def write_files(folder: Path, files: Files) -> None:
    """Write files, not atomically, below a folder that has no readers yet."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        content.tofile(folder / name)


def keep_result(folder: Path, files: Files) -> None:
    """Write a finished shard's files from its node into its folder, complete with the result or not at all."""
    with locked(folder / LOCK):  # a trainer of this machine may be training the same shard
        if (folder / RESULT).exists():
            return
        with new_folder(folder / "members") as draft:
            members = {name: content for name, content in files.items() if name.startswith("members/")}
            write_files(draft, {name.removeprefix("members/"): c for name, c in members.items()})
        write_bytes(folder / RESULT, files[RESULT].data)
        (folder / EPOCHS).unlink(missing_ok=True)
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
