"""Shards as Ray tasks: with one CPU per trainer thread, memory, and a GPU if the plan is for GPUs.

A shard's features go to its node through Ray's object store, its files return as the task's result, and only this
process writes them into the home. After a lost node or a dead trainer, Ray retries the shard on any node with free
resources, from the newest checkpoint in the home.
"""

import logging
import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from schemas.errors import CpbError, DamagedError
from schemas.handover import ShardJob, ShardResult
from tasks.storage.files import DiskFull, new_folder, replacing, write_bytes
from tasks.storage.locks import Interrupted, locked, pause
from tasks.storage.model_folder import NEEDED
from tasks.storage.records import parse_record
from tasks.training import ray_node
from tasks.training.files import (
    CHECKPOINTS,
    EPOCHS,
    JOB,
    LOG,
    RESULT,
    damaged_files,
    earlier_copy,
    prepare,
    read_result,
)
from tasks.training.plan import memory_bytes
from tasks.training.progress import FleetProgress
from tasks.training.ray_address import ADDRESS, HERE, Head
from tasks.training.ray_node import Files, Report, read_files, write_files
from tasks.training.runner import EngineLost, TrainerDied

log = logging.getLogger("cpb")

MAX_RETRIES = 3
"""Ray's retries of a shard whose node was lost or whose trainer died; each continues from its checkpoints."""

CHECKPOINT_S = 60.0
"""Seconds between two checkpoints sent by a node; a lost node costs its shard this time plus one epoch."""

TAKE_S = 0.3
"""Minimum seconds between two reads of the board, over all waiting threads."""

_CANCEL_S = 1.5
"""Maximum seconds for a cancelled task to end its trainer: Ctrl-C takes 3 s in total."""


class RayExecutor:
    """Trains shards on the cluster that `ray` is connected to; see `Executor`.

    Args:
        home: this machine's home, an absolute path.
        largest: the maximum of each Ray resource on any single node.
        threads: CPU threads per shard.
        gpu: whether a shard uses a GPU.
        calls: shards submitted to Ray simultaneously, with their features; each has a thread here.
    """

    retries = 0

    def __init__(
        self, ray: Any, home: Path, largest: dict[str, float], *, threads: int, gpu: bool, calls: int,
    ) -> None:  # fmt: skip
        self.calls = calls
        self._ray, self._home, self._largest = ray, home, largest
        self._threads, self._gpu = threads, gpu
        self._versions = ray_node.versions()
        self._reader = BoardReader(ray, home)
        self._head = Head(ray.get_runtime_context().gcs_address)
        self._putting = threading.Lock()
        self._full: set[str] = set()
        """Ids of nodes whose disk was full."""
        self._started: set[str] = set()
        """Keys of shards that a node has started."""

    def run(self, job: ShardJob, root: Path, timeout_s: float, progress: FleetProgress) -> ShardResult:
        """Train a shard on the cluster; see `Executor`."""
        folder = prepare(root, job)
        if not (folder / RESULT).exists():
            self._check_fits(job)
            progress.waiting("waiting for a free place in the Ray cluster")
            order = ray_node.Order(
                key=folder.absolute().relative_to(self._home).as_posix(), home=str(self._home), gpu=self._gpu,
                versions=self._versions, threads=self._threads, timeout_s=timeout_s, checkpoint_s=CHECKPOINT_S,
            )  # fmt: skip
            keep_result(folder, self._train(order, job, progress))
        return read_result(folder)

    def _check_fits(self, job: ShardJob) -> None:
        """Raise `CpbError` if no node is large enough: Ray would wait forever."""
        needed, most = memory_bytes(job), self._largest["memory"]
        if needed > most:
            raise CpbError(
                f"a shard of {job.architecture} needs about {needed / 1e9:.1f} GB and the largest Ray node "
                f"gives {most / 1e9:.1f} GB: train fewer candles (since), or add a larger node",
                code="ray-memory",
            )

    def _train(self, order: ray_node.Order, job: ShardJob, progress: FleetProgress) -> Files:
        """Train a shard on Ray; if a node's disk was full, train it again on another node."""
        # One at a time: the files of a shard are first read into this process's memory.
        with self._putting, self._noticing_loss():
            inputs = self._ray.put(shard_inputs(self._home, order.key, job))
        while True:
            with self._noticing_loss():
                task = self._submit(order, job, inputs)
            try:
                with self._noticing_loss():
                    return self._wait(task, order.key, job, progress)
            except DiskFull as error:
                if not self._other_nodes(error.field):
                    raise
                log.warning("%s; the shard goes to another node", error)
                self._started.discard(order.key)
            except EngineLost:  # Ray could not cancel anything
                raise
            except BaseException:
                self._cancel(task)
                raise

    def _submit(self, order: ray_node.Order, job: ShardJob, inputs: Any) -> Any:
        options: dict[str, Any] = {
            "num_cpus": self._threads,
            "num_gpus": 1 if self._gpu else 0,
            "memory": memory_bytes(job),
            "max_retries": MAX_RETRIES,
            "retry_exceptions": [TrainerDied],  # lost nodes are always retried
            "name": f"train {job.architecture} {order.key.rpartition('/')[2]}",
        }
        if self._full:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(self._full))})"}
        train = self._ray.remote(ray_node.train_on_node).options(**options)
        return train.remote(order, inputs, self._reader.board)

    def _other_nodes(self, full: str) -> bool:
        """Exclude a node from now on; return whether other nodes are left."""
        self._full.add(full)
        return any(n["Alive"] and n["NodeID"] not in self._full for n in self._ray.nodes())

    def _wait(self, task: Any, key: str, job: ShardJob, progress: FleetProgress) -> Files:
        """Return a task's result, passing on its node's reports meanwhile; raises the task's own error."""
        errors = self._ray.exceptions
        while not self._ray.wait([task], timeout=0)[0]:
            pause(TAKE_S)
            self._tell(key, job, progress)
            if self._head.is_lost():
                raise _lost("its head does not answer")
        try:
            files: Files = self._ray.get(task)
        except errors.RayTaskError as error:
            if isinstance(error.cause, CpbError):
                raise error.cause from None
            raise
        except errors.TaskCancelledError:
            raise Interrupted("the task was cancelled") from None
        except (
            errors.NodeDiedError, errors.WorkerCrashedError, errors.OutOfMemoryError, errors.ObjectLostError
        ) as error:  # fmt: skip
            reason = str(error).strip().splitlines()[0]
            raise TrainerDied(
                f"its node was lost {MAX_RETRIES + 1} times, most recently: {reason}"
            ) from error
        return files

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        """Raise `EngineLost` for Ray's own errors in the block: its head, or its local process, has ended."""
        try:
            yield
        except self._ray.exceptions.RayTaskError:  # the task's own error, a defect of cpb
            raise
        except (self._ray.exceptions.ObjectStoreFullError, self._ray.exceptions.OutOfDiskError) as error:
            raise CpbError(
                "no space left for the features of a shard in Ray's object store: free some on the disk of Ray's "
                "temporary folder (`ray start --temp-dir`), then run the same command again",
                code="ray-objects",
            ) from error
        except self._ray.exceptions.RayError as error:
            raise _lost(type(error).__name__) from error

    def _tell(self, key: str, job: ShardJob, progress: FleetProgress) -> None:
        """Pass on the node's new reports of a shard."""
        for kind, value in self._reader.take(key):
            if kind == "start":
                if key in self._started:
                    log.warning(
                        "%s is trained once more, from its newest checkpoint: its trainer or its node was lost",
                        key,
                    )
                self._started.add(key)
                progress.starting()
            elif kind == "line":
                log.log(*value)
            else:
                progress.take(job, value)

    def _cancel(self, task: Any) -> None:
        self._ray.cancel(task, force=False)
        self._ray.wait([task], timeout=_CANCEL_S)


