"""Shards between a home (of a machine, or a node's cache) and the store that machines share (`CPB_STORE`).

A shard lies in the store under the path that it has below the home: `fleets/KEY/job.json`, `result.json`, `members/…`.
Features lie under their path and their file's digest, because two homes may have computed them from other candles.
What is fetched is checked against the digests of the records, or of the listing of the shard's tree.
"""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import BusyError, CpbError, DamagedError, UsageError
from schemas.handover import FleetJob, FleetResult, Record, SeriesRecord
from schemas.wording import count
from tasks.progress import tell_line
from tasks.storage.digests import file_digest
from tasks.storage.files import DRAFT
from tasks.storage.locks import locked
from tasks.storage.node_cache import NodeCache
from tasks.storage.records import ASIDE, parse_record, set_aside
from tasks.storage.shared import SharedStore, shared_store
from tasks.storage.store_tree import by_digest, part_key
from tasks.storage.store_url import STORE
from tasks.training.fleet_files import EPOCHS, JOB, RESULT, damaged_files, home_of, read_job
from tasks.training.shared_checkpoints import SharedCheckpoints
from tasks.training.slots import Slots

log = logging.getLogger("cpb")

_MEMBERS = "members/"


@dataclass(frozen=True)
class SharedShards:
    """The shards of a home in the shared store. Paths below `home` are the keys there.

    `cache`: the node's cache that the home is, where it is one.
    """

    store: SharedStore
    home: Path
    cache: NodeCache | None = None

    @classmethod
    def of(cls, home: Path) -> "SharedShards | None":
        """Return the shards of a home in the store of `CPB_STORE`; None where it is unset.

        Raises:
            UsageError: the URL cannot be used.
        """
        store = shared_store()
        return cls(store, home.absolute()) if store else None

    def key(self, path: Path) -> str:
        """Return where something below the home lies in the store."""
        return path.absolute().relative_to(self.home).as_posix()

    def put_features(self, job: FleetJob) -> None:
        """Put the feature files of a job's series; those that are there are not sent again."""

        def put(record: SeriesRecord) -> None:
            key = _features_key(record)
            if not self.store.has(key):
                self.store.put(self.home / record.path, key)

        self.store.each(put, _features(job))

    def get_features(self, job: FleetJob) -> None:
        """Fetch those feature files of a job that are not in the home, or are damaged there.

        Raises:
            DamagedError: one is not what its record says, or not in the store.
            StoreFault: the store cannot be read.
        """

        def get(record: SeriesRecord) -> None:
            with self.cache.filling(record.path) if self.cache else nullcontext():
                self._get_features(record)

        self.store.each(get, _features(job))

    def put_job(self, folder: Path) -> None:
        """Put the job of the shard in `folder`."""
        self.store.put(folder / JOB, f"{self.key(folder)}/{JOB}")

    def get_job(self, folder: Path) -> FleetJob:
        """Fetch the job of the shard in `folder` and return it; raises `DamagedError` (or missing) and `StoreFault`."""
        try:
            self.store.get(f"{self.key(folder)}/{JOB}", folder / JOB, _record(FleetJob))
        except FileNotFoundError:
            raise DamagedError(
                f"{self.key(folder)}/{JOB} is not in the store {self.store.url}: does {STORE} mean the same store "
                "on every machine?",
                field=STORE,
            ) from None
        return read_job(folder)

    def has_result(self, folder: Path) -> bool:
        """Whether the store has the trained shard, whole."""
        return self.store.has(f"{self.key(folder)}/{RESULT}")

    def put_result(self, folder: Path) -> None:
        """Put a trained shard: its job, its members' files, and last its result."""
        self.put_job(folder)
        members = folder / "members"
        found = [path for path in members.rglob("*") if path.is_file() and not _is_left_over(path)]
        names = [path.relative_to(folder).as_posix() for path in found]
        self.store.put_tree(folder, self.key(folder), [*names, RESULT], last=RESULT)

    def get_result(self, folder: Path) -> bool:
        """Fetch a trained shard into its folder, whole or not at all; False where the store does not have it.

        One that is damaged in the store is said and not used, and the shard is trained again. So is one while a trainer
        is at work in the folder.

        Raises:
            StoreFault: the store cannot be read.
        """
        if not self.has_result(folder):
            return False
        try:
            with locked(folder / "lock", wait=False):
                shutil.rmtree(folder / _MEMBERS, ignore_errors=True)  # of a training that did not end
                self._fetch_result(folder)
        except (BusyError, DamagedError) as error:
            log.warning(
                "the trained shard %s is not taken from the store, but trained: %s", folder.name, error
            )
            return False
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        (folder / EPOCHS).unlink(missing_ok=True)
        return True

    def take_result(self, folder: Path) -> bool:
        """Fetch what another machine has trained, and say so; see `get_result`."""
        if not self.get_result(folder):
            return False
        job = read_job(folder)
        members = count(len(job.members), "member")
        tell_line(f"{members} of {job.architecture} trained by another machine: taken from the store")
        return True

    def checkpoints(self, folder: Path, setting: str) -> SharedCheckpoints:
        """Return the checkpoints of the shard in `folder`; see `SharedCheckpoints` for `setting`."""
        return SharedCheckpoints(self.store, f"{self.key(folder)}/checkpoints", setting, folder)

    def _get_features(self, record: SeriesRecord) -> None:
        path = self.home / record.path
        if path.is_file() and file_digest(path) == record.file_digest:
            return
        try:
            self.store.get(_features_key(record), path, by_digest(record.file_digest))
        except FileNotFoundError:
            raise DamagedError(
                f"{record.path} is neither in {self.home} nor in the store {self.store.url}; run the same command "
                "again, which computes it anew",
                field=record.path,
            ) from None
        except DamagedError as error:
            raise DamagedError(
                f"{error}; remove it there, then run the same command again", field=error.field
            ) from None

    def _fetch_result(self, folder: Path) -> None:
        self.store.get_tree(
            self.key(folder), folder, last=RESULT, check=_record(FleetResult), allowed=_is_member_file
        )
        result = parse_record(folder / RESULT, FleetResult)
        for path, reason in damaged_files(folder, result):
            set_aside(folder / RESULT, f"{path} does not fit it")
            raise DamagedError(f"{path}: {reason}", field=str(path))


