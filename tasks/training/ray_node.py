"""The part that runs on a node of a Ray cluster: the same trainer process as on one machine, in a temporary folder.

A node stores nothing permanently but compiled GPU kernels. Job and features arrive as the task's argument,
checkpoints of an earlier try from the driver's home through the `Board`, and the finished shard's files return as the
task's result; then the folder, below the node's `TMPDIR`, is removed. Runs in Ray's worker, which imports no torch.
"""

import errno
import logging
import os
import platform
import shutil
import socket
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from schemas import __version__
from schemas.errors import CpbError
from tasks.storage.files import DiskFull, is_disk_full, write_bytes
from tasks.storage.locks import is_locked, locked, temporary_lock
from tasks.training.devices import Slots, visible_gpus
from tasks.training.files import EPOCHS, JOB, LOG, RESULT, checkpoints_of, kernel_cache
from tasks.training.plan import training_code
from tasks.training.runner import DISK_FULL, run_trainer

log = logging.getLogger("cpb")

Files = dict[str, NDArray[np.uint8]]
"""Contents of files by path below a folder, as arrays: Ray transfers arrays without copying."""

Kind = Literal["start", "progress", "line"]
Report = tuple[Kind, Any]

_TELL_S = 0.5
"""Minimum seconds between two progress reports of a shard: the board serves hundreds of shards."""

_LAST_S = 30.0
"""Maximum seconds until the board has stored the last checkpoint of a failed trainer."""

_MAX_CHECKPOINTS = 2
"""Checkpoints kept per part of a shard, as its trainer does: the older in case the newer is damaged."""


@dataclass(frozen=True)
class Order:
    """A shard to be trained on a node.

    key: its path below any home, such as `sim/fleets/KEY`. home: the driver's, to name its log there. versions: those
    of the driver. checkpoint_s: seconds between two checkpoints sent by the node.
    """

    key: str
    home: str
    versions: Mapping[str, str]
    threads: int
    gpu: bool
    timeout_s: float
    checkpoint_s: float


def versions() -> dict[str, str]:
    """Return the versions that must be equal on all machines: cpb and its code, torch (any build) and Python."""
    major, minor, _ = platform.python_version_tuple()
    torch = version("torch").partition("+")[0]
    return {"cpb": f"{__version__}, code {training_code()}", "torch": torch, "python": f"{major}.{minor}"}


def difference(own: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Return the differences of a node's versions, such as `torch 2.8.0 instead of 2.9.1`; "" for none."""
    return "; ".join(
        f"{name} {others[name]} instead of {own[name]}" for name in own if own[name] != others[name]
    )


def node_facts() -> dict[str, Any]:
    """Return a node's versions and its name."""
    return {"versions": versions(), "name": socket.gethostname()}


def read_files(folder: Path, names: Iterable[str]) -> Files:
    """Return the files of these names below a folder; missing files are left out."""
    found = {}
    for name in names:
        with suppress(FileNotFoundError):
            found[name] = np.frombuffer((folder / name).read_bytes(), np.uint8)
    return found


def write_files(folder: Path, files: Files) -> None:
    """Write files, not atomically, below a folder that has no readers yet."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.data)


class Board:
    """A Ray actor on the driver's node, so that it survives the loss of other nodes. Methods are called from any node.

    It buffers the nodes' reports until the driver takes them, and stores checkpoints in the driver's home (`home`).
    """

    def __init__(self, home: str) -> None:
        self._home = Path(home)
        self._new: dict[str, list[Report]] = defaultdict(list)

    def start(self, key: str) -> None:
        """Record that a shard has started."""
        self._new[key].append(("start", None))

    def progress(self, key: str, state: dict[str, Any]) -> None:
        """Record a shard's progress; only the newest report is kept."""
        self._new[key] = [one for one in self._new[key] if one[0] != "progress"] + [("progress", state)]

    def line(self, key: str, level: int, text: str) -> None:
        """Record a line of a shard's log, with its level."""
        self._new[key].append(("line", (level, text)))

    def take(self) -> dict[str, list[Report]]:
        """Return the new reports by shard, and clear them."""
        new, self._new = dict(self._new), defaultdict(list)
        return new

    def begun(self, key: str) -> Files:
        """Return the files in the home of an unfinished shard: its checkpoints and epoch reports."""
        folder = self._home / key
        names = [name for part in checkpoints_of(folder) for name in part] + [EPOCHS]
        return read_files(folder, names)

    def keep(self, key: str, files: Files) -> None:
        """Store a shard's newest checkpoints in the home; those of a finished or removed shard are dropped."""
        folder = self._home / key
        if not (folder / JOB).exists() or (folder / RESULT).exists():
            return
        try:
            for name, content in files.items():
                write_bytes(folder / name, content.data)
            for part in checkpoints_of(folder):
                for name in part[:-_MAX_CHECKPOINTS]:
                    (folder / name).unlink(missing_ok=True)
        except (CpbError, OSError) as error:  # training continues; the next checkpoint may fit
            self.line(key, logging.WARNING, f"a checkpoint of {folder.name} is not kept: {error}")


def train_on_node(order: Order, inputs: Files, board: Any) -> Files:
    """Train a shard on this node; return the files of its folder, including the result.

    Args:
        inputs: job, features and models to start from, by their path below a home.
        board: handle of the driver's `Board`.

    Raises:
        TrainerDied: another try may succeed.
        DiskFull: this node's temporary folder is full; `field` is the node's id.
        CpbError: the shard failed, or this node cannot train it; the message names the node.
    """
    reports = _Reports(board, order)
    with reports.hearing_log():
        if differs := difference(order.versions, versions()):
            raise CpbError(f"node {socket.gethostname()} has {differs}: install the same", code="versions")
        reports.start()
        try:
            with _own_disk(), _own_home() as home:
                write_files(home, inputs)
                return _train(home, order, reports)
        except CpbError as error:
            raise type(error)(
                f"{error} (on node {socket.gethostname()})", code=error.code, field=error.field
            ) from error


def _train(home: Path, order: Order, reports: "_Reports") -> Files:
    folder = home / order.key
    reports.fetch(folder)
    slots = Slots(visible_gpus() if order.gpu else (), 1, order.threads)
    try:
        # Beside the shards' folders, so that a node compiles its kernels once, not for each shard.
        run_trainer(folder, slots, order.timeout_s, reports, kernel_cache(home.parent))
    except CpbError as error:
        reports.send_last()
        if error.code == DISK_FULL:  # another try on this node would fail too
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        text = str(error).replace(str(home), order.home)  # the new location of its log
        raise type(error)(text, code=error.code, field=error.field) from error
    return read_files(folder, [*_files_below(folder, "members"), LOG, RESULT])


@contextmanager
def _own_disk() -> Iterator[None]:
    """Convert system errors of this node's temporary folder to `CpbError`."""
    try:
        yield
    except OSError as error:
        import ray

        place, remedy = tempfile.gettempdir(), "start the node with TMPDIR on another disk"
        if is_disk_full(error):
            raise DiskFull(
                f"no space left in {place}: free some, or {remedy}",
                field=str(ray.get_runtime_context().get_node_id()),
            ) from error
        raise CpbError(
            f"a shard cannot be trained in {place} ({error}): {remedy}", code="node-folder"
        ) from error


@contextmanager
def _own_home() -> Iterator[Path]:
    """Yield an empty folder for one shard, removed at the end; folders left by killed tasks are removed first.

    A lock file beside it, held by the task's process, marks a folder in use.
    """
    place = temporary_lock("shards").parent
    name = f"shard-{uuid.uuid4().hex[:12]}"
    with locked(place / "shards.lock"):
        for lock in place.glob("shard-*.lock"):
            if not is_locked(lock):
                _remove_home(lock)
        hold = locked(place / f"{name}.lock")
        hold.__enter__()
    try:
        (place / name).mkdir()
        yield place / name
    finally:
        _remove_home(place / f"{name}.lock")
        hold.__exit__(None, None, None)


def _remove_home(lock: Path) -> None:
    """Remove a shard's folder, then its lock; the trainer of a killed task may write there for another half second."""
    folder = lock.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        lock.unlink(missing_ok=True)


def _files_below(folder: Path, name: str) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in (folder / name).rglob("*") if p.is_file())


