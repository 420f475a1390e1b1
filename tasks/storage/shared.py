"""The store that machines share: files under keys, on a file system (NFS) or in a bucket, by way of fsspec.

`CPB_STORE` names it; unset, there is none, and nothing is copied. Keys are paths relative to the home. Knows nothing
of what the files mean.

Objects are whole or not there: a bucket puts each at once, a folder gets a draft that is renamed. A *tree* (several
files) is there once its last file is: each other file lies under its name and digest, a listing under the digest of the
last file, and that one goes up last. So two machines that write the same tree at once cannot mix theirs, and one that
is cut off at any moment has written nothing.
"""

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from schemas.errors import DamagedError
from tasks.storage.digests import file_digest
from tasks.storage.files import DRAFT, DiskFull, draft_name, replacing, sync, write_bytes
from tasks.storage.store_faults import FolderGone, StoreFault, StoreFull, naming, retrying
from tasks.storage.store_tree import (
    Files,
    by_digest,
    listing_damage,
    listing_key,
    listing_text,
    part_key,
    read_listing,
)
from tasks.storage.store_url import STORE, driver_options, parse_store
from tasks.storage.waiting import check_interrupted

T = TypeVar("T")

Check = Callable[[Path], str]
"""Tells what is wrong with a fetched file, "" where nothing is."""

AT_ONCE = 16
"""Files of a tree that are on their way together: a bucket answers each in 20 to 100 ms."""

OBJECT_S, MIN_BYTES_PER_S = 60.0, 200_000.0
"""Longest time for one object in one try: this many seconds, and as many more as its size takes at this rate."""

_SLICE_S = 0.2
"""Longest wait of a calling thread, so that it sees an interrupt."""


def shared_store() -> "SharedStore | None":
    """Return the store that `CPB_STORE` names, None where it is unset; errors as in `SharedStore.open`."""
    url = os.environ.get(STORE)
    return SharedStore.open(url) if url else None


