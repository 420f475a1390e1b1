"""Opens MLflow's store: one check, one lock, the experiment, and its runs by their ids.

Every command opens the store of its home here (`open_store`, `read_store`), and another store is refused here.
"""

import logging
import os
import re
import shlex
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from schemas.errors import CpbError, DamagedError
from schemas.home import home_folder, new_store_folder
from schemas.identity import MARKETS
from tasks.storage.files import draft_name
from tasks.storage.home_version import check_home
from tasks.storage.locks import locked, machine_lock
from tasks.storage.urls import local_path, public_url, without_credentials
from tasks.tracking.home_store import (
    RECORD,
    TAKE,
    HomeStore,
    home_store,
    is_server,
    named_uri,
    new_store_uri,
    sqlite_path,
    tracking_uri,
    write_home_store,
)

if TYPE_CHECKING:
    import requests
    from mlflow.entities import Experiment, Run
    from mlflow.tracking import MlflowClient

    from tasks.storage.packaged import PackagedModel

TIMEOUT_S = 7
EXPERIMENT = "cpb"
"""Name of the experiment that holds all runs."""
UNUSABLE = "store"
"""Code of the error for a store that cannot be used."""
_LIBRARIES = ("mlflow", "sqlalchemy", "alembic")
_ENDPOINT = f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={EXPERIMENT}"
CHECKED_MLFLOW = "3.17.2"
"""Version in which the undocumented parts of MLflow that this file, `prune` and `flows/ops/serve` use were read."""
LAYOUT_TAG, LAYOUT = "cpb.layout", "3"
"""Version of the names and tags of runs and models in the experiment; other versions are refused."""
STORE_ID = "cpb.store_id"
"""Tag of the experiment: by it a home knows its store, wherever that lies."""
TAGS = {"mlflow.experimentKind": "custom_model_development", LAYOUT_TAG: LAYOUT}
"""Tags of a new experiment, beside its `STORE_ID`; the first tells MLflow's page the kind of experiment."""
NO_STORE = "no-store"
"""Code of the error for a store that does not exist yet."""
LOST = "lost-store"
"""Code of the error for a home's store that no longer exists where it should lie."""
OTHER = "other-store"
"""Code of the error for a store that is not the home's."""
_BEGIN_ANEW = f"restore it from a backup, or move it away and begin a new one with `{TAKE}`"
PAGE = 1000
_IDS = 200  # of runs in one filter
T = TypeVar("T")

_SCHEMA = re.compile(r"out-of-date database schema \(found version (\w+)")


