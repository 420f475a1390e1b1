"""How a flow ends where a step fails: what MLflow and the user are told."""

import signal

import pytest
from mlflow.exceptions import MlflowException
from prefect.exceptions import TerminationSignal

from flows.train_all import run_of
from schemas.errors import CpbError
from tasks.tracking.runs import finish, start_fleet, start_parent
from tasks.tracking.store import open_store


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    return open_store()


def test_a_store_that_is_away_is_not_asked_again_to_mark_the_run(store):
    run = start_parent("k", {})
    with pytest.raises(CpbError), run_of(run.run_id):
        raise MlflowException("the server cannot be reached")
    assert store.client.get_run(run.run_id).info.status == "RUNNING"
    assert start_parent("k", {}).run_id == run.run_id  # the same command goes on with it


def test_a_run_that_ends_in_an_error_is_marked_failed_and_can_be_repeated(store):
    run = start_parent("k", {})
    with pytest.raises(CpbError, match="no fleet"), run_of(run.run_id):
        raise CpbError("no fleet could be trained")
    failed = store.client.get_run(run.run_id)
    assert failed.info.status == "FAILED"
    assert failed.data.tags["reason"] == "no fleet could be trained"

    again = start_parent("k", {})
    assert (again.run_id, again.finished) == (run.run_id, False)
    finish(again.run_id)
    assert "reason" not in store.client.get_run(run.run_id).data.tags
    assert store.client.get_run(run.run_id).info.status == "FINISHED"


@pytest.mark.parametrize(
    "interrupt", [KeyboardInterrupt(), SystemExit(143), TerminationSignal(signal.SIGTERM)]
)
def test_an_interrupted_run_and_what_is_open_below_it_are_killed_and_can_be_repeated(store, interrupt):
    run = start_parent("k", {})
    done, fleet = (start_fleet(run.run_id, name, name) for name in ("gru", "har"))
    finish(done.run_id)
    member = store.client.create_run(
        store.experiment_id, tags={"mlflow.parentRunId": fleet.run_id}
    ).info.run_id
    other = start_parent("other", {})

    with pytest.raises(type(interrupt)), run_of(run.run_id):
        raise interrupt

    ids = (run.run_id, fleet.run_id, member, done.run_id, other.run_id)
    status = [store.client.get_run(run_id).info.status for run_id in ids]
    assert status == ["KILLED", "KILLED", "KILLED", "FINISHED", "RUNNING"]
    assert type(interrupt).__name__ in store.client.get_run(run.run_id).data.tags["reason"]
    again = start_parent("k", {})
    assert (again.run_id, again.finished) == (run.run_id, False)
    finish(other.run_id)
    finish(again.run_id)
    assert "reason" not in store.client.get_run(run.run_id).data.tags
