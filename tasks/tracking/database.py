"""Checks within ten seconds whether a store's database or server can be used; failures are reported in one sentence.

MLflow itself would retry for one to two minutes, then suggest upgrading the schema. So cpb checks first, once.
"""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from cpbmodels.errors import pip_install
from schemas.errors import CpbError
from tasks.storage.files import draft_name
from tasks.storage.locks import locked, temporary_lock
from tasks.storage.urls import public_url, without_credentials
from tasks.tracking.mlflow_private import ask_server, write_schema

if TYPE_CHECKING:
    from sqlalchemy import Connection

TIMEOUT_S = 7
_MAX_REASON_CHARS = 300
_UNREACHABLE = {
    "refused": "connection refused",
    "timeout": f"no answer within {TIMEOUT_S} s",
    "timed out": f"no answer within {TIMEOUT_S} s",
    "translate": "unknown host",
    "name or service": "unknown host",
    "nameresolution": "unknown host",
}
"""Short reasons for the libraries' long messages, by a word in them."""
_CONNECT_TIMEOUT = {"postgresql": "connect_timeout", "mysql": "connect_timeout", "mssql": "timeout"}
"""Name of each driver family's connect timeout option, in seconds."""
_OTHER_STORE = "or set MLFLOW_TRACKING_URI to another store"
PROXIED = "mlflow-artifacts:"
"""Scheme of artifacts stored by a tracking server."""
EXPERIMENT = "cpb"
"""Name of the experiment that holds all runs."""
_PACKAGES = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""Packages of drivers whose module has another name."""
_ENDPOINT = f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={EXPERIMENT}"

DOWN = "database-down"
"""Code of the error for a database or server that does not respond."""
_FAILURES = (
    ("database-locked", ("database is locked", "database table is locked"),
     "{store} is locked by another process; try again when that has ended, {other}"),
    ("database-refused", ("password", "authentication", "access denied", "no pg_hba.conf entry", "role \"",
                          "error code 401", "error code 403"),
     "{store} refuses the user or the password; correct them, {other}"),
    ("database-missing", ("does not exist", "unknown database"),
     "{store} does not exist on its server ({reason}); create the database, {other}"),
    ("database-damaged", ("not a database", "malformed", "disk image"),
     "{store} is damaged ({reason}); restore it from a backup, {other}"),
    ("disk-full", ("disk is full", "no space left"),
     "{store} cannot grow: its disk is full; free space there, {other}"),
    ("read-only-store", ("readonly database", "read-only", "permission denied"),
     "{store} cannot be written; allow writing there, {other}"),
    ("database-schema", ("out-of-date database schema", "can't locate revision"),
     "{store} has a schema of another MLflow version ({reason}); back it up, then run `mlflow db upgrade`, {other}"),
    ("plain-folder", ("filesystem tracking backend",),
     "MLflow no longer stores runs in a plain folder ({url}); set MLFLOW_TRACKING_URI to sqlite:///FILE or to a "
     "server's http address"),
    (DOWN, ("refused", "timeout", "timed out", "could not translate", "name or service", "unreachable", "max retries",
            "connection", "server closed"),
     "{store} cannot be reached ({reason}); start it, {other}"),
    ("database-unreadable", ("unable to open",),
     "{store} cannot be opened; check that the file can be read, {other}"),
    ("store", ("",), "{store} cannot be used ({reason}); check it, {other}"),
)  # fmt: skip
"""Each kind of failure: its code, words of the databases' messages for it in lower case, and its sentence."""


def quiet() -> None:
    """Let MLflow send no telemetry, and print no migrations, addresses or tracebacks of failed statements."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")  # waits a minute; 7 would wait over four
    for name in ("mlflow.store.db.utils", "mlflow.store.model_registry", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def sqlite_path(uri: str) -> Path | None:
    """Return the absolute database file of a `sqlite:///` URI, None for any other kind of store."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///")).absolute()


def artifacts_beside(database: Path) -> Path:
    """Return the artifact folder of a SQLite store."""
    return database.parent / "artifacts"


