"""The password of a server: `USER:PASSWORD` in a file that its owner alone can read, as for Prefect's API."""

import os
import secrets
from pathlib import Path

from schemas.errors import CpbError
from tasks.storage.files import read_private, write_secret

USER = "cpb"


def prefect_home() -> Path:
    """Return Prefect's folder: `PREFECT_HOME`, or `~/.prefect`."""
    return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser().absolute()


def password_file() -> Path:
    """Return the file of the API's password in Prefect's folder. The password allows running commands as this user."""
    return prefect_home() / "cpb-api-auth"


def make_password(path: Path, *, new: bool = False) -> str:
    """Return `USER:PASSWORD` of a file that only its owner can read; create a random password if there is none yet.

    Args:
        new: replace the password of an earlier server, which others may have received after that server's end.
    """
    if path.is_symlink() or path.exists():
        text = read_password(path)  # a file that others could have read, or no file of ours, is not replaced
        if not new:
            return text
        path.unlink()
    # Read back instead of returned as made: server, worker and flow runs get what the file holds.
    write_secret(path, f"{USER}:{secrets.token_urlsafe(32)}\n")
    return read_password(path)


def read_password(path: Path) -> str:
    """Return `USER:PASSWORD`.

    Raises:
        CpbError: the file does not exist, or other users could have read or written it.
    """
    try:
        text = read_private(path, 1000).strip()
        why = "" if text.partition(":")[2] else "it contains no password"
    except OSError as error:
        why = error.strerror or "it cannot be opened"
    if why:
        raise CpbError(
            f"the password file {path} cannot be used: {why}; run `cpb deploy down`, delete the file if there is one, "
            "and run `cpb deploy up`, which makes a new one",
            code="auth-file",
            field=str(path),
        )
    return text
