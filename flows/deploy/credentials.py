"""The API's password. Whoever holds it can run commands as this user, so only this user may read it.

It lies in `PREFECT_HOME/cpb-api-auth` and is kept over restarts. Processes read the file themselves and hand the
password on in their environment; it never stands on a command line, in a unit file or in a log.
"""

import os
import secrets
import stat
from pathlib import Path

from flows.deploy.project import prefect_home
from schemas.errors import CpbError

USER = "cpb"
_OTHERS = 0o077


def auth_file(home: Path | None = None) -> Path:
    """Return where the password lies."""
    return (home or prefect_home()) / "cpb-api-auth"


def make_auth(home: Path) -> str:
    """Return `USER:PASSWORD`; a random one is made where there is none yet."""
    path = auth_file(home)
    if not path.is_symlink() and not path.exists():
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(f"{USER}:{secrets.token_urlsafe(32)}\n")
                file.flush()
                os.fsync(file.fileno())
            _link(draft, path)
        finally:
            draft.unlink()
    return read_auth(home)


def read_auth(home: Path) -> str:
    """Return `USER:PASSWORD`.

    Raises:
        CpbError: there is no such file, or others than its owner could have read or written it.
    """
    path = auth_file(home)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise CpbError(
            f"{path} does not exist: no server of `cpb deploy` has run with this PREFECT_HOME, or the file was "
            "deleted; run `cpb deploy down`, then `cpb deploy up`",
            code="no-auth-file", field=str(path),
        ) from error  # fmt: skip
    except OSError as error:
        raise _unsafe(path, error.strerror or "it cannot be opened") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _unsafe(path, "it is not a file")
        if status.st_uid != os.getuid():
            raise _unsafe(path, "it belongs to another user")
        if status.st_mode & _OTHERS:
            raise _unsafe(path, f"its mode is {stat.S_IMODE(status.st_mode):o}, so that others may know it")
        text = os.read(handle, 1000).decode().strip()
    finally:
        os.close(handle)
    if not text.partition(":")[2]:
        raise _unsafe(path, "it holds no password")
    return text


def _link(draft: Path, path: Path) -> None:
    """Give the finished file its name; the file of another process that was faster stays."""
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        return


def _unsafe(path: Path, why: str) -> CpbError:
    return CpbError(
        f"the password file {path} is not safe to use: {why}; run `cpb deploy down`, delete it, and run "
        "`cpb deploy up`, which makes a new one",
        code="auth-file-unsafe", field=str(path),
    )  # fmt: skip