def check_shared_store(home: Path) -> None:
    """Raise `CpbError` where `CPB_STORE` names a store that cannot be used: before anything is fetched or trained."""
    shards = SharedShards.of(home)
    if shards is None:
        return
    place = Path(shards.store.root)
    if shards.store.is_local and place.resolve().is_relative_to(home.resolve()):
        raise UsageError(
            f"{STORE} {shards.store.url} lies in CPB_HOME: name a folder beside it that other machines see too, or "
            f"leave {STORE} unset",
            code="store", field=STORE,
        )  # fmt: skip
    shards.store.check_writable()


def checkpoint_setting(slots: Slots) -> str:
    """Return what must be equal for a checkpoint of another machine to be continued: the kind of device, the threads.

    How a CPU fleet is cut into parts, and the last bits, depend on its threads.
    """
    return "gpu" if slots.gpus else f"cpu-{slots.threads}"


@contextmanager
def sharing(folder: Path, slots: Slots, *, use: bool = True) -> Iterator[Callable[[], None]]:
    """Share the training of the shard in `folder` for the length of the block; without `CPB_STORE` nothing happens.

    Yields what is to be called once the shard has its slot, before its trainer starts: it fetches the trained shard, or
    the newest checkpoints. While the block lasts, new checkpoints are put into the store, and at its end the trained
    shard. Faults of the store are told and stop nothing: the training works in the home, and a repeated command shares
    what this one could not.
    """
    shards = SharedShards.of(home_of(folder, read_job(folder)))
    if shards is None:
        yield _nothing
        return
    checkpoints = shards.checkpoints(folder, checkpoint_setting(slots))
    same = False  # the store has what lies in the folder
    asked = False  # whether the store had a result, be it a damaged one

    def fetch_result() -> None:
        nonlocal same, asked
        if use and not asked and not (folder / RESULT).exists() and shards.has_result(folder):
            asked = True
            same = shards.take_result(folder)

    def fetch() -> None:
        with _told(f"{folder.name} is not looked for in the store"):
            fetch_result()  # again: another machine may have trained it while this one waited for a slot
            if use and not same and (found := checkpoints.get()):
                log.info("%s goes on from %s of the store", folder.name, count(len(found), "checkpoint"))

    with _told(f"{folder.name} is not looked for in the store"):
        fetch_result()
        same = same or ((folder / RESULT).exists() and shards.has_result(folder))
    with checkpoints.kept():
        yield fetch
    with _told(f"the trained shard {folder.name} is not shared"):
        if not same:
            shards.put_result(folder)
            checkpoints.remove()


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except CpbError as error:
        log.warning("%s: %s", what, error)


def _nothing() -> None:
    """Fetch nothing: there is no store."""


def _record(kind: type[Record]) -> Callable[[Path], str]:
    """Return a check that a file is a record of this kind, by the digest that it carries."""

    def damage(path: Path) -> str:
        try:
            parse_record(path, kind)
        except DamagedError as error:
            return str(error)
        return ""

    return damage


def _features(job: FleetJob) -> list[SeriesRecord]:
    return list({member.features.path: member.features for member in job.members}.values())


def _features_key(record: SeriesRecord) -> str:
    return part_key("", record.path, record.file_digest)


def _is_member_file(name: str) -> bool:
    return name.startswith(_MEMBERS)


def _is_left_over(path: Path) -> bool:
    """Whether a file is a draft of a killed process, or one that was set aside."""
    return DRAFT.fullmatch(path.name) is not None or ASIDE in path.name
