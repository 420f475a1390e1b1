"""Opens a store by its address, whichever home has it: reachable, of this version, with the experiment `cpb`."""

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from schemas.errors import CpbError
from schemas.home import new_store_folder
from tasks.storage.urls import local_path, public_url
from tasks.tracking.database import TIMEOUT_S, make_sqlite, quiet
from tasks.tracking.home_store import (
    is_server,
    sqlite_path,
)
from tasks.tracking.store_errors import BEGIN_ANEW, store_error, store_errors

if TYPE_CHECKING:
    import requests
    from mlflow.entities import Experiment
    from mlflow.tracking import MlflowClient

EXPERIMENT = "cpb"
"""Name of the experiment that holds all runs."""
_ENDPOINT = f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={EXPERIMENT}"
LAYOUT_TAG, LAYOUT = "cpb.layout", "3"
"""Version of the names and tags of runs and models in the experiment; other versions are refused."""
STORE_ID = "cpb.store_id"
"""Tag of the experiment: by it a home knows its store, wherever that lies."""
TAGS = {"mlflow.experimentKind": "custom_model_development", LAYOUT_TAG: LAYOUT}
"""Tags of a new experiment, beside its `STORE_ID`; the first tells MLflow's page the kind of experiment."""
NO_STORE = "no-store"
"""Code of the error for a store that does not exist yet."""


def check_reachable(uri: str) -> None:
    """Connect to the store once, for at most `TIMEOUT_S`; `CpbError` if it cannot be used now."""
    import sqlalchemy
    from mlflow.exceptions import MlflowException
    from sqlalchemy.pool import NullPool

    database = sqlite_path(uri)
    if database and not database.stat().st_size:  # `make_sqlite` leaves no such file
        raise store_error(uri, OSError(f"its file is empty; {BEGIN_ANEW}"))
    try:
        if is_server(uri):
            response = ask_server(uri, _ENDPOINT, TIMEOUT_S)
            if response.status_code != 404:  # it has no experiment `cpb` yet
                response.raise_for_status()
            return
        # Without a limit a driver waits for minutes for a host that does not answer.
        limit = "connect_timeout" if uri.startswith(("postgres", "mysql")) else "timeout"
        engine = sqlalchemy.create_engine(uri, poolclass=NullPool, connect_args={limit: TIMEOUT_S})
        sqlalchemy.inspect(engine).get_table_names()
    except (MlflowException, sqlalchemy.exc.SQLAlchemyError, OSError, ValueError, ImportError) as error:
        raise store_error(uri, error) from None  # the exception may hold the URI


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
    # Of what never changes: a store that could not be tagged yet has the same id for every process.
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
    # A copied database still names the artifacts of the original: writing there would mix two stores.
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
    # Deleted by a person in MLflow's page: its name stays taken, so it cannot be made anew.
    if experiment.lifecycle_stage == LifecycleStage.DELETED:
        client.restore_experiment(experiment.experiment_id)
    return experiment


def _artifacts(uri: str) -> Path:
    """Return the artifact folder of a new store: beside its SQLite file, else in `new_store_folder`."""
    database = sqlite_path(uri)
    return (database.parent if database else new_store_folder().absolute()) / "artifacts"


_opened: dict[str, Store] = {}
"""The opened stores by their URI."""


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
        check_reachable(uri)
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
    # Percent-decoded: MLflow sends what the variables hold as they are.
    os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username)
    os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password or "")
    return public_url(uri)