def is_server(uri: str) -> bool:
    """Whether the store is a tracking server, reached over HTTP."""
    return urlsplit(uri).scheme in ("http", "https")


def server_here(uri: str) -> bool:
    """Whether a tracking server has a loopback address: it is on this machine, or behind a tunnel."""
    host = urlsplit(uri).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")


def no_shared_place(uri: str, folder: Path | None = None) -> CpbError:
    """Return the error for a shared store whose artifacts would be in a folder of a single machine.

    Args:
        folder: the recorded folder; None for a database without a record.
    """
    shown = public_url(uri)
    if is_server(uri):
        where = f"the MLflow server {shown} leaves artifacts to a folder of its own machine ({folder})"
        remedy = "start a server that stores them itself, on another database, as in docs/cluster.md"
    else:
        kept = f"recorded in {folder}, a folder of one machine" if folder else "without a place"
        where = f"the MLflow store {shown} is a bare database: the artifacts of runs are {kept}"
        remedy = (
            "start MLflow's server over it, as in docs/cluster.md, and set MLFLOW_TRACKING_URI to its address, or "
            f"create the experiment in an empty database with `mlflow experiments create -n {EXPERIMENT} -l s3://…`"
        )
    return CpbError(f"{where}; {remedy}", code="artifacts", field="MLFLOW_TRACKING_URI")


def check(uri: str, *, write: bool) -> None:
    """Raise an error if the store cannot be used now.

    Raises:
        CpbError: locked, unreachable, refused, damaged; see `code`.
    """
    if urlsplit(uri).scheme.partition("+")[0] == "sqlite":
        _check_sqlite(uri, write)
    elif is_server(uri):
        _check_server(uri)
    elif urlsplit(uri).scheme.partition("+")[0] in _CONNECT_TIMEOUT:
        _check_database(uri)


def failure(uri: str, error: BaseException) -> CpbError:
    """Return an error of a database, a server or MLflow as one sentence without credentials."""
    url = public_url(uri)
    store = f"the MLflow store {url}"
    if isinstance(error, ModuleNotFoundError):
        package = pip_install(_PACKAGES.get(f"{error.name}", f"{error.name}"))
        return CpbError(
            f"{store} needs the Python package {error.name}, which is not installed; run `{package}`, {_OTHER_STORE}",
            code="missing-package",
        )
    reason = _first_line(error)
    lower = reason.lower()
    code, _, sentence = next(known for known in _FAILURES if any(word in lower for word in known[1]))
    if code == DOWN:
        reason = next((what for word, what in _UNREACHABLE.items() if word in lower), reason)
        if urlsplit(uri).netloc.count("@") > 1:
            reason += "; in a user name or password write @, : and / as %40, %3A, %2F"
    known = {"store": store, "url": url, "reason": reason[:_MAX_REASON_CHARS], "other": _OTHER_STORE}
    return CpbError(sentence.format_map(known), code=code)


def is_unavailable(error: BaseException) -> bool:
    """Whether an exception of MLflow's client means that the store is unavailable, not that a request was invalid."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import InterfaceError, OperationalError

    away = (OperationalError, InterfaceError)
    if isinstance(error, away):
        return True
    if not isinstance(error, MlflowException):
        return False
    # First a database error wrapped by MLflow, second an HTTP request that failed after all retries.
    return isinstance(error.__cause__, away) or str(error.message).startswith("API request to ")


def is_writable(database: Path) -> bool:
    """Whether this process may write a SQLite database and its folder, where SQLite creates further files."""
    return os.access(database, os.W_OK) and os.access(database.parent, os.W_OK)


def wal_of(database: Path) -> Path:
    """Return the file with a SQLite database's newest changes, which exists while a process has it open."""
    return database.with_name(f"{database.name}-wal")


def read_only_uri(database: Path) -> str:
    """Return the URI by which SQLite reads a database that it may not write.

    In WAL mode it would create files beside it, unless another process has it open, or it is called immutable.
    """
    immutable = "" if wal_of(database).exists() else "&immutable=1"
    # With the driver: MLflow makes the parent folders of the path in any URI that begins with sqlite:///.
    return f"sqlite+pysqlite:///file:{quote(str(database))}?uri=true&mode=ro{immutable}"