def quiet() -> None:
    """Let MLflow send no telemetry, and print no migrations, addresses or tracebacks of failed statements."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")  # waits a minute; 7 would wait over four
    for name in ("mlflow.store.db.utils", "mlflow.store.model_registry", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def database_damage(database: Path) -> str:
    """Return the errors that SQLite finds in the structure of a database file; "" for none, or if it cannot be opened.

    A flipped byte inside a value is not found: MLflow stores no digests of values.
    """
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", timeout=TIMEOUT_S, uri=True)) as db:
            errors = "; ".join(row[0] for row in db.execute("PRAGMA integrity_check(3)"))
    except sqlite3.OperationalError:
        return ""
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # sqlite3 cannot decode damaged names
        return str(error)
    return "" if errors == "ok" else " ".join(errors.split())[:300]


def check(uri: str) -> None:
    """Connect to the store once, for at most `TIMEOUT_S`; `CpbError` if it cannot be used now."""
    import sqlalchemy
    from mlflow.exceptions import MlflowException
    from sqlalchemy.pool import NullPool

    database = sqlite_path(uri)
    if database and not database.stat().st_size:  # `make_sqlite` leaves no such file
        raise store_error(uri, OSError(f"its file is empty; {_BEGIN_ANEW}"))
    try:
        if is_server(uri):
            response = ask_server(uri, _ENDPOINT, TIMEOUT_S)
            if response.status_code != 404:  # it has no experiment `cpb` yet
                response.raise_for_status()
            return
        limit = "connect_timeout" if uri.startswith(("postgres", "mysql")) else "timeout"
        engine = sqlalchemy.create_engine(uri, poolclass=NullPool, connect_args={limit: TIMEOUT_S})
        sqlalchemy.inspect(engine).get_table_names()
    except (MlflowException, sqlalchemy.exc.SQLAlchemyError, OSError, ValueError, ImportError) as error:
        raise store_error(uri, error) from None  # the exception may hold the URI


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
        return f"{reason}: its file is damaged; {_BEGIN_ANEW}"
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
                part = draft_name(database)
                part.touch()  # SQLite would create it writable by its owner only, whatever the umask
                try:
                    write_schema(part)
                    part.rename(database)
                finally:
                    part.unlink(missing_ok=True)
    except (OSError, CpbError) as error:
        raise CpbError(
            f"the MLflow store {database} cannot be created ({getattr(error, 'strerror', None) or error}); "
            "set MLFLOW_TRACKING_URI to a writable place",
            code=UNUSABLE,
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
    # Of all users of the machine: their processes continue each other's runs (`ProcessId.is_alive`).
    return machine_lock(f"cpb-store-{sha256(public_url(uri).encode()).hexdigest()[:16]}.lock")


def write_schema(path: Path) -> None:
    """Write MLflow's current SQLite schema to an empty file, built in memory: half the time of a migration on disk."""
    quiet()
    import sqlalchemy
    from mlflow.store.db import utils

    engine = sqlalchemy.create_engine("sqlite:///:memory:")
    utils._initialize_tables(engine)  # type: ignore[no-untyped-call]
    with engine.connect() as connection, closing(sqlite3.connect(path)) as target:
        source: Any = connection.connection.driver_connection
        source.backup(target)
        # Readers (the UI) and writers do not block each other, and a commit needs one fsync instead of three.
        target.execute("PRAGMA journal_mode=WAL")
    engine.dispose()


def ask_server(uri: str, endpoint: str, timeout_s: float) -> "requests.Response":
    """Send one GET request to a tracking server, with the credentials of MLflow's client; no retry."""
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    options = {"max_retries": 0, "timeout": timeout_s, "raise_on_status": False}
    credentials: Any = get_default_host_creds(uri)  # type: ignore[no-untyped-call]
    return http_request(credentials, endpoint, "GET", **options)  # type: ignore[no-any-return, no-untyped-call]


@dataclass(frozen=True)
class Store:
    """An opened tracking store; `id`: by which homes know it (`STORE_ID`)."""

    uri: str
    client: "MlflowClient"
    experiment_id: str
    id: str

    @property
    def artifacts(self) -> str:
        """The root URI of the artifacts of new runs, as recorded."""
        return str(self.client.get_experiment(self.experiment_id).artifact_location)


def connect(uri: str, *, create: bool = True) -> Store:
    """Connect to a reachable store.

    Args:
        uri: of the store.
        create: create the experiment `cpb` if it is missing.

    Raises:
        CpbError: the store is of another version, or was moved away from its artifacts; (code `NO_STORE`) the
            experiment is missing.
    """
    quiet()
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = _experiment(client, uri, create=create)
    # A person may have made the experiment, for its artifact location: then without the tag.
    if LAYOUT_TAG in experiment.tags:
        _check_layout(uri, experiment)
    return Store(uri, client, experiment.experiment_id, _id_of(experiment))


def _id_of(experiment: "Experiment") -> str:
    """Return the id of the store; of an experiment without one, that which every process and machine gives it."""
    parts = (experiment.experiment_id, experiment.creation_time, experiment.artifact_location)
    return experiment.tags.get(STORE_ID) or sha256(repr(parts).encode()).hexdigest()[:32]


