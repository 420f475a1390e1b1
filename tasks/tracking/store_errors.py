"""Errors of MLflow, its server and its database as one sentence that shows no password and says what to do."""

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from schemas.errors import CpbError
from tasks.storage.urls import public_url, without_credentials
from tasks.tracking.home_store import (
    TAKE,
    tracking_uri,
)

UNUSABLE = "store"
"""Code of the error for a store that cannot be used."""
_LIBRARIES = ("mlflow", "sqlalchemy", "alembic")
BEGIN_ANEW = f"restore it from a backup, or move it away and begin a new one with `{TAKE}`"

_SCHEMA = re.compile(r"out-of-date database schema \(found version (\w+)")


@contextmanager
def store_errors(uri: str = "") -> Iterator[None]:
    """Raise any error of MLflow or its database in the block as a `CpbError` of one sentence.

    Args:
        uri: of the store; default `tracking_uri()`.
    """
    try:
        yield
    except Exception as error:
        if any(base.__module__.partition(".")[0] in _LIBRARIES for base in type(error).__mro__):
            raise store_error(uri or tracking_uri(), error) from None
        raise


def store_error(uri: str, error: BaseException) -> CpbError:
    """Return an error of a database, a server or MLflow as one sentence without credentials.

    The reason is the first line of the innermost message: the driver's, not the wrapper's.
    """
    # Drivers, SQLAlchemy and MLflow wrap each other's errors; the innermost says what happened.
    causes = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    of_driver = [origin for cause in causes if (origin := getattr(cause, "orig", None))]
    of_network = [cause for cause in reversed(causes) if isinstance(cause, OSError)]
    innermost = next(iter((*of_driver, *of_network)), error)
    first_line = (str(innermost).strip() or type(innermost).__name__).splitlines()[0]
    store, reason = (
        f"the MLflow store {public_url(uri)}",
        without_credentials(_remedied(first_line, uri))[:300],
    )
    # Cut out by hand: an address that cannot be parsed has no user and password for `urlsplit`.
    password = uri.partition("://")[2].rpartition("@")[0].partition(":")[2]
    if "://" not in uri:  # the scheme may have been forgotten before a password
        store, reason = (
            "the MLflow store of MLFLOW_TRACKING_URI",
            "it is no URL, as in sqlite:///mlruns/mlflow.db",
        )
    elif isinstance(error, ValueError) or re.search(
        "[@/?#]", password
    ):  # URL and reason may show a part of it
        store = "the MLflow store of MLFLOW_TRACKING_URI"
        reason = "its URL cannot be parsed; in a user name or password write @, : and / as %40, %3A and %2F"
    return CpbError(
        f"{store} cannot be used: {reason.rstrip('.')}", code=UNUSABLE, field="MLFLOW_TRACKING_URI"
    )


def _remedied(reason: str, uri: str) -> str:
    """Return a reason of SQLite or MLflow that leaves open what to do, with what to do."""
    if "malformed" in reason or "file is not a database" in reason:
        return f"{reason}: its file is damaged; {BEGIN_ANEW}"
    if "unable to open database file" in reason:
        return f"{reason}: check that its folder exists, and that this user may read and write there"
    if found := _SCHEMA.search(reason):
        # MLflow says the same of a schema that it does not know yet, and its upgrade would fail.
        spec = find_spec("mlflow.store.db_migrations")
        migrations = [Path(folder, "versions") for folder in (spec and spec.submodule_search_locations) or ()]
        if not any(path for folder in migrations for path in folder.glob(f"{found[1]}_*.py")):
            return (
                f"a newer MLflow than {version('mlflow')} wrote its tables (version {found[1]}); use the cpb and the "
                "MLflow that wrote them, or restore a backup from before"
            )
        upgrade = shlex.join([sys.executable, "-m", "mlflow", "db", "upgrade", public_url(uri)])
        return f"an older MLflow wrote its tables (version {found[1]}); make a backup, then run `{upgrade}`"
    return reason
