"""The seal of a folder: one record that lists each of its files with its sha256.

It answers for every file of the folder whether it is the one that was written. A file that the seal does not list is
not finished: its writer was killed, and writes it again. So a file leaves the list before it changes, and returns to it
when it is on disk; a kill in between costs that file, and never makes a whole folder look damaged.

Two commands can meet in one folder, as both judge what one of them has trained. Writers hold its lock from what they
decide by to the end of `resealing`; readers need none.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import ENOENT
from hashlib import sha256
from pathlib import Path

from cpbmodels.files import read_regular
from schemas.base import Record
from schemas.errors import DamagedError
from tasks.storage.locks import locked
from tasks.storage.records import AGAIN, NOT_WRITTEN, digest_fault, file_digest, read_record, write_record

SEAL = "files.json"
SEAL_LOCK = "lock"


class Seal(Record):
    """The sha256 of files by their paths relative to the folder."""

    files: dict[str, str]


def seal(folder: Path) -> None:
    """Seal a folder with all files below it."""
    # Sorted, so that the same files have the same seal on every file system.
    paths = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
    _write(folder, {name: file_digest(folder / name) for name in paths if name != SEAL})


def sealed_files(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file of a sealed folder; raises `FileNotFoundError` (no seal) or `DamagedError`."""
    return read_record(folder / SEAL, Seal).files


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Let nobody else write in a sealed folder during the block: `resealing` stands in such a block."""
    # In the folder, not among a user's own locks: that of another user, or of another host, must meet it.
    with locked(folder / SEAL_LOCK):
        yield


@contextmanager
def resealing(folder: Path, *names: str) -> Iterator[None]:
    """Let the block write or delete these files of a sealed folder; errors as in `sealed_files`.

    The other files keep the digests with which they were written: what was damaged meanwhile stays damaged.
    """
    kept = {name: digest for name, digest in sealed_files(folder).items() if name not in names}
    _write(folder, kept)
    yield  # without `finally`: after an error the files are not finished either
    written = (name for name in names if (folder / name).exists())
    _write(folder, kept | {name: file_digest(folder / name) for name in written})


def read_sealed(folder: Path, name: str) -> bytes:
    """Return the content of a file of a sealed folder.

    Raises:
        FileNotFoundError: it is missing, or was not finished.
        DamagedError: it, or the seal, is not the file that was written.
    """
    digest, path = sealed_files(folder).get(name), folder / name
    if digest is None:
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(path))
    # Hashed from what is returned, not from a second reading of the file.
    content = read_regular(path)
    if sha256(content).hexdigest() != digest:
        raise DamagedError.of(path, NOT_WRITTEN, AGAIN)
    return content


def sealed_fault(folder: Path, name: str, digest: str) -> str:
    """Return the fault of a file by its digest in the seal, "" for none, or where it has been written to since."""
    fault = digest_fault(folder / name, digest)
    # A writer takes the file off the list first: as long as the list says the same, nobody has touched the file.
    return fault if fault and sealed_files(folder).get(name) == digest else ""


def check_sealed(folder: Path, *names: str) -> None:
    """Raise `DamagedError` for the first file of a sealed folder that is missing or damaged; `names`: default all.

    A file that is not finished is left out. Other errors as in `sealed_files`.
    """
    for name, digest in sealed_files(folder).items():
        if (not names or name in names) and (fault := sealed_fault(folder, name, digest)):
            raise DamagedError.of(folder / name, fault, AGAIN)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    write_record(folder / SEAL, Seal(files=dict(files)), compact=True)
