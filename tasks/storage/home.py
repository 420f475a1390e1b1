"""The version of a home: the layout of files below `CPB_HOME`, checked before a command reads or writes there.

A home of another version is refused, never migrated. Kept forever, whatever this version: forecast rows with their
chain (`forecasts/`), and published model folders.
"""

import re
import shlex
from pathlib import Path

from schemas.errors import CpbError
from schemas.scope import home
from tasks.storage.files import write_bytes

_VERSION_TEXT = re.compile(rb"\d{1,9}\s*")

VERSION = "2"
VERSION_FILE = "cpb-version"


def check_home(folder: Path) -> Path:
    """Return the folder if this version can use it as home, or if it does not exist yet.

    Raises:
        CpbError: another version of cpb wrote there (`home-version`), or its version file is damaged.
    """
    found = version_of(folder)
    if found not in ("", VERSION):
        raise CpbError(
            f"{folder} was written by another version of cpb (its {VERSION_FILE} says {found}, this version reads "
            f"{VERSION}): set CPB_HOME to another folder, or use the version that wrote it",
            code="home-version", field="CPB_HOME",
        )  # fmt: skip
    return folder


def checked_home() -> Path:
    """Return `CPB_HOME`, checked by `check_home`."""
    return check_home(home())


def stored_home() -> Path:
    """Return `CPB_HOME`, for read-only commands.

    Raises:
        CpbError: the folder is missing (`no-home`), or another version of cpb wrote there.
    """
    folder = checked_home()
    if not folder.is_dir():
        raise CpbError(
            f"nothing is stored in {folder}: there is no such folder; correct CPB_HOME, or fill it with `cpb demo`",
            code="no-home", field="CPB_HOME",
        )  # fmt: skip
    return folder


def mark_home(folder: Path) -> None:
    """Write the version to a home without a version, before anything else is stored there."""
    if not version_of(folder):
        write_bytes(folder / VERSION_FILE, f"{VERSION}\n".encode())


def version_of(folder: Path) -> str:
    """Return the version of a home, "" if nothing is stored yet.

    Raises:
        CpbError: the file holds anything but a number (`home-damaged`).
    """
    path = folder / VERSION_FILE
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if not _VERSION_TEXT.fullmatch(content):
        raise CpbError(
            f"{path} is damaged: it holds {content[:20]!r} instead of a number; if this version of cpb wrote that "
            f"home, repair it with `echo {VERSION} > {shlex.quote(str(path))}`, then check the rest with `cpb verify`",
            code="home-damaged", field="CPB_HOME",
        )  # fmt: skip
    return content.decode().strip()
