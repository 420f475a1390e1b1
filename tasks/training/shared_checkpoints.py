"""Checkpoints of a shard in training, put into the shared store beside its trainer, so that another machine can go on.

`PREFIX/SETTING/PART/epoch-000012-0a1b2c3d.safetensors`: the names are the trainer's own, with the CRC-32 of the file,
and the two newest of each part are kept, as on disk. Beside them lies what the epochs have cost, for the result.
"""

import logging
import re
import tempfile
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from schemas.errors import CpbError, DamagedError
from tasks.storage.digests import file_digest
from tasks.storage.files import write_bytes
from tasks.storage.shared import SharedStore
from tasks.storage.store_tree import is_plain
from tasks.storage.waiting import Interrupted, stoppable
from tasks.training.fleet_files import EPOCHS

log = logging.getLogger("cpb")

EVERY_S = 30.0
"""Shortest time between two looks for new checkpoints; a node that is lost costs the shard this much and one epoch."""

_MAX_TIME_SHARE = 0.1
"""Of the time that uploads may take: a slow way to the store gets fewer checkpoints."""
_MAX_FILES = 2
_END_S = 1.0
"""Longest wait for an upload at the end of a training: what is left of Ctrl-C's three seconds."""

_CHECKPOINT = re.compile(r"epoch-(?P<number>\d{6})-(?P<crc>[0-9a-f]{8})\.safetensors")
_COSTS = re.compile(r"epochs-(?P<number>\d{6})-(?P<digest>[0-9a-f]{16})\.jsonl")


