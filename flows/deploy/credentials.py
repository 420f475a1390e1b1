"""The API's password. Whoever holds it can run commands as this user, so only this user may read it.

It lies in `PREFECT_HOME/cpb-api-auth` and is kept over restarts (`flows/password_file.py`).
"""

from pathlib import Path

from flows.deploy.project import prefect_home
from flows.password_file import PasswordFile


def auth_file(home: Path | None = None) -> Path:
    """Return where the password lies."""
    return (home or prefect_home()) / "cpb-api-auth"


def make_auth(home: Path) -> str:
    """Return `USER:PASSWORD`; a random one is made where there is none yet. Errors as in `read_auth`."""
    return _file(home).make()


def read_auth(home: Path) -> str:
    """Return `USER:PASSWORD`.

    Raises:
        CpbError: there is no such file, or others than its owner could have read or written it.
    """
    return _file(home).read()


def _file(home: Path) -> PasswordFile:
    return PasswordFile(
        auth_file(home),
        missing="no server of `cpb deploy` has run with this PREFECT_HOME, or the file was deleted; run "
        "`cpb deploy down`, then `cpb deploy up`",
        remedy="run `cpb deploy down`, delete it, and run `cpb deploy up`, which makes a new one",
    )