def _lost(reason: str) -> EngineLost:
    address = os.environ.get(ADDRESS, "")
    where, first = (address, "start it again, then ") if address not in HERE else ("of this command", "")
    return EngineLost(
        f"the Ray cluster {where} was lost ({reason}); {first}run the same command: what is finished is not "
        "trained again",
        field=ADDRESS,
    )


class BoardReader:
    """The driver's side of a `Board`: fetches all reports together and gives each thread those of its own shard."""

    def __init__(self, ray: Any, home: Path) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
        self._ray = ray
        board = ray.remote(num_cpus=0)(ray_node.Board)
        self.board = board.options(scheduling_strategy=here).remote(str(home))
        self._lock, self._asked = threading.Lock(), 0.0
        self._found: dict[str, list[Report]] = defaultdict(list)

    def take(self, key: str) -> list[Report]:
        """Return the new reports of one shard, oldest first."""
        with self._lock:
            if time.monotonic() - self._asked >= TAKE_S:
                for one, reports in self._ray.get(self.board.take.remote()).items():
                    self._found[one] += reports
                self._asked = time.monotonic()
            return self._found.pop(key, [])


def shard_inputs(home: Path, key: str, job: ShardJob) -> Files:
    """Return the files that a node needs for a shard: its job, its series' features, and models to start from.

    A missing file is left out: the trainer then reports it, as on this machine.
    """
    files = read_files(home, [f"{key}/{JOB}", *sorted({member.features.path for member in job.members})])
    for folder in {member.continues for member in job.members if member.continues}:
        model = read_files(home / folder, NEEDED)
        files |= {(earlier_copy(folder) / name).as_posix(): content for name, content in model.items()}
    return files


def keep_result(folder: Path, files: Files) -> None:
    """Write a finished shard's files from its node into its folder, complete with the result or not at all.

    Raises:
        DamagedError: a file differs from the file that the node's trainer wrote.
        DiskFull: no space left in the home.
    """
    with locked(folder / "lock"):  # a trainer of this machine may be training the same shard
        if (folder / RESULT).exists():
            return
        with new_folder(folder / "members") as draft:
            for name, content in files.items():
                if name.startswith("members/"):
                    write_files(draft, {name.removeprefix("members/"): content})
        write_bytes(folder / LOG, files[LOG].data)
        with replacing(folder / RESULT) as record:
            record.write_bytes(files[RESULT].data)
            for path, reason in damaged_files(folder, parse_record(record, ShardResult, of=folder.name)):
                raise DamagedError(
                    f"{path} arrived damaged from its node ({reason}); run the same command again",
                    field=str(path),
                )
        (folder / EPOCHS).unlink(missing_ok=True)
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
