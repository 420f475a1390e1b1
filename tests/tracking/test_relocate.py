"""A store that was moved or copied uses the artifacts beside its own database, and never those of the original."""

import logging
import shutil
import sqlite3
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import pytest
from engines import close_connections
from nights import add_night
from verifying import verify_champions as verify

from schemas.errors import CpbError
from tasks.storage.urls import local_path
from tasks.tracking import mlflow_store
from tasks.tracking.boards import leaderboard, read_members
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.prune import prune
from tasks.tracking.registry import champions

NIGHTS = 3


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store of three nights and its home, at rest: nothing is left in the WAL."""
    place = tmp_path_factory.mktemp("made") / "store"
    place.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(place)
        store, home = open_store(), place / "data"
        home.mkdir()
        for number in range(1, NIGHTS + 1):
            add_night(store, home, number, symbols=("BTCUSDT",))
        close_connections(store.uri)
    with closing(sqlite3.connect(place / "mlruns/mlflow.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return place


@pytest.fixture
def original(made, tmp_path, monkeypatch):
    """The same store at a place of its own, for tests that delete or compare it."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path / "original")
    close_connections(opened(tmp_path / "original").uri)
    with closing(sqlite3.connect(tmp_path / "original/mlruns/mlflow.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return tmp_path / "original"


def opened(place, **options):
    return open_store(f"sqlite:///{place}/mlruns/mlflow.db", **options)


def bytes_of(place):
    return {p: p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()}


def recorded(place):
    """Every place of artifacts that the database names."""
    with closing(sqlite3.connect(place / "mlruns/mlflow.db")) as connection:
        queries = ("SELECT artifact_location FROM experiments WHERE name = 'cpb'", "SELECT artifact_uri FROM runs",
                   "SELECT source FROM model_versions", "SELECT storage_location FROM model_versions")  # fmt: skip
        return [Path(local_path(uri)) for query in queries for (uri,) in connection.execute(query)]


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "cpb" and r.levelno == logging.WARNING]


def test_a_copy_reads_writes_and_prunes_its_own_artifacts_alone(original, tmp_path):
    before, copy = bytes_of(original), tmp_path / "copy"
    shutil.copytree(original, copy)

    store = opened(copy)

    assert all(path.is_relative_to(copy / "mlruns/artifacts") for path in recorded(copy))
    (champion,) = champions(store=store)
    champion.check()
    assert champion.folder.is_relative_to(copy)
    _, _, members = add_night(store, copy / "data", NIGHTS + 1, symbols=("BTCUSDT",))
    assert (copy / "mlruns/artifacts" / members[0] / "artifacts/model.safetensors").is_file()
    folders = len(list((copy / "mlruns/artifacts").iterdir()))
    assert prune(copy / "data", dry_run=False, nights=1, store=store).runs
    assert len(list((copy / "mlruns/artifacts").iterdir())) < folders
    assert bytes_of(original) == before

    shutil.rmtree(original)
    (champion,) = champions(store=store)
    champion.check()
    assert champion.version == str(NIGHTS + 1)
    assert list(verify(copy / "data", store=store)) == []
    assert leaderboard(members=read_members(store))
    add_night(store, copy / "data", NIGHTS + 2, symbols=("BTCUSDT",))
    assert prune(copy / "data", dry_run=False, nights=1, store=store).runs
    assert not original.exists()


def test_a_store_that_was_moved_is_whole_at_its_new_place(original, tmp_path, caplog):
    original.rename(tmp_path / "a new & better place#1")
    place = tmp_path / "a new & better place#1"
    with caplog.at_level(logging.WARNING, "cpb"):
        champions(store=opened(place, create=False))[0].check()
        assert len(warnings_of(caplog)) == 1
        assert "\n" not in warnings_of(caplog)[0]
        mlflow_store._opened.clear()
        opened(place)
        assert len(warnings_of(caplog)) == 1  # once
    assert not original.exists()


def test_a_copied_database_without_its_artifacts_is_refused(original, tmp_path):
    copy = tmp_path / "copy"
    (copy / "mlruns").mkdir(parents=True)
    shutil.copyfile(original / "mlruns/mlflow.db", copy / "mlruns/mlflow.db")
    before = bytes_of(original)
    for create in (True, False):
        with pytest.raises(CpbError) as caught:
            opened(copy, create=create)
        assert (caught.value.code, caught.value.field) == ("copied-store", f"{copy}/mlruns/mlflow.db")
        assert str(original / "mlruns/artifacts") in str(caught.value)
        assert "\n" not in str(caught.value)
    assert bytes_of(original) == before

    shutil.copytree(original / "mlruns/artifacts", copy / "mlruns/artifacts")  # as the sentence says
    champions(store=opened(copy))[0].check()


def test_the_artifacts_of_another_store_are_not_taken_for_the_copys(original, tmp_path):
    copy = tmp_path / "copy"
    (copy / "mlruns/artifacts/0123").mkdir(parents=True)
    shutil.copyfile(original / "mlruns/mlflow.db", copy / "mlruns/mlflow.db")
    with pytest.raises(CpbError) as caught:
        opened(copy)
    assert caught.value.code == "copied-store"


def test_a_copy_of_a_store_without_runs_keeps_its_new_artifacts_beside_it(schema, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("original", "copy"):
        (tmp_path / name / "mlruns").mkdir(parents=True)
    shutil.copyfile(schema, tmp_path / "original/mlruns/mlflow.db")
    close_connections(opened(tmp_path / "original").uri)
    with closing(sqlite3.connect(tmp_path / "original/mlruns/mlflow.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copyfile(tmp_path / "original/mlruns/mlflow.db", tmp_path / "copy/mlruns/mlflow.db")
    opened(tmp_path / "copy")
    assert set(recorded(tmp_path / "copy")) == {tmp_path / "copy/mlruns/artifacts"}


@pytest.mark.parametrize("beside", [False, True])
def test_a_place_of_the_users_own_is_left_as_it_is(original, tmp_path, caplog, beside):
    """As of a database that MLflow made with artifacts on a larger disk, whatever lies beside the database."""
    own, place = tmp_path / "large disk", tmp_path / "store"
    original.rename(place)
    opened(place)
    mlflow_store._opened.clear()
    (place / "mlruns/artifacts").rename(own)
    if beside:
        (place / "mlruns/artifacts/0123").mkdir(parents=True)
    with closing(sqlite3.connect(place / "mlruns/mlflow.db")) as connection, connection:
        for table, column in (
            ("runs", "artifact_uri"), ("experiments", "artifact_location"), ("model_versions", "source"),
            ("model_versions", "storage_location"),
        ):  # fmt: skip
            connection.execute(
                f"UPDATE {table} SET {column} = replace({column}, ?, ?)",
                ((place / "mlruns/artifacts").as_uri(), own.as_uri()),
            )
    caplog.clear()
    with caplog.at_level(logging.WARNING, "cpb"):
        store = opened(place)
    assert not warnings_of(caplog)
    _, _, members = add_night(store, place / "data", NIGHTS + 1, symbols=("BTCUSDT",))
    assert (own / members[0] / "artifacts/model.safetensors").is_file()


def test_a_store_reached_through_a_link_has_not_moved(original, tmp_path, caplog):
    (tmp_path / "link").symlink_to(original)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/mlruns").mkdir()
    (tmp_path / "linked/mlruns/mlflow.db").symlink_to(original / "mlruns/mlflow.db")
    with caplog.at_level(logging.WARNING, "cpb"):
        for place in ("link", "linked"):
            champions(store=opened(tmp_path / place))[0].check()
    assert not warnings_of(caplog)
    assert all(path.is_relative_to(original) for path in recorded(original))


def test_a_moved_store_that_may_only_be_read_is_refused(original, tmp_path, monkeypatch):
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    before = bytes_of(copy)
    monkeypatch.setattr(mlflow_store, "is_writable", lambda database: not database.is_relative_to(copy))
    monkeypatch.setenv("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "QueuePool")  # undone after the test
    with pytest.raises(CpbError, match="may only be read") as caught:
        opened(copy, create=False)
    assert caught.value.code == "copied-store"
    assert bytes_of(copy) == before


def test_processes_that_open_a_copy_at_once_relocate_it_once(original, tmp_path):
    shutil.copytree(original, tmp_path / "copy")
    fork = get_context("fork")
    meet, said = fork.Barrier(3), fork.Queue()

    class Handler(logging.Handler):
        def emit(self, record):
            said.put(record.getMessage())

    def work():
        logging.getLogger("cpb").addHandler(Handler(logging.WARNING))
        meet.wait(60)
        opened(tmp_path / "copy")
        said.put("")

    children = [fork.Process(target=work) for _ in range(3)]
    for child in children:
        child.start()
    texts = [said.get(timeout=60) for _ in range(4)]
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 3
    assert sorted(map(bool, texts)) == [False] * 3 + [True]
    champions(store=opened(tmp_path / "copy"))[0].check()


def test_a_database_whose_artifacts_are_gone_is_refused_until_its_user_says_so(original, tmp_path):
    moved = tmp_path / "moved"
    (moved / "mlruns").mkdir(parents=True)
    shutil.move(original / "mlruns/mlflow.db", moved / "mlruns/mlflow.db")
    shutil.rmtree(original)
    with pytest.raises(CpbError) as caught:
        opened(moved)
    assert caught.value.code == "copied-store"
    assert not original.exists()
    (moved / "mlruns/artifacts").mkdir()  # as the sentence says
    assert champions(store=opened(moved))[0].damage
    assert not original.exists()
