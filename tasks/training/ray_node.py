"""What a node of a Ray cluster does with a shard: the same trainer process as on one machine, in its cache or the home.

Runs in Ray's worker process, which imports no torch. Progress and log lines go to the driver by way of its board.
"""

import logging
import os
import platform
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from schemas.errors import CpbError
from tasks.storage.files import DiskFull
from tasks.storage.store_url import STORE
from tasks.training.fleet_files import JOB, RESULT, TRAINED
from tasks.training.node_shards import shard_on_node
from tasks.training.planning import training_code
from tasks.training.process import DISK_FULL, TrainerDied, run_trainer
from tasks.training.shared_shards import checkpoint_setting
from tasks.training.slots import Slots, visible_gpus

log = logging.getLogger("cpb")

_TELL_S = 0.5
"""Shortest time between two reports of a shard's progress: the board serves hundreds of shards."""


@dataclass(frozen=True)
class Order:
    """A shard to be trained on a node.

    key: where it lies below any home, as in `sim/fleets/KEY`. home: the driver's, which the node works in where no
    `store` (URL) is named. versions: those of the driver. again: False to train anew what was trained before.
    """

    key: str
    home: str
    store: str | None
    versions: Mapping[str, str]
    threads: int
    gpu: bool
    timeout_s: float
    again: bool


def versions() -> dict[str, str]:
    """Return what must be equal on all machines: cpb and its code, torch (whatever it was built for) and Python."""
    major, minor, _ = platform.python_version_tuple()
    torch = version("torch").partition("+")[0]
    return {"cpb": f"{version('cpb')}, code {training_code()}", "torch": torch, "python": f"{major}.{minor}"}


def difference(own: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Return how a node's versions differ from the driver's, as in `torch 2.8.0 instead of 2.9.1`; "" if not."""
    return "; ".join(
        f"{name} {others[name]} instead of {own[name]}" for name in own if own[name] != others[name]
    )


def node_facts(home: str, probe: str) -> dict[str, Any]:
    """Return a node's versions, its name, and whether it sees a file of the driver's home."""
    return {"versions": versions(), "name": socket.gethostname(), "sees_home": (Path(home) / probe).exists()}


def train_on_node(order: Order, board: Any) -> None:
    """Train and judge a shard on this node; its result lies in the store then, or in the home.

    Raises:
        TrainerDied: another try may succeed.
        DiskFull: of this node's cache; `field` is the node's id.
        CpbError: the shard failed, or this node cannot take it; it names the node.
    """
    board = _Reports(board, order.key)
    with board.hearing_log():
        if differs := difference(order.versions, versions()):
            raise CpbError(f"node {socket.gethostname()} has {differs}: install the same", code="versions")
        board.start()
        slots = Slots(visible_gpus() if order.gpu else (), 1, order.threads)
        try:
            _train(order, slots, board)
        except CpbError as error:
            own_disk = type(error) is DiskFull and order.store  # the home is every node's
            raise type(error)(
                f"{error} (on node {socket.gethostname()})",
                code=error.code,
                field=_node_id() if own_disk else error.field,
            ) from error


def _train(order: Order, slots: Slots, board: "_Reports") -> None:
    if order.store:
        os.environ[STORE] = order.store
        _train_in_cache(order, slots, board)
    else:
        _train_in_home(order, slots, board)


def _node_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _train_in_home(order: Order, slots: Slots, board: "_Reports") -> None:
    folder = Path(order.home) / order.key
    if not (folder / JOB).is_file():
        raise CpbError(home_not_seen(socket.gethostname(), order.home), code="home-not-seen", field=STORE)
    _run(folder, slots, order.timeout_s, board)


def _train_in_cache(order: Order, slots: Slots, board: "_Reports") -> None:
    with shard_on_node(order.key) as shard:
        if not order.again:
            for name in (RESULT, TRAINED):
                (shard.folder / name).unlink(missing_ok=True)
            shutil.rmtree(shard.folder / "checkpoints", ignore_errors=True)
        elif (
            shard.is_trained()
        ):  # perhaps in this node's cache alone: by a node that was lost before it shared it
            if not shard.shards.has_result(shard.folder):
                shard.put_result()
            return
        checkpoints = shard.checkpoints(checkpoint_setting(slots))
        checkpoints.get()
        with checkpoints.kept():
            _run(shard.folder, slots, order.timeout_s, board)
        shard.put_result()


def _run(folder: Path, slots: Slots, timeout_s: float, board: "_Reports") -> None:
    try:
        run_trainer(folder, slots, timeout_s, board)
    except TrainerDied as error:
        if error.code == DISK_FULL:  # another try on this node would end in the same way
            raise DiskFull(str(error)) from error
        raise


def home_not_seen(node: str, home: str) -> str:
    """Return the sentence for a node that cannot read the driver's home."""
    return (
        f"node {node} does not see CPB_HOME {home}: set {STORE} to a folder or bucket that every machine reaches, or "
        "mount the home there under the same path"
    )


class _Reports(logging.Handler):
    """Sends a shard's progress and log lines to the driver's board, and waits for no answer."""

    def __init__(self, board: Any, key: str) -> None:
        super().__init__(logging.INFO)
        self._board, self._key, self._told = board, key, 0.0

    def start(self) -> None:
        """Tell that the shard has its place."""
        self._board.start.remote(self._key)

    def __call__(self, state: dict[str, Any]) -> None:
        """Tell what `progress.json` says."""
        if time.monotonic() - self._told >= _TELL_S:
            self._told = time.monotonic()
            self._board.progress.remote(self._key, state)

    def emit(self, record: logging.LogRecord) -> None:
        """Tell a line of the log."""
        self._board.line.remote(self._key, record.levelno, f"{socket.gethostname()}: {record.getMessage()}")

    @contextmanager
    def hearing_log(self) -> Iterator[None]:
        """Send what cpb logs in the block."""
        log.addHandler(self)
        level = log.level
        log.setLevel(logging.INFO)
        try:
            yield
        finally:
            log.removeHandler(self)
            log.setLevel(level)


RETRIED = (TrainerDied,)
"""Errors after which Ray tries a shard again; a lost node it retries anyway."""
