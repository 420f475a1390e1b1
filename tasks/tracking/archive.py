"""Archives of a home and its MLflow store in a folder that outlives the machine's disk, written after every fleet.

For machines that end without notice: Colab, Kaggle, rented machines that are taken back. `CPB_KEEP` names the folder,
such as one in Google Drive. Home and store themselves belong on the local disk: SQLite in WAL mode needs file locks and
a memory-mapped file that every process sees at once, which network and FUSE file systems such as Drive's do not give.
Its database would be damaged, and a training waits for each of its small files.

An archive is taken while other fleets train. Databases are copied through SQLite, as one reader sees them, and before
the files that they name: a file that came later does no harm. Every other file appears by rename, so that a copy of it
is whole. An archive is written under a hidden name and renamed, and gzip's checksum tells a whole one from a part. Two
are kept, since such a folder may hand a file on (upload it) later than it accepts it.

Others may read such a folder, so passwords and tokens are left out: the file of notification services, and folders of
other programs that lie in the home. So are hidden files, which are locks, drafts and other programs' own.
"""

import gzip
import os
import re
import sqlite3
import tarfile
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from schemas.errors import CpbError, UsageError, log
from schemas.home import home_folder
from schemas.identity import MARKETS, tree_of
from schemas.retention import ARCHIVES, DRAFT_S
from tasks.running.progress import PrintLine
from tasks.storage.files import DRAFT, NOTIFY_FILE, replacing
from tasks.storage.folders import new_folder
from tasks.storage.interrupts import check_interrupted
from tasks.storage.locks import locked, temporary_lock
from tasks.tracking.home_store import home_store, sqlite_path, tracking_uri

KEEP = "CPB_KEEP"
"""Environment variable: the folder of the archives; nothing is archived without it."""

PLACE = "cpb-archive-of.txt"
"""First file of an archive: the absolute path of the home, which MLflow's database holds too."""

OF_OTHERS = ("CPB_DEPLOY_STATE", "HF_HOME", "PREFECT_HOME")
"""Environment variables: folders with passwords, tokens and logs, which may lie in a home and are not archived."""

_NAME = re.compile(r"cpb-(?P<store>[0-9a-f]{32})-(?P<time>\d{8}T\d{6}Z)\.tar\.gz")
_SQLITE_HEADER = b"SQLite format 3\0"
_BESIDE_DATABASE = ("-wal", "-shm", "-journal")
_READ_BYTES = 1 << 20


def archive_folder() -> Path | None:
    """Return the folder of `CPB_KEEP`, None if it is not set.

    Raises:
        UsageError: there is no such folder, it lies in the home, or the home's store, or a part of the home, elsewhere.
    """
    if not (given := os.environ.get(KEEP)):
        return None
    folder, here = Path(given).absolute(), home_folder().absolute()
    if not folder.is_dir():
        raise UsageError(
            f"{KEEP}={given}: there is no such folder; make it (and mount its disk), or leave {KEEP} unset",
            code="keep",
            field=KEEP,
        )
    if folder.resolve().is_relative_to(here.resolve()):
        raise UsageError(
            f"{KEEP}={given} lies in CPB_HOME, which it is to outlive: name a folder elsewhere",
            code="keep",
            field=KEEP,
        )
    # The database is copied through SQLite, and found again by its place in the home: a server's is neither
    # here nor copied.
    database = sqlite_path(tracking_uri())
    if database is None or not database.is_relative_to(here):
        raise UsageError(
            f"{KEEP} archives a home together with its store, and this store is not in the home {here}: set CPB_HOME "
            "to a new folder without MLFLOW_TRACKING_URI, so that the store lies in it",
            code="keep",
            field=KEEP,
        )
    for _ in _folders(here):  # a link is found now, not after hours
        pass
    return folder