def _check_layout(uri: str, experiment: "Experiment") -> None:
    if (layout := experiment.tags[LAYOUT_TAG]) != LAYOUT:
        raise CpbError(
            f"the experiment {EXPERIMENT} of the MLflow store {public_url(uri)} was made by another version of cpb "
            f"(layout {layout}, this version writes {LAYOUT}): set MLFLOW_TRACKING_URI to another store, or "
            "rename that experiment in MLflow",
            code="store-version",
            field="MLFLOW_TRACKING_URI",
        )
    database, folder = sqlite_path(uri), local_path(experiment.artifact_location)
    if database and folder and folder.resolve() != _artifacts(uri).resolve():
        raise CpbError(
            f"the MLflow store {database} was moved or copied: its artifacts are recorded in {folder}, which may be "
            "those of another store; docs/operations.md has the SQL line that records their new place",
            code="moved-store",
            field=str(database),
        )


def _experiment(client: "MlflowClient", uri: str, *, create: bool) -> "Experiment":
    """Return the experiment, created if missing; a server chooses the place of the artifacts itself."""
    from mlflow.entities import LifecycleStage
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        if not create:
            raise _no_store(f"{public_url(uri)} has no experiment {EXPERIMENT}")
        location = None
        if not is_server(uri):
            _artifacts(uri).mkdir(parents=True, exist_ok=True)
            location = _artifacts(uri).as_uri()
        try:
            # With its id in one transaction: no process ever sees the experiment without it.
            tags = TAGS | {STORE_ID: uuid4().hex}
            return client.get_experiment(client.create_experiment(EXPERIMENT, location, tags))
        except MlflowException as error:
            experiment = client.get_experiment_by_name(EXPERIMENT)
            if error.error_code != "RESOURCE_ALREADY_EXISTS" or not experiment:
                raise  # otherwise another process, perhaps of another machine, was first
    if experiment.lifecycle_stage == LifecycleStage.DELETED:
        client.restore_experiment(experiment.experiment_id)
    return experiment


def _artifacts(uri: str) -> Path:
    """Return the artifact folder of a new store: beside its SQLite file, else in `new_store_folder`."""
    database = sqlite_path(uri)
    return (database.parent if database else new_store_folder().absolute()) / "artifacts"


def existing(call: Callable[..., T], *arguments: Any) -> T | None:
    """Return the result of an MLflow client call, or None if the requested object does not exist."""
    from mlflow.exceptions import MlflowException

    try:
        return call(*arguments)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        return None


def upsert(call: Callable[..., None], *arguments: Any) -> None:
    """Set a tag or an alias of the registry by an MLflow client call.

    MLflow selects the row, then inserts or updates it: of two machines that insert it at once one gets BAD_REQUEST. Its
    second call updates the row.
    """
    from mlflow.exceptions import MlflowException

    try:
        call(*arguments)
    except MlflowException as error:
        if error.error_code != "BAD_REQUEST":
            raise
        call(*arguments)


