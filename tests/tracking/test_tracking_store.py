import shutil
import sqlite3
from contextlib import closing
from functools import partial
from multiprocessing import get_context

import pytest

from schemas.errors import CpbError
from tasks.tracking import experiment
from tasks.tracking.experiment import EXPERIMENT, store_at
from tasks.tracking.home_store import tracking_uri
from tasks.tracking.runs import check_place
from tasks.tracking.store import open_store
from tasks.tracking.store_errors import UNUSABLE
from tests.tools.mlflow_engines import then_leave
from tests.tools.postgres_tools import place_artifacts


def test_the_default_store_lies_under_mlruns_with_its_artifacts(store, tmp_path):
    assert store.uri == f"sqlite:///{tmp_path}/mlruns/mlflow.db"
    experiment = store.client.get_experiment_by_name(EXPERIMENT)
    assert experiment.artifact_location == (tmp_path / "mlruns" / "artifacts").as_uri()


def test_the_environment_names_another_store(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///other/runs.db")
    monkeypatch.chdir(tmp_path)

    assert tracking_uri() == f"sqlite:///{tmp_path}/other/runs.db"


def test_parallel_first_use_makes_one_whole_store(schema, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlruns/mlflow.db"
    fork = get_context("fork")  # the children have MLflow imported already, so they really meet
    answers = fork.SimpleQueue()
    work = partial(then_leave, lambda: answers.put(store_at(uri).experiment_id))
    children = [fork.Process(target=work) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)

    assert [c.exitcode for c in children] == [0] * 4
    experiments = {answers.get() for _ in children}
    assert len(experiments) == 1
    assert {e.name for e in store_at(uri).client.search_experiments()} == {EXPERIMENT, "Default"}
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


def test_an_experiment_of_another_version_is_refused(store):
    store.client.set_experiment_tag(store.experiment_id, "cpb.layout", "2")
    experiment._opened.clear()

    with pytest.raises(CpbError, match="another version of cpb") as caught:
        open_store(create=False)
    assert caught.value.code == "store-version"


def test_the_artifact_folder_of_a_person_is_used_as_it_is(schema, tmp_path):
    shutil.copyfile(schema, tmp_path / "mlflow.db")
    place_artifacts(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "large disk")
    store = store_at(f"sqlite:///{tmp_path}/mlflow.db")
    assert store.artifacts == (tmp_path / "large disk").as_uri()
    with pytest.raises(CpbError) as caught:
        check_place(store)
    assert (caught.value.code, caught.value.field) == ("artifacts", str(tmp_path / "large disk"))
    (tmp_path / "large disk").mkdir()
    check_place(store)


def _with_schema(database, revision):
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        connection.commit()


def _overwrite(database, start):
    content = database.read_bytes()
    database.write_bytes(content[:start] + b"\xff" * (len(content) - start))


@pytest.mark.parametrize(
    ("damage", "remedy"),
    [
        (
            lambda d: _with_schema(d, "ffff00001111"),
            "a newer MLflow than .* wrote its tables .*restore a backup",
        ),
        (
            lambda d: _with_schema(d, "0584bdc529eb"),
            "an older MLflow wrote its tables .*`.* db upgrade sqlite:///",
        ),
        (
            lambda d: _overwrite(d, 4096),
            "malformed: its file is damaged; restore it from a backup, or move it away",
        ),
        (lambda d: _overwrite(d, 0), "its file is damaged; restore it from a backup, or move it away"),
        (lambda d: (d.unlink(), d.mkdir()), "unable to open database file: check that its folder exists"),
    ],
)
def test_a_database_that_cannot_be_read_is_refused_with_what_to_do(schema, tmp_path, damage, remedy):
    database = tmp_path / "mlflow.db"
    shutil.copyfile(schema, database)
    damage(database)

    with pytest.raises(CpbError, match=remedy) as caught:
        store_at(f"sqlite:///{database}", create=False)

    assert caught.value.code == UNUSABLE


def test_an_empty_database_is_refused_and_stays_empty(tmp_path):
    database = tmp_path / "mlflow.db"
    database.touch()

    for create in (False, True):
        with pytest.raises(CpbError, match="its file is empty; restore it"):
            store_at(f"sqlite:///{database}", create=create)

    assert database.stat().st_size == 0