def _answer(reference: Any, timeout_s: float | None = None) -> Any:
    """Return an actor's result; raises Ray's errors.

    In a separate thread: while a task waits for Ray in its main thread, Ray assigns its cores to another task (seen
    with 2.60, also with a timeout of 0), and two trainers share them.
    """
    import ray

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ray.get, reference, timeout=timeout_s).result()


class _Reports(logging.Handler):
    """Sends a shard's progress, log lines and checkpoints to the driver's board without waiting for a reply."""

    def __init__(self, board: Any, order: Order) -> None:
        super().__init__(logging.INFO)
        self._board, self._key, self._every_s = board, order.key, order.checkpoint_s
        self._told, self._sent_at = 0.0, time.monotonic()
        self._folder = Path()
        self._sent: set[str] = set()
        """Names of the checkpoints stored in the home."""
        self._on_its_way: Any = None

    def start(self) -> None:
        """Report that the shard has started."""
        self._board.start.remote(self._key)

    def fetch(self, folder: Path) -> None:
        """Write the home's files of the shard into its folder: this try continues from there."""
        files: Files = _answer(self._board.begun.remote(self._key))
        write_files(folder, files)
        self._folder, self._sent = folder, set(files)
        if checkpoints_of(folder):
            log.info("%s continues from its newest checkpoint", folder.name)

    def __call__(self, state: dict[str, Any]) -> None:
        """Report the contents of `progress.json`, and send a checkpoint when due."""
        now = time.monotonic()
        if now - self._told >= _TELL_S:
            self._told = now
            self._board.progress.remote(self._key, state)
        if now - self._sent_at >= self._every_s and not self._is_sending():
            self._sent_at = now
            self._send()

    def send_last(self) -> None:
        """Send a failed trainer's last files, with its log, and wait until they are stored for the next try."""
        from ray.exceptions import RayError

        self._send(LOG)
        with suppress(RayError):
            _answer(self._on_its_way, _LAST_S)

    def emit(self, record: logging.LogRecord) -> None:
        """Report a line of the log."""
        self._board.line.remote(self._key, record.levelno, f"{socket.gethostname()}: {record.getMessage()}")

    @contextmanager
    def hearing_log(self) -> Iterator[None]:
        """Report cpb's log lines in the block."""
        log.addHandler(self)
        level = log.level
        log.setLevel(logging.INFO)
        try:
            yield
        finally:
            log.removeHandler(self)
            log.setLevel(level)

    def _is_sending(self) -> bool:
        """Whether the board has not stored the last checkpoint yet: a slow link or disk gets fewer checkpoints."""
        from ray.exceptions import GetTimeoutError

        try:
            if self._on_its_way is not None:
                _answer(self._on_its_way, 0)
        except GetTimeoutError:
            return True
        return False

    def _send(self, *more: str) -> None:
        new = [part[-1] for part in checkpoints_of(self._folder) if part[-1] not in self._sent]
        if new or more:  # epoch costs are read last: they must cover the checkpoint's epochs
            files = read_files(self._folder, [*new, EPOCHS, *more])
            self._on_its_way = self._board.keep.remote(self._key, files)
            self._sent |= set(new)
