"""The version of a home (the files below `CPB_HOME`): another version's is refused in one sentence, never migrated.

Kept forever, whatever the version: forecast rows with their chain (`forecasts/`), and published model folders.
"""

import re
import shlex
from pathlib import Path

from schemas.errors import CpbError
from schemas.home import home_folder
from tasks.storage.files import write_bytes

VERSION = "3"
VERSION_FILE = "cpb-version"
OTHER_VERSION = "home-version"
"""Code of the error for a home that this version cannot use."""


def check_home(folder: Path) -> Path:
    """Return the folder if this version can use it as home, or if it does not exist yet.

    Raises:
        CpbError: another version of cpb wrote there (`home-version`).
    """
    path = folder / VERSION_FILE
    try:
        version = path.read_bytes()[
            :20
        ]  # enough for a number; anything else is shown, and must stay one line
    except (FileNotFoundError, NotADirectoryError):
        return folder  # a home of nobody yet: its first writer marks it
    except OSError as error:
        raise CpbError(
            f"{path} cannot be read ({error.strerror}), so it is not known whether this version can use {folder}: put "
            f"the file back, as in `{restore_version(path)}`",
            code=OTHER_VERSION,
            field="CPB_HOME",
        ) from error
    if version.strip() == VERSION.encode():
        return folder
    # A number is another version; anything else damage. The remedies differ: the first must not be overwritten.
    shown = repr(version.decode(errors="replace").strip())
    if re.fullmatch(rb"[0-9]{1,9}\s*", version):
        raise CpbError(
            f"{folder} was written by another version of cpb (its {VERSION_FILE} holds {shown}, this version "
            f"reads {VERSION}): set CPB_HOME to another folder, or use the version that wrote it; if it was this "
            f"version, the file is damaged, and `{restore_version(path)}` restores it",
            code=OTHER_VERSION,
            field="CPB_HOME",
        )
    raise CpbError(
        f"{path} is damaged (it holds {shown}, no number of a version): `{restore_version(path)}` restores it, if "
        "this version wrote the folder",
        code=OTHER_VERSION,
        field="CPB_HOME",
    )


def restore_version(path: Path) -> str:
    """Return the command that makes the file with the home's version again; whatever else is there is moved away."""
    # `echo` would write through a link, into a file that is not the home's, and cannot replace a folder.
    place, aside = shlex.quote(str(path)), shlex.quote(f"{path}.damaged")
    moved = f"mv {place} {aside} && " if path.is_dir() or path.is_symlink() else ""
    return f"{moved}echo {VERSION} > {place}"


def checked_home() -> Path:
    """Return `CPB_HOME`, checked by `check_home`."""
    return check_home(home_folder())


def stored_home() -> Path:
    """Return `CPB_HOME`, for read-only commands.

    Raises:
        CpbError: the folder is missing (`no-home`), or another version of cpb wrote there.
    """
    folder = checked_home()
    if not folder.is_dir():
        raise CpbError(
            f"nothing is stored in {folder}: there is no such folder; correct CPB_HOME, or fill it with `cpb demo`",
            code="no-home",
            field="CPB_HOME",
        )
    return folder


def mark_home(folder: Path) -> None:
    """Write the version to a home without a version, before anything else is stored there."""
    if not (folder / VERSION_FILE).exists():
        write_bytes(folder / VERSION_FILE, f"{VERSION}\n".encode())
