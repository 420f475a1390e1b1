"""How a flow ends where a step fails: what MLflow and the user are told."""

import pytest

from flows.tracked_run import run_of
from schemas.errors import CpbError
from tasks.tracking import find_by_key, finish, open_store, start_parent


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    return open_store()


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
    assert find_by_key("k") == run.run_id