@dataclass(frozen=True)
class SharedStore:
    """A shared store. `url`: as it may be shown; `root`: its place within the file system `fs`."""

    fs: Any
    root: str
    url: str

    @classmethod
    def open(cls, url: str) -> "SharedStore":
        """Return the store behind a URL, without asking it anything.

        Raises:
            UsageError: the URL is none that can be used, or its driver is not installed.
        """
        place = parse_store(url)
        import fsspec

        fs = fsspec.filesystem(place.scheme, **driver_options(place.scheme))
        if place.scheme == "s3":
            fs.retries = 1  # s3fs's own tries, which know no limit in time; `retrying` counts
        return cls(fs, place.root, place.url)

    def has(self, key: str) -> bool:
        """Whether an object is there, whole; raises `StoreFault` where the store does not say."""
        try:
            with naming(self.url, f"looking for {key}"):
                self._call("info", self._at(key))
        except FileNotFoundError:
            return False
        return True

    def names(self, prefix: str) -> dict[str, int]:
        """Return the objects below a prefix: their size in bytes by their name relative to it."""
        try:
            with naming(self.url, f"listing {prefix}"):
                found = self._call("find", self._at(prefix), detail=True)
        except FileNotFoundError:
            return {}
        start = len(self._at(prefix)) + 1
        sizes = {str(path)[start:]: int(one["size"]) for path, one in found.items()}
        return {
            name: size
            for name, size in sizes.items()
            if name and not DRAFT.fullmatch(name.rpartition("/")[2])
        }

    def put(self, path: Path, key: str) -> None:
        """Copy a file into the store; raises `StoreFault`, or `FileNotFoundError` where it is gone."""
        size = path.stat().st_size
        try:
            with naming(self.url, f"writing {key}"):
                if self.is_local:
                    retrying(lambda: self._copy(path, key), f"writing {key}")
                else:
                    self._call("put_file", str(path), self._at(key), size=size)
        except FileNotFoundError:
            if not path.exists():
                raise
            what = "can files be made in that folder?" if self.is_local else "is there such a bucket?"
            raise StoreFault(
                f"the store {self.url} does not keep what is put there: {what} make it so, or correct {STORE}",
                field=STORE,
            ) from None

    def get(self, key: str, path: Path, check: Check, *, size: int | None = None) -> None:
        """Copy an object to `path`, whole or not at all. One that is damaged is fetched once more, and never used.

        Args:
            size: in bytes where it is known, which spares a question.

        Raises:
            FileNotFoundError: it is not there.
            DamagedError: it is not what was put there.
            StoreFault: the store cannot be read.
        """
        reason = ""
        for _ in range(2):
            if not (reason := self._get_once(key, path, check, size)):
                return
        raise DamagedError(f"{key} in the store {self.url} is damaged ({reason}) and is not used", field=key)

    def put_tree(self, folder: Path, prefix: str, names: Iterable[str], *, last: str) -> None:
        """Put files of a folder under a prefix; the tree is there once `last`, one of them, is.

        Args:
            names: of the files, relative to the folder.
        """
        parts = sorted(set(names) - {last})
        listed = dict(
            zip(parts, self.each(lambda name: self._put_part(folder, prefix, name), parts), strict=True)
        )
        with tempfile.TemporaryDirectory() as drafts:
            draft = Path(drafts) / "listing"
            draft.write_text(listing_text(listed))
            self.put(draft, listing_key(prefix, file_digest(folder / last)))
        self.put(folder / last, f"{prefix}/{last}")

    def get_tree(
        self, prefix: str, folder: Path, *, last: str, check: Check, allowed: Callable[[str], bool]
    ) -> bool:
        """Copy a tree into a folder, its last file last; False where it is not there.

        Args:
            check: of the last file, by which the listing of the others is found.
            allowed: the names that files may have; any other one is damage.

        Raises:
            DamagedError: a file is missing or is not what was put there.
        """
        with tempfile.TemporaryDirectory() as drafts:
            draft = Path(drafts) / "last"
            try:
                self.get(f"{prefix}/{last}", draft, check)
            except FileNotFoundError:
                return False
            listing = self._listing(prefix, draft, allowed)
            self.each(lambda item: self._get_part(prefix, folder, *item), sorted(listing.items()))
            write_bytes(folder / last, draft.read_bytes())
        return True

    def remove(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are passed over."""
        self.each(self._remove, list(keys))

    def check_writable(self) -> None:
        """Put a small object, read it and delete it; raises `StoreFault` where one of these is not possible."""
        content = os.urandom(16)
        key = f".probe-{content.hex()[:12]}"
        with tempfile.TemporaryDirectory() as drafts:
            probe, back = Path(drafts) / "probe", Path(drafts) / "back"
            probe.write_bytes(content)
            self.put(probe, key)
            try:
                self.get(key, back, by_digest(hashlib.sha256(content).hexdigest()))
            except (FileNotFoundError, DamagedError):
                raise StoreFault(
                    f"the store {self.url} does not give back what was put there; is it one bucket or folder on every "
                    "machine?",
                    field=STORE,
                ) from None
            self.remove([key])

    @property
    def is_local(self) -> bool:
        """Whether the store is a folder, of this machine or mounted."""
        return "file" in self.fs.protocol

    def _at(self, key: str) -> str:
        return f"{self.root}/{key}".rstrip("/")

    def _check_folder(self) -> None:
        """Raise `FolderGone` where the store's folder is not there, so that none is made in place of a lost mount."""
        if self.is_local and not Path(self.root).is_dir():
            raise FolderGone(f"there is no folder {self.root} any more; mount it again")

    def _copy(self, path: Path, key: str) -> None:
        self._check_folder()
        try:
            with replacing(Path(self._at(key))) as draft:
                shutil.copyfile(path, draft)
        except DiskFull:
            raise StoreFull(
                f"no space left in the store {self.url}: free some, then run the same command again",
                field=STORE,
            ) from None

    def _get_once(self, key: str, path: Path, check: Check, size: int | None) -> str:
        """Fetch an object by way of a draft beside `path`; returns what is wrong with it, and then drops it."""
        draft = draft_name(path)
        try:
            with naming(self.url, f"reading {key}", path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
                known = self._size(key) if size is None else size
                self._call("get_file", self._at(key), str(draft), size=known)
                if reason := check(draft):
                    return reason
                sync(draft)
                draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        return ""

    def _put_part(self, folder: Path, prefix: str, name: str) -> tuple[str, int]:
        path = folder / name
        digest = file_digest(path)
        self.put(path, part_key(prefix, name, digest))
        return digest, path.stat().st_size

    def _get_part(self, prefix: str, folder: Path, name: str, part: tuple[str, int]) -> None:
        digest, size = part
        key = part_key(prefix, name, digest)
        try:
            self.get(key, folder / name, by_digest(digest), size=size)
        except FileNotFoundError:
            raise DamagedError(f"{key} is missing in the store {self.url}", field=key) from None

    def _listing(self, prefix: str, last: Path, allowed: Callable[[str], bool]) -> Files:
        key, draft = listing_key(prefix, file_digest(last)), last.with_name("listing")
        try:
            self.get(key, draft, lambda path: listing_damage(path, allowed))
        except FileNotFoundError:
            raise DamagedError(f"{key} is missing in the store {self.url}", field=key) from None
        return read_listing(draft)

    def _size(self, key: str) -> int:
        return int(self._call("info", self._at(key))["size"])

    def _remove(self, key: str) -> None:
        try:
            with naming(self.url, f"removing {key}"):
                self._call("rm_file", self._at(key))
        except FileNotFoundError:
            return

    def _call(self, name: str, *args: Any, size: int = 0, **kwargs: Any) -> Any:
        """Call a method of the file system, with a limit in time where it allows one, tried again where it may help."""
        return retrying(lambda: self._once(name, size, args, kwargs), f"{name} {args[0]}")

    def _once(self, name: str, size: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._check_folder()
        if not self.fs.async_impl:
            return getattr(self.fs, name)(*args, **kwargs)
        limit = OBJECT_S + size / MIN_BYTES_PER_S
        return _waited(asyncio.wait_for(getattr(self.fs, f"_{name}")(*args, **kwargs), limit), self.fs.loop)

    def each(self, call: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """Return what `call` gives for each item, in order, several at once; the first error drops those not begun."""
        if len(items) < 2:
            return [call(item) for item in items]
        with ThreadPoolExecutor(min(AT_ONCE, len(items)), thread_name_prefix="store") as pool:
            futures = [pool.submit(copy_context().run, call, item) for item in items]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _waited(call: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Return what a coroutine gives on the driver's loop; an interrupt of this thread's work cancels it."""
    future = asyncio.run_coroutine_threadsafe(call, loop)
    try:
        while not wait([future], _SLICE_S).done:
            check_interrupted()
        return future.result()
    except BaseException:
        future.cancel()
        raise
