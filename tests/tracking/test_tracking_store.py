import sqlite3
import sys
from contextlib import closing, suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
from engines import close_connections

from schemas.errors import CpbError
from tasks.tracking import mlflow_store
from tasks.tracking.database import EXPERIMENT, sqlite_path, wal_of
from tasks.tracking.mlflow_store import open_store, tracking_uri


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
        child.join(120)

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
    monkeypatch.setattr("tasks.tracking.database.write_schema", killed)
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


def descriptors(folder):
    """How many of this process's open files lie, or lay, below a folder."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            count += str(entry.readlink()).startswith(str(folder))
    return count


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux's /proc")


def use(store):
    """A run and a model, so that both of MLflow's stores have connections."""
    run = store.client.create_run(store.experiment_id)
    store.client.search_registered_models()
    return run.info.run_id


@needs_proc
@pytest.mark.parametrize("in_use", [False, True])
def test_a_store_that_may_only_be_read_is_read_again_when_it_has_changed(
    store, tmp_path, monkeypatch, in_use
):
    run_id, database, held = use(store), sqlite_path(store.uri), []
    close_connections(store.uri)
    other = sqlite3.connect(database)
    if in_use:  # then the newest changes lie in the WAL
        other.execute("SELECT 1 FROM runs")
    monkeypatch.setattr(mlflow_store, "is_writable", lambda _: False)
    monkeypatch.setenv("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "QueuePool")  # undone after the test
    for number in range(4):
        with closing(sqlite3.connect(database)) as owner, owner:
            owner.execute("UPDATE runs SET name = ?", (f"change {number}",))
        read = open_store(create=False)
        assert read.read_only
        assert read.client.get_run(run_id).info.run_name == f"change {number}"
        read.client.search_registered_models()
        held.append(descriptors(tmp_path))
    assert max(held) <= held[0] + 3  # a pool may hold one connection more
    assert wal_of(database).exists() == in_use
    other.close()


def test_an_experiment_of_another_version_is_refused(store):
    store.client.set_experiment_tag(store.experiment_id, "cpb.layout", "2")
    mlflow_store._opened.clear()

    with pytest.raises(CpbError, match="another version of cpb") as caught:
        open_store(create=False)
    assert caught.value.code == "store-version"
