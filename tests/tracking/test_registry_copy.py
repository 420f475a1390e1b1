"""The copy of the registry is used only while the store is as it was when it was read."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from schemas.errors import CpbError
from tasks.tracking import registry_copy
from tasks.tracking.experiment import store_at
from tasks.tracking.home_store import tracking_uri
from tasks.tracking.registry import ALIAS, aliases_of
from tasks.tracking.registry_copy import COPY, read_registry, store_state
from tasks.tracking.store import open_store, read_store
from tests.tools.copied_store import record_place
from tests.tools.mlflow_engines import close_connections
from tests.tools.mlflow_nights import model_files
from tests.tools.registering import register_champion
from tests.tools.tracked_members import fleet_of, log_member, member, series

BTC = series()
DATABASE = Path("mlruns/mlflow.db")
HOME = Path("data")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A home and its store, made once."""
    place = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(place)
        store, model = open_store(), model_files(place / "model", "gru")
        fleet = fleet_of()
        for key in ("a", "b"):
            register_champion(BTC, log_member(fleet.run_id, member(model, key=key)))
        close_connections(store.uri)
    return place


@pytest.fixture
def two_versions(template, tmp_path, monkeypatch):
    """A series whose champion is version 2; its store is in WAL mode, as cpb makes it."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    record_place(tmp_path / DATABASE)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    return open_store()


@pytest.fixture
def read(two_versions):
    """Return what the registry says, and whether MLflow was asked; a copy is there already."""

    def read(opened=read_store):
        asked = []

        def opening():
            asked.append(True)
            return opened()

        registry = read_registry(opening)
        return registry, bool(asked)

    read()
    return read


def champion(registry):
    (version,) = registry.champions
    return version.number


def move_alias(number="1"):
    open_store().client.set_registered_model_alias(BTC.registered, ALIAS, number)


def test_an_unchanged_store_is_not_asked_again_and_the_copy_says_the_same(read, monkeypatch):
    copy, asked = read()
    assert not asked
    assert read()[1] is False
    (HOME / COPY).unlink()
    fresh, asked = read()
    assert asked
    assert fresh.model_copy(update={"state": copy.state}) == copy
    assert (champion(copy), copy.champions[0].tags["architecture"]) == ("2", "gru")
    assert copy.champions[0].metrics["test_crps_ratio"] == 0.98


def checkpoint():
    with closing(sqlite3.connect(DATABASE)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def by_mlflow():
    move_alias()


def by_mlflow_and_a_checkpoint():
    move_alias()
    checkpoint()


def by_mlflow_with_its_times_set_back():
    times = {path: path.stat() for path in DATABASE.parent.glob("mlflow.db*")}
    move_alias()
    checkpoint()
    for path, before in times.items():
        if path.exists():
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [by_mlflow, by_mlflow_and_a_checkpoint, by_mlflow_with_its_times_set_back])
def test_a_change_is_seen_at_once(read, change):
    change()
    registry, asked = read()
    assert (champion(registry), asked) == ("1", True)
    assert read() == (registry, False)


@pytest.mark.parametrize("in_place", [True, False], ids=["written over", "renamed over"])
def test_another_state_of_the_same_size_and_times_is_seen(read, in_place):
    checkpoint()
    shutil.copy2(DATABASE, "backup.db")
    before = DATABASE.stat()
    move_alias()
    checkpoint()
    assert champion(read()[0]) == "1"
    if in_place:
        shutil.copyfile("backup.db", DATABASE)
    else:
        Path("backup.db").replace(DATABASE)
    os.utime(DATABASE, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = DATABASE.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert read()[1]  # what MLflow's open connections say of a replaced file is another matter


def test_a_change_while_the_registry_is_read_is_seen_by_the_next(two_versions, monkeypatch):
    read_decisions = registry_copy.newest_decisions

    def changed_meanwhile(store):
        move_alias()
        return read_decisions(store)

    with monkeypatch.context() as patch:
        patch.setattr(registry_copy, "newest_decisions", changed_meanwhile)
        assert champion(read_registry(read_store)) == "2"
    assert champion(read_registry(read_store)) == "1"


def test_what_is_in_the_log_counts_once_the_index_says_so(two_versions):
    """A reader does not see what a commit has written to the log until the index is written, after a sync."""
    checkpoint()
    index = Path(f"{DATABASE}-shm")
    before = index.read_bytes()
    move_alias()
    for file in (DATABASE, Path(f"{DATABASE}-wal"), index):
        shutil.copyfile(file, f"copy{file.name.removeprefix('mlflow')}")
    committed = store_state("sqlite:///copy.db")
    Path("copy.db-shm").write_bytes(before)
    assert store_state("sqlite:///copy.db") not in ("", committed)


def test_readers_and_closed_connections_change_no_state(two_versions):
    checkpoint()
    state = store_state(tracking_uri())
    for log in ("wal", "shm"):
        Path(f"{DATABASE}-{log}").rename(f"{DATABASE}-{log}.aside")  # as the last connection deletes them
    assert store_state(tracking_uri()) == state != ""


def test_a_large_store_is_asked_each_time(read, monkeypatch):
    monkeypatch.setattr(registry_copy, "_MAX_BYTES", 1000)
    assert store_state(tracking_uri()) == ""
    assert read()[1]


def test_a_transaction_in_a_rollback_journal_has_no_state(read):
    Path(f"{DATABASE}-journal").write_bytes(b"journal")
    assert store_state(tracking_uri()) == ""
    assert read()[1]


@pytest.mark.parametrize("uri", ["http://127.0.0.1:1", "postgresql://me@127.0.0.1/x", "sqlite:////none/x.db"])
def test_a_store_without_a_file_has_no_state(uri):
    assert store_state(uri) == ""


def test_a_store_reached_through_a_link_is_seen_to_change(two_versions, monkeypatch):
    Path("link.db").symlink_to(DATABASE)
    state = store_state("sqlite:///link.db")
    move_alias()  # into the log, which lies beside the file that the link leads to
    assert store_state("sqlite:///link.db") != state


def test_a_store_that_is_not_the_homes_is_refused(read, tmp_path, monkeypatch):
    uri = f"sqlite:///{tmp_path}/other/mlflow.db"
    store_at(uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(CpbError) as caught:
        read()
    assert caught.value.code == "other-store"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/{DATABASE}")
    assert read()[1] is False


def test_a_copied_home_with_its_store_does_not_trust_the_copy(read, tmp_path, monkeypatch):
    shutil.copytree(HOME, tmp_path / "again/data")
    shutil.copytree(DATABASE.parent, tmp_path / "again/mlruns")
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "again/data"))
    with pytest.raises(CpbError) as caught:
        read()
    assert caught.value.code == "moved-store"


@pytest.mark.parametrize("name", [COPY, "cpb-store.json"])
def test_a_home_without_a_record_asks(read, name):
    (HOME / name).unlink()
    assert read()[1]


def test_a_damaged_copy_is_told_and_made_anew(read, caplog):
    whole = (HOME / COPY).read_bytes()
    (HOME / COPY).write_bytes(whole.replace(b'"number":"2"', b'"number":"1"'))
    registry, asked = read()
    assert (champion(registry), asked) == ("2", True)
    assert COPY in caplog.text
    assert (HOME / COPY).read_bytes() == whole


def test_a_home_that_cannot_be_written_is_read_all_the_same(read, monkeypatch):
    move_alias()

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(registry_copy, "write_record", refuse)
    assert champion(read()[0]) == aliases_of(open_store(), BTC)[ALIAS] == "1"


def test_a_home_of_another_version_is_not_written(read):
    move_alias()
    (HOME / "cpb-version").write_text("2")
    before = (HOME / COPY).read_bytes()
    assert champion(read()[0]) == "1"
    assert (HOME / COPY).read_bytes() == before
