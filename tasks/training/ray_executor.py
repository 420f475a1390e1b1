"""Shards as Ray tasks: with as many CPUs as the trainer has threads, memory, and a GPU where the plan is for GPUs.

A node that is lost, or a trainer that dies, is retried by Ray, on whichever node has room. What crosses machines is the
store's; a task returns nothing. Without a store the nodes work in the driver's home.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from schemas.errors import CpbError
from schemas.handover import FleetJob, FleetResult
from tasks.storage.files import DiskFull
from tasks.storage.waiting import Interrupted, pause
from tasks.training import ray_node
from tasks.training.executor import EngineLost
from tasks.training.fleet_files import RESULT, prepare, read_result
from tasks.training.process import TrainerDied
from tasks.training.ray_address import ADDRESS, HERE
from tasks.training.ray_board import TAKE_S, BoardReader
from tasks.training.ray_head import Head
from tasks.training.shards import memory_bytes
from tasks.training.shared_shards import SharedShards, checkpoint_setting
from tasks.training.slots import Slots
from tasks.training.told import ShardTold

log = logging.getLogger("cpb")

MAX_RETRIES = 3
"""How often Ray trains a shard again whose node was lost or whose trainer died; each goes on from its checkpoints."""

MAX_CALLS = 1024
"""Shards that wait in Ray's queue at once; each has a thread here."""

_CANCEL_S = 1.5
"""Longest wait for a cancelled task to end its trainer: Ctrl-C takes 3 s in all."""