def pages(call: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[Any]:
    """Yield all results of an MLflow client search, page by page."""
    token = None
    while True:
        page = call(*arguments, **options, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def find_run(store: Store, run_id: str | None) -> "Run | None":
    """Return a run by its id, or None."""
    return existing(store.client.get_run, run_id) if run_id else None


def find_runs(store: Store, run_ids: Collection[str]) -> "dict[str, Run]":
    """Return runs by their ids, including deleted runs, hundreds per call; unknown ids are left out."""
    from mlflow.entities import ViewType

    runs, wanted = dict[str, "Run"](), sorted(set(run_ids))
    for start in range(0, len(wanted), _IDS):
        quoted = ", ".join(f"'{run_id}'" for run_id in wanted[start : start + _IDS])
        page = store.client.search_runs(
            [store.experiment_id], f"attributes.run_id IN ({quoted})", ViewType.ALL, PAGE
        )
        runs |= {run.info.run_id: run for run in page}
    for run_id in wanted:  # runs of another experiment, such as of a model registered by hand
        if run_id not in runs and (run := find_run(store, run_id)):
            runs[run_id] = run
    return runs


_opened: dict[str, Store] = {}
"""The opened stores by their URI."""


def open_store(*, create: bool = True) -> Store:
    """Open the home's store to write it, or to write the home from it. A home that has no store takes this one.

    Args:
        create: False does not create a missing store.

    Raises:
        CpbError: the store is missing (`NO_STORE`, with `create=False`; `LOST`), is not the home's (`OTHER`), cannot be
            used, is of another version of cpb, or was moved away from its artifacts.
    """
    folder = check_home(home_folder())
    store, known, uri = _store_of(folder, create=create), home_store(folder), tracking_uri()
    if known is None or (named_uri() and known != HomeStore.of(store.id, uri, folder)):
        with locked(folder / f".{RECORD}.lock"):
            _check(store, folder, uri)  # another process may have been first
            if home_store(folder) is None and (missing := not_registered(store, folder)):
                first = missing[0]
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                raise _other(
                    uri,
                    f"does not hold the champions packaged in the home {folder} ({first.model_version}{more})",
                )
            _record(store, folder, uri)
    return store


def read_store() -> Store:
    """Open the home's store for a command that writes neither; errors as in `open_store` with `create=False`."""
    return _store_of(home_folder(), create=False)


def take_store() -> Store:
    """Open the store of `MLFLOW_TRACKING_URI`, else of the home, created if missing, and make it the home's own.

    Raises:
        DamagedError: which store was the home's cannot be read, and that in the usual place does not hold its models.
    """
    folder = check_home(home_folder())
    try:
        uri = tracking_uri()
        store = store_at(uri)
    except DamagedError as error:
        uri = new_store_uri()
        try:
            store = store_at(uri, create=False)
        except CpbError:
            raise error from None
        if not_registered(store, folder):
            raise
    with locked(folder / f".{RECORD}.lock"):
        _record(store, folder, uri)
    return store


def _record(store: Store, folder: Path, uri: str) -> None:
    """Make a store the home's own."""
    # First the store: a home never knows an id that a later opening could not find.
    if STORE_ID not in store.client.get_experiment(store.experiment_id).tags:
        upsert(store.client.set_experiment_tag, store.experiment_id, STORE_ID, store.id)
    write_home_store(folder, HomeStore.of(store.id, uri, folder))


def _store_of(folder: Path, *, create: bool) -> Store:
    """Open the store for the home in `folder`, which is its own if it has one."""
    known, uri = home_store(folder), tracking_uri()
    try:
        # A new store could not be the one that the home knows.
        store = store_at(uri, create=create and known is None)
    except CpbError as error:
        if known and error.code == NO_STORE:
            raise _lost(known, uri, folder) from error
        if known and known.has_secret and error.code == UNUSABLE and not named_uri():
            raise CpbError(
                f"{error}; {folder / RECORD} has its address without user and password: set MLFLOW_TRACKING_URI with "
                "them, or for a server MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
                code=UNUSABLE,
                field="MLFLOW_TRACKING_URI",
            ) from error
        if known and error.code == UNUSABLE and named_uri() and (remembered := known.uri(folder)) != uri:
            raise CpbError(
                f"{error}; the store of the home {folder} was last at {public_url(remembered)}: unset "
                "MLFLOW_TRACKING_URI if it still lies there",
                code=UNUSABLE,
                field="MLFLOW_TRACKING_URI",
            ) from error
        raise
    _check(store, folder, uri)
    return store


def _check(store: Store, folder: Path, uri: str) -> None:
    """Raise `CpbError` if the home has another store."""
    known = home_store(folder)
    if known is None or known.store_id == store.id:
        return
    if known.address == HomeStore.of(store.id, uri, folder).address:
        raise CpbError(
            f"the MLflow store {public_url(uri)} is another one (id {store.id}) than that of the home {folder} (id "
            f"{known.store_id}): bring that one back from a backup, or keep the other on purpose with `{TAKE}`",
            code=OTHER,
            field="MLFLOW_TRACKING_URI",
        )
    raise _other(uri, f"does not belong to the home {folder}, whose store is {public_url(known.uri(folder))}")


def _other(uri: str, why: str) -> CpbError:
    back = "unset MLFLOW_TRACKING_URI, or set" if named_uri() else "set MLFLOW_TRACKING_URI or"
    return CpbError(
        f"the MLflow store {public_url(uri)} {why}: {back} CPB_HOME, so that home and store belong together, or give "
        f"this home the other store on purpose with `{TAKE}`",
        code=OTHER,
        field="MLFLOW_TRACKING_URI",
    )


def _lost(known: HomeStore, uri: str, folder: Path) -> CpbError:
    database = sqlite_path(uri)
    why = f"has no experiment {EXPERIMENT}" if not database or database.exists() else "does not exist"
    what = f"the MLflow store of the home {folder} is not there: {public_url(uri)} {why}"
    if named_uri() and (remembered := known.uri(folder)) != uri:
        own = sqlite_path(remembered)
        if own and own.exists():  # the address was mistyped; nothing is lost
            return CpbError(
                f"the MLflow store {public_url(uri)} {why}, and the home {folder} has {public_url(remembered)}: unset "
                f"MLFLOW_TRACKING_URI, or begin a new store there on purpose with `{TAKE}`",
                code=LOST,
                field="MLFLOW_TRACKING_URI",
            )
        what += f", and was last at {public_url(remembered)}"
    return CpbError(
        f"{what}; set MLFLOW_TRACKING_URI to where it lies now, bring it back from a backup, or begin a new one on "
        f"purpose with `{TAKE}`",
        code=LOST,
        field="MLFLOW_TRACKING_URI",
    )


def not_registered(store: Store, folder: Path, markets: Sequence[str] = MARKETS) -> "list[PackagedModel]":
    """Return the home's packaged models whose weights are those of no registered version in the store.

    A version that a person registered has no recorded weights: it counts by its name.

    Args:
        folder: the home.
        markets: whose models; default all.
    """
    from tasks.storage.packaged import packaged_models  # numpy: `cpb --help` imports this module
    from tasks.tracking.tags import weights_of

    models = [
        model for market in markets for model in packaged_models(folder, market) if model.weights_sha256
    ]
    if not models:
        return []
    versions = pages(store.client.search_model_versions, "name LIKE 'cpb-%'", max_results=1000)
    held = {(v.name, weights_of(v.tags) or f"{v.name}/{v.version}") for v in versions}
    return [
        m
        for m in models
        if held.isdisjoint((m.series.registered, of) for of in (m.weights_sha256, m.model_version))
    ]


def store_at(uri: str, *, create: bool = True) -> Store:
    """Open a store by its address, whichever home has it, with the experiment `cpb`; cached per process.

    Args:
        uri: the store's URI.
        create: create the store and the experiment if they are missing.

    Raises:
        CpbError: the store is missing (`NO_STORE`, with `create=False`), cannot be used, is of another version of cpb,
            or was moved away from its artifacts.
    """
    database = sqlite_path(uri)
    if database and not database.exists():
        if not create:
            raise _no_store(f"{database} does not exist")
        make_sqlite(database)
        _opened.pop(uri, None)  # of a database that was deleted since
    if uri not in _opened:
        check(uri)
        with store_errors(uri):
            _opened[uri] = connect(_with_user_in_environment(uri), create=create)
    return _opened[uri]


def _no_store(why: str) -> CpbError:
    return CpbError(
        f"no runs yet: {why}; train first, as in `cpb demo`, or restore it from a backup if there were any",
        code=NO_STORE,
    )


def _with_user_in_environment(uri: str) -> str:
    """Return a server's URI without user and password, which MLflow's messages would repeat; MLflow reads both from
    the environment.
    """
    parts = urlsplit(uri)
    if not is_server(uri) or not parts.username:
        return uri
    os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username)
    os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password or "")
    return public_url(uri)
