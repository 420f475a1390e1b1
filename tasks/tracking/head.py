"""The database of a tracking server, made ready before the server starts."""

from tasks.tracking.connection import EXPERIMENT, TAGS
from tasks.tracking.database import check, failure, make_sqlite, making_schema, no_shared_place, sqlite_path
from tasks.tracking.mlflow_private import PROXIED, local_path, quiet


def prepare_database(uri: str) -> None:
    """Make the schema and the experiment, whose artifacts the server keeps, where they are missing.

    Raises:
        CpbError: the database cannot be used, or says that artifacts lie in a folder of one machine.
    """
    database = sqlite_path(uri)
    if database and not database.exists():
        make_sqlite(database)
    check(uri, write=True)
    quiet()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with making_schema(uri):
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            found = client.get_experiment_by_name(EXPERIMENT)
            if found is None:
                client.create_experiment(EXPERIMENT, f"{PROXIED}/{EXPERIMENT}", TAGS)
    except (MlflowException, SQLAlchemyError, ModuleNotFoundError) as error:
        raise failure(uri, error) from None  # the exception may hold the URI
    if found and (folder := local_path(found.artifact_location)):
        raise no_shared_place(uri, folder)
