"""A store that several machines use: where artifacts may lie, who makes the experiment."""

from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS

from schemas.errors import CpbError
from tasks.storage.processes import ProcessId
from tasks.tracking import connection, runs
from tasks.tracking.artifacts import check_place
from tasks.tracking.connection import Store
from tasks.tracking.runs import PARTIAL, finish, start_parent
from tasks.tracking.tags import PROCESS


class Client:
    """MLflow's client, as far as it is asked about the experiment."""

    def __init__(self, location="mlflow-artifacts:/cpb"):
        self.experiment = SimpleNamespace(
            artifact_location=location, experiment_id="1", creation_time=7, lifecycle_stage="active"
        )
        self.made = []

    def get_experiment(self, _id):
        return self.experiment

    def get_experiment_by_name(self, _name):
        return self.experiment if self.made else None

    def create_experiment(self, *made):
        self.made.append(made)
        raise MlflowException("it exists", error_code=RESOURCE_ALREADY_EXISTS)


def store_at(uri, **options):
    return Store(uri, Client(**options), "1", uri)


SERVER, DATABASE = "http://head.example.com:5000", "postgresql://cpb:hunter2@db/mlflow"


@pytest.mark.parametrize("uri", [SERVER, DATABASE, "http://127.0.0.1:5000"])
def test_a_folder_of_one_machine_is_no_place_for_artifacts_of_several(uri, tmp_path):
    folder = tmp_path if "127" not in uri else tmp_path / "of-the-other-end-of-a-tunnel"
    with pytest.raises(CpbError) as caught:
        check_place(store_at(uri, location=folder.as_uri()))
    assert caught.value.code == "artifacts"
    assert "docs/cluster.md" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_proxied_and_remote_places_and_a_server_of_this_machine_pass(tmp_path):
    check_place(store_at(SERVER, location="mlflow-artifacts:/cpb"))
    for uri in (SERVER, DATABASE):
        check_place(store_at(uri, location="s3://bucket/cpb"))
    check_place(store_at("http://127.0.0.1:5000", location=tmp_path.as_uri()))  # `cpb ui` over a SQLite store


@pytest.mark.parametrize("uri", [DATABASE, "sqlite:////srv/mlflow.db"])
def test_the_database_of_a_tracking_server_is_used_through_it(uri):
    with pytest.raises(CpbError, match="the server's address") as caught:
        check_place(store_at(uri, location="mlflow-artifacts:/cpb"))
    assert (caught.value.code, caught.value.field) == ("artifacts", "MLFLOW_TRACKING_URI")
    assert "hunter2" not in str(caught.value)


def test_no_experiment_is_made_in_a_bare_database():
    """MLflow would record this machine's folder there, for good."""
    client = Client()
    with pytest.raises(CpbError) as caught:
        connection._make_experiment(client, DATABASE)
    assert (caught.value.code, caught.value.field, client.made) == ("artifacts", "MLFLOW_TRACKING_URI", [])
    assert "hunter2" not in str(caught.value)


def test_the_experiment_of_a_faster_machine_counts():
    client = Client()
    assert connection._make_experiment(client, SERVER) is client.experiment
    assert len(client.made) == 1


def test_the_run_of_a_command_that_another_machine_is_at_is_left_to_it(store, monkeypatch):
    """The lock beside SQLite holds on one machine alone; on a server two would write, and delete, the same members."""
    theirs = start_parent("same", {"seed": 1}, store=store)
    assert start_parent("same", {"seed": 1}, store=store).run_id == theirs.run_id
    living = ProcessId("elsewhere", "boot", 1, 2)
    store.client.set_tag(theirs.run_id, PROCESS, str(living))
    monkeypatch.setattr(runs, "sqlite_path", lambda uri: None)
    mine = start_parent("same", {"seed": 1}, store=store)
    assert mine.run_id != theirs.run_id
    finish(mine.run_id, outcome=PARTIAL, store=store)
    assert start_parent("same", {"seed": 1}, store=store).run_id == mine.run_id
    store.client.set_terminated(theirs.run_id, "KILLED")  # as `reconcile` does in time
    store.client.delete_run(mine.run_id)
    assert start_parent("same", {"seed": 1}, store=store).run_id == theirs.run_id
