import sys
from multiprocessing import get_context

import pytest

from schemas.errors import CpbError
from tasks.tracking.store import EXPERIMENT, open_store, sqlite_path, tracking_uri


def test_the_default_store_lies_under_mlruns_with_its_artifacts(store, tmp_path):
    assert store.uri == f"sqlite:///{tmp_path}/mlruns/mlflow.db"
    found = store.client.get_experiment_by_name(EXPERIMENT)
    assert found.artifact_location == (tmp_path / "mlruns" / "artifacts").as_uri()


def test_the_environment_names_another_store(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///other/runs.db")
    monkeypatch.chdir(tmp_path)

    assert tracking_uri() == f"sqlite:///{tmp_path}/other/runs.db"


def test_a_change_of_folder_is_another_store(store, tmp_path, monkeypatch):
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "b")

    with pytest.raises(CpbError, match="no runs yet"):
        open_store(create=False)

    assert not (tmp_path / "b" / "mlruns").exists()


def test_parallel_first_use_makes_one_whole_store(schema, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlruns/mlflow.db"
    fork = get_context("fork")  # the children have MLflow imported already, so they really meet
    answers = fork.Queue()
    children = [fork.Process(target=lambda: answers.put(open_store(uri).experiment_id)) for _ in range(4)]
    for child in children:
        child.start()
    experiments = {answers.get(timeout=120) for _ in children}
    for child in children:
        child.join(60)

    assert [c.exitcode for c in children] == [0] * 4
    assert len(experiments) == 1
    assert {e.name for e in open_store(uri).client.search_experiments()} == {EXPERIMENT, "Default"}
    left = [p.name for p in (tmp_path / "mlruns").iterdir() if p.name.startswith(".mlflow.db.")]
    assert left == [".mlflow.db.lock"]


def test_a_kill_before_the_store_is_whole_leaves_none(tmp_path, monkeypatch):
    def killed(_path):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("tasks.tracking.mlflow_private.write_schema", killed)
    with pytest.raises(KeyboardInterrupt):
        open_store()

    assert not (tmp_path / "mlruns" / "mlflow.db").exists()


def test_a_file_that_is_no_store_is_one_sentence(tmp_path):
    path = tmp_path / "mlflow.db"
    path.write_bytes(b"this is not a database" * 100)

    with pytest.raises(CpbError) as caught:
        open_store(f"sqlite:///{path}")

    assert caught.value.code == "database-damaged"
    assert f"sqlite:///{path} " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_sqlite_has_a_path():
    assert sqlite_path("postgresql://db/mlflow") is None


def test_a_store_whose_driver_is_missing_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(CpbError, match="psycopg2") as caught:
        open_store("postgresql://me:secret@127.0.0.1:1/mlflow")
    assert caught.value.code == "missing-package"
    assert "secret" not in str(caught.value)


def test_a_plain_folder_is_no_store_and_the_remedy_is_named(tmp_path):
    with pytest.raises(CpbError, match="set MLFLOW_TRACKING_URI to sqlite") as caught:
        open_store((tmp_path / "runs").as_uri())
    assert caught.value.code == "plain-folder"