class Archiver:
    """Archives the home into the folder of `CPB_KEEP`, if it is set; a failure is a warning and ends no training.

    Fleets that end while an archive is written share the next one.

    Raises:
        UsageError: from `archive_folder`.
    """

    def __init__(self, report: PrintLine) -> None:
        self._report, self._folder = report, archive_folder()
        self._one_at_a_time, self._begun = threading.Lock(), 0.0

    def archive(self) -> None:
        """Archive what is stored now."""
        asked = time.monotonic()
        if not self._folder:
            return
        with self._one_at_a_time:
            # One that was begun after this fleet asked has all of it; one begun earlier may not.
            if self._begun > asked:
                return
            self._begun = time.monotonic()
            try:
                path = archive(self._folder, home_folder().absolute())
                self._report(f"kept: {path} ({path.stat().st_size / 1e6:.1f} MB)")
            except (CpbError, OSError, sqlite3.Error) as error:
                log.warning("not kept: %s", error)


def archive(folder: Path, place: Path) -> Path:
    """Write an archive of the home `place` to a folder; older ones of its store but the newest are deleted.

    Left out is what is computed again at once (features, and kernels compiled for this machine), and what is secret.

    Raises:
        CpbError: the home has no store yet, or the folder is gone.
        UsageError: a folder of the home is a link.
    """
    record = home_store(place)
    if record is None:
        raise CpbError(f"the home {place} has no store yet, so there is nothing to archive", code="keep")
    if not folder.is_dir():  # not made here: below a mount point it would lie on the disk that is lost
        raise CpbError(
            f"the folder {folder} is not there any more; mount its disk again", code="keep", field=KEEP
        )
    with locked(temporary_lock(f"archive-{record.store_id}.lock")):
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        path = folder / f"cpb-{record.store_id}-{stamp}.tar.gz"
        with replacing(path) as draft, tarfile.open(draft, "w:gz", compresslevel=1) as target:
            _fill(target, place)
        # After the new one is in place: a full disk never leaves fewer archives than before.
        for old in (*archives(folder, record.store_id)[ARCHIVES:], *_left(folder, record.store_id)):
            old.unlink(missing_ok=True)
        return path


def _left(folder: Path, store_id: str) -> Iterator[Path]:
    """Yield the drafts of this store's archives that a killed run left more than a day ago."""
    for path in folder.glob(f".cpb-{store_id}-*"):
        draft = DRAFT.fullmatch(path.name)
        if draft and _NAME.fullmatch(draft["name"]) and time.time() - path.stat().st_mtime > DRAFT_S:
            yield path


def archives(folder: Path, store_id: str = "") -> list[Path]:
    """Return the archives in a folder (of one store), newest first."""
    named = {path: _NAME.fullmatch(path.name) for path in folder.iterdir()}
    found = [
        (match["time"], path) for path, match in named.items() if match and store_id in ("", match["store"])
    ]
    return [path for _, path in sorted(found, reverse=True)]


def restore(place: Path, *folders: Path) -> Path | None:
    """Put the newest whole archive of the home `place` in these folders where it is to be; return the archive.

    Returns:
        None where there is no archive, or something lies in the home already: it is left as it is.

    Raises:
        CpbError: no archive is whole, or all are of homes in other places.
    """
    place = place.absolute()
    if place.exists() and any(place.iterdir()):
        return None
    found = [path for folder in folders if folder.is_dir() for path in archives(folder)]
    found.sort(key=lambda path: path.name.rpartition("-")[2], reverse=True)
    # MLflow's database holds absolute paths, so an archive serves only where its home was.
    places = {path: _place_of(path) for path in found}
    for path in found:
        if places[path] not in ("", str(place)):
            continue
        # Read to its end before anything is written: unpacking a part would leave half a home.
        if fault := _fault(path) or ("" if places[path] else "it does not say of which home it is"):
            log.warning("%s is not whole (%s); the one before it is taken", path, fault)
            continue
        with new_folder(place) as draft:
            with tarfile.open(path, "r:gz") as source:
                # The filter refuses links, devices and paths that lead out of the folder.
                source.extractall(draft, filter="data")
            (draft / PLACE).unlink()
        return path
    others = [path for path in found if places[path] not in ("", str(place))]
    if len(others) < len(found):
        where = ", ".join(sorted({str(path.parent) for path in found}))
        message = f"no archive in {where} is whole: move them away to begin anew"
        raise CpbError(message, code="damaged", field=where)
    if others:
        raise CpbError(
            f"{others[0]} is an archive of the home {places[others[0]]}, whose place MLflow's database holds: set "
            "CPB_HOME to it",
            code="keep",
            field="CPB_HOME",
        )
    return None