def make_sqlite(database: Path) -> None:
    """Create MLflow's SQLite schema at `database` atomically: it is either absent or complete.

    MLflow's own first use corrupts the migration if two processes start together, and a kill during it leaves a
    partial schema that no later start repairs.

    Raises:
        CpbError: its folder cannot be created or written.
    """
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        with locked(_lock_file(f"sqlite:///{database}")):
            if not database.exists():  # another process may have been first
                _write_whole_schema(database)
    except (OSError, CpbError) as error:
        raise CpbError(
            f"the MLflow store {database} cannot be created ({getattr(error, 'strerror', None) or error}); "
            "set MLFLOW_TRACKING_URI to a writable place",
            code="store",
        ) from error


@contextmanager
def exclusive(uri: str) -> Iterator[None]:
    """Lock the store against other processes and threads of this machine; the kernel releases the lock on exit."""
    with locked(_lock_file(uri)):
        yield


def _lock_file(uri: str) -> Path:
    database = sqlite_path(uri)
    if database:
        return database.parent / f".{database.name}.lock"
    return temporary_lock(f"store-{sha256(uri.encode()).hexdigest()[:16]}.lock")


def _write_whole_schema(database: Path) -> None:
    part = draft_name(database)
    part.touch()  # SQLite would create it writable by its owner only, whatever the umask
    quiet()
    try:
        write_schema(part)
        part.rename(database)
    finally:
        part.unlink(missing_ok=True)


def _check_sqlite(uri: str, write: bool) -> None:
    try:
        target = uri.partition(":///")[2]
        is_uri = target.startswith("file:")
        with closing(
            sqlite3.connect(target, timeout=TIMEOUT_S, isolation_level=None, uri=is_uri)
        ) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if write:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise failure(uri, error) from error


def _check_server(uri: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        status = ask_server(uri, _ENDPOINT, TIMEOUT_S).status_code
    except MlflowException as error:
        raise failure(uri, error) from None  # the cause contains the request and so the password
    server = f"the MLflow server {public_url(uri)}"
    if status in (401, 403):
        raise CpbError(
            f"{server} refuses the credentials ({status}); set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
            code="database-refused",
        )
    if status not in (200, 404):  # 404: it has no experiment `cpb` yet
        raise CpbError(
            f"{server} answers with HTTP status {status}; look at its log, {_OTHER_STORE}",
            code=DOWN,
        )


def _check_database(uri: str) -> None:
    import sqlalchemy

    try:
        with _connection(uri):
            pass
    except (sqlalchemy.exc.SQLAlchemyError, ModuleNotFoundError) as error:
        raise failure(uri, error) from None  # SQLAlchemy's exception may hold the URI
    except ValueError:  # from int(); its message may contain a part of the password
        raise CpbError(
            f"the port in the MLflow store's URL is not a number; correct it, {_OTHER_STORE}",
            code="store", field="MLFLOW_TRACKING_URI",
        ) from None  # fmt: skip


def _connection(uri: str) -> "Connection":
    """Return a new connection to a database server, with connect timeout `TIMEOUT_S`."""
    import sqlalchemy
    from sqlalchemy.pool import NullPool

    scheme = urlsplit(uri).scheme
    limit = "timeout" if scheme.endswith("+pg8000") else _CONNECT_TIMEOUT[scheme.partition("+")[0]]
    return sqlalchemy.create_engine(uri, poolclass=NullPool, connect_args={limit: TIMEOUT_S}).connect()


def _first_line(error: BaseException) -> str:
    """Return the first line of the innermost message: the driver's, not the wrapper's."""
    origin = getattr(error, "orig", None) or getattr(error.__cause__, "orig", None) or error
    lines = [line.strip() for line in str(origin).splitlines() if line.strip()]
    return without_credentials(lines[0] if lines else type(origin).__name__).rstrip(".")