class RayExecutor:
    """Trains shards on the cluster that `ray` is connected to; see `Executor`.

    home: this machine's. store: URL of the shared store, None where the nodes work in the home. largest: of each of
    Ray's resources, the most that one node has. threads, gpu: of each shard. shards: of the whole plan.
    """

    retries = 0
    on_gpus = False

    def __init__(
        self, ray: Any, home: Path, store: str | None, largest: dict[str, float], *, threads: int, gpu: bool,
        shards: int, again: bool,
    ) -> None:  # fmt: skip
        self.calls = max(1, min(shards, MAX_CALLS))
        self._ray, self._home, self._store, self._largest = ray, home.absolute(), store, largest
        self._threads, self._gpu, self._again = threads, gpu, again
        self._versions = ray_node.versions()
        self._reader = BoardReader(ray)
        self._head = Head(ray.get_runtime_context().gcs_address)
        self._full: set[str] = set()
        """Ids of nodes whose disk was full."""
        self._started: set[str] = set()
        """Keys of shards that a node has begun with."""

    def run(self, job: FleetJob, root: Path, timeout_s: float, told: ShardTold) -> FleetResult:
        """Train and judge a shard on the cluster; see `Executor`."""
        folder = prepare(root, job)
        shared = SharedShards.of(self._home) if self._store else None
        if not (folder / RESULT).exists() and not (shared and self._again and shared.take_result(folder)):
            self._check_fits(job)
            told.waiting("place in the Ray cluster")
            if shared:
                self._hand_over(shared, folder, job)
            self._train(self._order(folder, timeout_s), job, told)
            if shared and not shared.get_result(folder):
                raise TrainerDied(
                    f"the trained shard {folder.name} is damaged in the store {shared.store.url}"
                )
        return read_result(folder)

    def _check_fits(self, job: FleetJob) -> None:
        """Raise `CpbError` where no node is large enough: Ray would wait for one for ever."""
        needed, most = memory_bytes(job), self._largest["memory"]
        if needed > most:
            raise CpbError(
                f"a shard of {job.architecture} needs about {needed / 1e9:.1f} GB and the largest Ray node "
                f"gives {most / 1e9:.1f} GB: train fewer candles (since), or add a larger node",
                code="ray-memory",
            )

    def _hand_over(self, shared: SharedShards, folder: Path, job: FleetJob) -> None:
        """Put into the store what the node needs; of earlier checkpoints those that this run is to go on from."""
        shared.put_features(job)
        shared.put_job(folder)
        checkpoints = shared.checkpoints(folder, checkpoint_setting(self._slots))
        if not self._again:
            checkpoints.remove()
        checkpoints.put()

    @property
    def _slots(self) -> Slots:
        return Slots(("any",) if self._gpu else (), 1, self._threads)

    def _order(self, folder: Path, timeout_s: float) -> ray_node.Order:
        return ray_node.Order(
            key=folder.absolute().relative_to(self._home).as_posix(), home=str(self._home), store=self._store,
            versions=self._versions, threads=self._threads, gpu=self._gpu, timeout_s=timeout_s, again=self._again,
        )  # fmt: skip

    def _train(self, order: ray_node.Order, job: FleetJob, told: ShardTold) -> None:
        """Let Ray train it; once more elsewhere where a node's disk was full."""
        while True:
            with self._noticing_loss():
                task = self._submit(order, job)
            try:
                with self._noticing_loss():
                    self._wait(task, order.key, told)
            except DiskFull as error:
                if not self._store or not self._other_nodes(error.field):
                    raise
                log.warning("%s; the shard goes to another node", error)
                self._started.discard(order.key)
                continue
            except EngineLost:  # Ray could cancel nothing
                raise
            except BaseException:
                self._cancel(task)
                raise
            return

    def _submit(self, order: ray_node.Order, job: FleetJob) -> Any:
        options: dict[str, Any] = {
            "num_cpus": self._threads,
            "num_gpus": 1 if self._gpu else 0,
            "memory": memory_bytes(job),
            "max_retries": MAX_RETRIES,
            "retry_exceptions": list(ray_node.RETRIED),
            "name": f"train {job.architecture} {order.key.rpartition('/')[2]}",
        }
        if self._full:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(self._full))})"}
        return self._ray.remote(ray_node.train_on_node).options(**options).remote(order, self._reader.board)

    def _other_nodes(self, full: str) -> bool:
        """Leave out a node from now on; whether others are left."""
        self._full.add(full)
        return any(n["Alive"] and n["NodeID"] not in self._full for n in self._ray.nodes())

    def _wait(self, task: Any, key: str, told: ShardTold) -> None:
        """Wait for a task, telling what its node reports meanwhile; raises the task's own error."""
        errors = self._ray.exceptions
        while not self._ray.wait([task], timeout=0)[0]:
            pause(TAKE_S)
            self._tell(key, told)
            if self._head.is_lost():
                raise self._lost("its head does not answer")
        try:
            self._ray.get(task)
        except errors.RayTaskError as error:
            if isinstance(error.cause, CpbError):
                raise error.cause from None
            raise
        except errors.TaskCancelledError:
            raise Interrupted("the task was cancelled") from None
        except (errors.NodeDiedError, errors.WorkerCrashedError, errors.OutOfMemoryError) as error:
            reason = str(error).strip().splitlines()[0]
            raise TrainerDied(
                f"its node was lost {MAX_RETRIES + 1} times, the last time so: {reason}"
            ) from error

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        """Raise `EngineLost` for what Ray itself meets in the block: its head, or this machine's part, has ended."""
        try:
            yield
        except self._ray.exceptions.RayTaskError:  # the task's own error, a defect of cpb
            raise
        except self._ray.exceptions.RayError as error:
            raise self._lost(type(error).__name__) from error

    def _lost(self, reason: str) -> EngineLost:
        address = os.environ.get(ADDRESS, "")
        where, first = (address, "start it again, then ") if address not in HERE else ("of this command", "")
        return EngineLost(
            f"the Ray cluster {where} was lost ({reason}); {first}run the same command: what is finished is not "
            "trained again",
            field=ADDRESS,
        )

    def _tell(self, key: str, told: ShardTold) -> None:
        """Tell what the node has reported of a shard since the last time."""
        for kind, value in self._reader.take(key):
            if kind == "start":
                if key in self._started:
                    log.warning(
                        "%s is trained once more, from its newest checkpoint: its trainer or its node was lost",
                        key,
                    )
                self._started.add(key)
                told.starting()
            elif kind == "line":
                log.log(*value)
            else:
                told(value)

    def _cancel(self, task: Any) -> None:
        self._ray.cancel(task, force=False)
        self._ray.wait([task], timeout=_CANCEL_S)