def _fill(target: tarfile.TarFile, place: Path) -> None:
    databases = [path for path in _files(place) if _is_database(path)]
    # The journals of a database belong to its live file; the copy has what they held.
    beside = {Path(f"{path}{suffix}") for path in databases for suffix in _BESIDE_DATABASE}
    with tempfile.TemporaryDirectory() as folder:
        of = Path(folder) / PLACE
        of.write_text(f"{place}\n")
        _add(target, of, Path(PLACE))
        copy = Path(folder) / "copy.db"
        for path in databases:  # before other files: see the module's docstring
            with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as copied:
                source.backup(copied)
            _add(target, copy, path.relative_to(place))
            copy.unlink()
        for path in _files(place):
            if path not in beside and path not in databases:
                check_interrupted()
                with suppress(FileNotFoundError):  # replaced, or deleted
                    _add(target, path, path.relative_to(place))


def _add(target: tarfile.TarFile, path: Path, name: Path) -> None:
    with path.open("rb") as file:  # opened first: its content stays, whatever is renamed over it
        target.addfile(target.gettarinfo(arcname=str(name), fileobj=file), file)


def _files(place: Path) -> Iterator[Path]:
    """Yield the files of a home that are archived."""
    for folder, files in _folders(place):
        for name in files:
            path = folder / name
            if not name.startswith(".") and path != place / NOTIFY_FILE and path.is_file():
                yield path


def _folders(place: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folders of a home that are archived, each with the names of its files.

    Raises:
        UsageError: a folder is a link: what it holds lies outside of the home.
    """
    left_out = {tree_of(place, "features", market) for market in MARKETS} | {place / "triton"}
    left_out |= {
        Path(folder).expanduser().absolute() for name in OF_OTHERS if (folder := os.environ.get(name))
    }
    for folder, names, files in os.walk(place):
        here = Path(folder)
        # In place, so that `os.walk` does not enter what is left out.
        names[:] = [name for name in names if not name.startswith(".") and here / name not in left_out]
        if link := next((here / name for name in names if (here / name).is_symlink()), None):
            raise UsageError(
                f"{link} is a link, and {KEEP} archives what lies in CPB_HOME itself: put the folder there, or leave "
                f"{KEEP} unset",
                code="keep",
                field=KEEP,
            )
        yield here, files


def _is_database(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(_SQLITE_HEADER)) == _SQLITE_HEADER
    return False


def _fault(path: Path) -> str:
    """Return why an archive is not whole, "" if it is: gzip compares its checksum at its end."""
    if not path.stat().st_size:  # for gzip an archive of nothing
        return "it is empty"
    try:
        with gzip.open(path) as content:
            while content.read(_READ_BYTES):
                pass
    except (OSError, EOFError, zlib.error) as error:
        return str(error)
    return ""


def _place_of(path: Path) -> str:
    """Return the home of an archive, "" if it does not say it."""
    # Unzipped by gzip: tarfile's own reader of a header that ends early raises what no caller expects (TypeError).
    with (
        suppress(OSError, EOFError, tarfile.TarError, zlib.error),
        gzip.open(path) as content,
        tarfile.open(fileobj=content, mode="r|") as source,
    ):
        first = source.next()
        if first and first.name == PLACE and (file := source.extractfile(first)):
            return file.read().decode(errors="replace").strip()
    return ""
