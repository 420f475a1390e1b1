"""Shards as Ray tasks: with as many CPUs as the trainer has threads, memory, and a GPU where the plan is for GPUs.

A shard's own features go to its node by Ray's object store, its files come back as the task's result, and this process
alone writes them into the home. A node that is lost, or a trainer that dies, is retried by Ray, on whichever node has
room, from the newest checkpoint that the home has.
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
from tasks.storage.locks import locked
from tasks.storage.model_folder import NEEDED
from tasks.storage.records import parse_record
from tasks.storage.waiting import Interrupted, pause
from tasks.training import ray_node
from tasks.training.files import (
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
"""How often Ray trains a shard again whose node was lost or whose trainer died; each goes on from its checkpoints."""

CHECKPOINT_S = 60.0
"""Seconds between two checkpoints that a node sends; a lost node costs its shard this much and one epoch."""

TAKE_S = 0.3
"""Shortest time between two questions to the board, of all waiting threads together."""

_CANCEL_S = 1.5
"""Longest wait for a cancelled task to end its trainer: Ctrl-C takes 3 s in all."""


class RayExecutor:
    """Trains shards on the cluster that `ray` is connected to; see `Executor`.

    Args:
        home: this machine's, absolute.
        largest: of each of Ray's resources, the most that one node has.
        threads: of each shard.
        gpu: a shard takes a GPU.
        calls: shards that are handed to Ray at once, with their features; each has a thread here.
    """

    retries = 0
    on_gpus = False

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
        """Keys of shards that a node has begun with."""

    def run(self, job: ShardJob, root: Path, timeout_s: float, progress: FleetProgress) -> ShardResult:
        """Train and judge a shard on the cluster; see `Executor`."""
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
        """Raise `CpbError` where no node is large enough: Ray would wait for one for ever."""
        needed, most = memory_bytes(job), self._largest["memory"]
        if needed > most:
            raise CpbError(
                f"a shard of {job.architecture} needs about {needed / 1e9:.1f} GB and the largest Ray node "
                f"gives {most / 1e9:.1f} GB: train fewer candles (since), or add a larger node",
                code="ray-memory",
            )

    def _train(self, order: ray_node.Order, job: ShardJob, progress: FleetProgress) -> Files:
        """Let Ray train it; once more elsewhere where a node's disk was full."""
        # One by one: the files of a shard are read into this process's memory first.
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
            except EngineLost:  # Ray could cancel nothing
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
            "retry_exceptions": [TrainerDied],  # a lost node it retries anyway
            "name": f"train {job.architecture} {order.key.rpartition('/')[2]}",
        }
        if self._full:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(self._full))})"}
        train = self._ray.remote(ray_node.train_on_node).options(**options)
        return train.remote(order, inputs, self._reader.board)

    def _other_nodes(self, full: str) -> bool:
        """Leave out a node from now on; whether others are left."""
        self._full.add(full)
        return any(n["Alive"] and n["NodeID"] not in self._full for n in self._ray.nodes())

    def _wait(self, task: Any, key: str, job: ShardJob, progress: FleetProgress) -> Files:
        """Return what a task returns, telling what its node reports meanwhile; raises the task's own error."""
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
                f"its node was lost {MAX_RETRIES + 1} times, the last time so: {reason}"
            ) from error
        return files

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        """Raise `EngineLost` for what Ray itself meets in the block: its head, or this machine's part, has ended."""
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
        """Tell what the node has reported of a shard since the last time."""
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
    """The driver's side of a `Board`: gives each thread what is new of its own shard, and asks for all together."""

    def __init__(self, ray: Any, home: Path) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
        self._ray = ray
        board = ray.remote(num_cpus=0)(ray_node.Board)
        self.board = board.options(scheduling_strategy=here).remote(str(home))
        self._lock, self._asked = threading.Lock(), 0.0
        self._found: dict[str, list[Report]] = defaultdict(list)

    def take(self, key: str) -> list[Report]:
        """Return what is new of one shard, oldest first."""
        with self._lock:
            if time.monotonic() - self._asked >= TAKE_S:
                for one, reports in self._ray.get(self.board.take.remote()).items():
                    self._found[one] += reports
                self._asked = time.monotonic()
            return self._found.pop(key, [])


def shard_inputs(home: Path, key: str, job: ShardJob) -> Files:
    """Return what a node needs of a home for a shard: its job, its series' features, and models to start from.

    A file that is missing is left out: then the trainer names it, as it does on this machine.
    """
    files = read_files(home, [f"{key}/{JOB}", *sorted({member.features.path for member in job.members})])
    for folder in {member.continues for member in job.members if member.continues}:
        model = read_files(home / folder, NEEDED)
        files |= {(earlier_copy(folder) / name).as_posix(): content for name, content in model.items()}
    return files


def keep_result(folder: Path, files: Files) -> None:
    """Write a finished shard, as its node sent it, into its folder of the home: with its result, whole or not at all.

    Raises:
        DamagedError: a file is not what the node's trainer wrote.
        DiskFull: no space left in the home.
    """
    with locked(folder / "lock"):  # a trainer of this machine may be at work on the same shard
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
                    f"{path} came damaged from its node ({reason}); run the same command again",
                    field=str(path),
                )
        (folder / EPOCHS).unlink(missing_ok=True)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