@dataclass
class SharedCheckpoints:
    """The checkpoints of one shard in the store, and in `folder`, where its trainer writes them.

    `setting`: machines whose checkpoints may be exchanged: the same kind of device and, on a CPU, as many threads.
    """

    store: SharedStore
    prefix: str
    setting: str
    folder: Path
    _put: set[str] = field(default_factory=set)
    """Names below the setting that the store has, as far as this process knows."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self) -> list[Path]:
        """Fetch the newest checkpoint of each part that the folder has none as new of; returns what was fetched.

        A damaged one is passed over for the one before it.

        Raises:
            StoreFault: the store cannot be read.
        """
        with self._lock:
            return self._get_newest()

    def put(self) -> None:
        """Put the newest checkpoint of each part, where it is new; raises `StoreFault`."""
        with self._lock:
            self._put_newest()

    def remove(self) -> None:
        """Delete all of the shard's checkpoints, of every setting: it is trained."""
        self.store.remove([f"{self.prefix}/{name}" for name in self.store.names(self.prefix)])

    @contextmanager
    def kept(self, every_s: float | None = None) -> Iterator[None]:
        """Put new checkpoints into the store for the length of the block, and the last ones where the trainer fails.

        In a thread of its own in the process that started the trainer: an epoch waits for nothing. A fault of the store
        is told once and stops nothing.
        """
        done = threading.Event()
        watch = threading.Thread(
            target=self._watch, args=(done, every_s or EVERY_S), daemon=True, name="checkpoints"
        )
        watch.start()
        try:
            yield
        except CpbError:
            _end(watch, done)
            self._try_put(tell=True)
            raise
        finally:
            _end(watch, done)

    @property
    def _place(self) -> str:
        return f"{self.prefix}/{self.setting}"

    def _get_newest(self) -> list[Path]:
        found = self.store.names(self._place)
        self._put |= set(found)
        fetched = []
        for part, names in _by_part(found).items():
            here = _newest(self.folder / "checkpoints" / part)
            for name in sorted(names, reverse=True):
                if here and here.name >= name:
                    break
                if path := self._get(part, name, found[f"{part}/{name}"]):
                    fetched.append(path)
                    break
        if fetched:
            self._get_costs(found)
        return fetched

    def _put_newest(self) -> None:
        for part in _parts(self.folder / "checkpoints"):
            newest = _newest(self.folder / "checkpoints" / part)
            if newest is None or f"{part}/{newest.name}" in self._put:
                continue
            try:
                self._put_costs()
                self.store.put(newest, f"{self._place}/{part}/{newest.name}")
            except FileNotFoundError:  # the trainer has written two newer ones since
                continue
            self._put.add(f"{part}/{newest.name}")
        self._remove_old()

    def _watch(self, done: threading.Event, every_s: float) -> None:
        wait_s, told = every_s, False
        with stoppable(done):
            while not done.wait(wait_s):
                started = monotonic()
                told = not self._try_put(tell=not told) or told
                wait_s = max(every_s, (monotonic() - started) / _MAX_TIME_SHARE)

    def _try_put(self, *, tell: bool) -> bool:
        try:
            self.put()
        except Interrupted:
            return True
        except CpbError as error:
            if tell:
                log.warning("checkpoints of %s are not shared: %s", self.folder.name, error)
            return False
        return True

    def _get(self, part: str, name: str, size: int) -> Path | None:
        path = self.folder / "checkpoints" / part / name
        try:
            self.store.get(f"{self._place}/{part}/{name}", path, _by_crc(name), size=size)
        except (DamagedError, FileNotFoundError) as error:
            log.warning("the checkpoint %s/%s of the store is passed over: %s", part, name, error)
            return None
        return path

    def _put_costs(self) -> None:
        lines = _lines(self.folder / EPOCHS)
        with tempfile.TemporaryDirectory() as drafts:
            draft = Path(drafts) / EPOCHS
            draft.write_bytes(b"".join(lines))
            name = f"epochs-{len(lines):06d}-{file_digest(draft)[:16]}.jsonl"
            if lines and name not in self._put:
                self.store.put(draft, f"{self._place}/{name}")
                self._put.add(name)

    def _get_costs(self, found: dict[str, int]) -> None:
        names = sorted(name for name in found if _COSTS.fullmatch(name))
        if not names or len(_lines(self.folder / EPOCHS)) >= int(names[-1].split("-")[1]):
            return
        digest = names[-1].split("-")[2].removesuffix(".jsonl")
        with tempfile.TemporaryDirectory() as drafts:
            draft = Path(drafts) / EPOCHS
            try:
                self.store.get(
                    f"{self._place}/{names[-1]}", draft,
                    lambda path: "" if file_digest(path).startswith(digest) else "its sha256 differs",
                )  # fmt: skip
            except (DamagedError, FileNotFoundError) as error:
                log.warning("what the first epochs of %s have cost is not known: %s", self.folder.name, error)
                return
            write_bytes(self.folder / EPOCHS, draft.read_bytes())

    def _remove_old(self) -> None:
        parts = {part: sorted(names) for part, names in _by_part(dict.fromkeys(self._put, 0)).items()}
        old = {f"{part}/{name}" for part, names in parts.items() for name in names[:-_MAX_FILES]}
        old |= set(sorted(name for name in self._put if _COSTS.fullmatch(name))[:-_MAX_FILES])
        self.store.remove([f"{self._place}/{name}" for name in old])
        self._put -= old


def _end(watch: threading.Thread, done: threading.Event) -> None:
    done.set()
    watch.join(_END_S)


def _by_part(names: dict[str, int]) -> dict[str, list[str]]:
    """Return the checkpoints among objects' names by the part that they belong to, as `fleet-0000`."""
    parts: dict[str, list[str]] = defaultdict(list)
    for name in names:
        part, _, file = name.rpartition("/")
        if part and is_plain(part) and _CHECKPOINT.fullmatch(file):
            parts[part].append(file)
    return parts


def _parts(checkpoints: Path) -> list[str]:
    return sorted(
        {path.parent.relative_to(checkpoints).as_posix() for path in checkpoints.rglob("epoch-*.safetensors")}
    )


def _newest(folder: Path) -> Path | None:
    found = folder.iterdir() if folder.is_dir() else ()
    return max((path for path in found if _CHECKPOINT.fullmatch(path.name)), default=None)


def _by_crc(name: str) -> Callable[[Path], str]:
    """Return a check that a file has the CRC-32 that its name tells."""
    match = _CHECKPOINT.fullmatch(name)
    assert match is not None
    crc = int(match["crc"], 16)
    return lambda path: "" if zlib.crc32(path.read_bytes()) == crc else "its CRC-32 differs"


def _lines(path: Path) -> list[bytes]:
    """Return the whole lines of a file, none where it is not there."""
    try:
        found = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [line for line in found if line.endswith(b"\n")]
