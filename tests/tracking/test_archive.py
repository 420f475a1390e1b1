"""Archives of a home and its store: whole or not there, taken while a run writes, and restored to the same place."""

import gzip
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from schemas.errors import CpbError, UsageError
from tasks.storage.files import NOTIFY_FILE
from tasks.tracking import archive as module
from tasks.tracking.archive import KEEP, Archiver, archive, archive_folder, archives, restore
from tasks.tracking.home_store import HomeStore, write_home_store

PAGE = Path(__file__).resolve().parents[2] / "docs/operations.md"
STORE = "0123456789abcdef" * 2
FILES = {
    "klines/interval=1h/symbol=BTCUSDT/2025-01.parquet": b"candles",
    "fleets/0f/result.json": b"{}",
    "mlruns/artifacts/run/artifacts/model.safetensors": bytes(range(256)) * 40,
    "sim/klines/interval=1h/symbol=BTCUSDT/2025-01.parquet": b"simulated",
}
COMPUTED = (
    "features/interval=1h/symbol=BTCUSDT/0f.parquet",
    "sim/features/interval=1h/symbol=BTCUSDT/0f.parquet",
    "features-um/interval=1h/symbol=BTCUSDT/0f.parquet",
    "triton/kernel.cubin",
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A home that holds its store, and an open writer of the store's database, whose last rows lie in the WAL."""
    home = tmp_path / "home"
    for name, content in FILES.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(content)
    for name in COMPUTED:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    write_home_store(home, HomeStore(store_id=STORE, address="sqlite:///mlruns/mlflow.db"))
    monkeypatch.setenv("CPB_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with closing(sqlite3.connect(home / "mlruns/mlflow.db", check_same_thread=False)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("CREATE TABLE runs (id INTEGER, half TEXT)")
        insert(writer, 1)
        yield home, writer


def insert(writer, number):
    with writer:
        writer.executemany("INSERT INTO runs VALUES (?, ?)", [(number, "first"), (number, "second")])


def rows(database):
    with closing(sqlite3.connect(database)) as reader:
        assert reader.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return reader.execute("SELECT id, half FROM runs ORDER BY rowid").fetchall()


def content(home):
    """Every file of a home but its databases."""
    files = {path.relative_to(home).as_posix(): path for path in home.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if ".db" not in name}


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "drive"
    folder.mkdir()
    return folder


def test_a_home_comes_back_as_it_was_with_the_rows_that_lay_in_the_wal(place, outside):
    home, writer = place
    before = content(home)
    path = archive(outside, home)
    writer.close()
    shutil.rmtree(home)
    assert restore(home, outside) == path
    assert {name: before[name] for name in before if name not in COMPUTED} == content(home)
    assert rows(home / "mlruns/mlflow.db") == [(1, "first"), (1, "second")]
    assert not [*home.glob("mlruns/*-wal.*")]
    assert [entry.name for entry in outside.iterdir()] == [path.name]  # no draft
    with tarfile.open(path) as packed:
        assert not [name for name in packed.getnames() if name.endswith(("-wal", "-shm"))]


def test_no_archive_holds_a_secret(place, outside, monkeypatch):
    home, _ = place
    secret = b"mailto://me:a-password@host"
    hidden = (".env", ".prefect/prefect.db", "fleets/.0f.0123456789ab/model", "sim/.netrc")
    others = ("prefect/cpb-api-auth", "hf/token", "state/server.log")
    for name in (NOTIFY_FILE, *hidden, *others):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(secret)
    for name, folder in zip(("PREFECT_HOME", "HF_HOME", "CPB_DEPLOY_STATE"), others, strict=True):
        monkeypatch.setenv(name, str((home / folder).parent))
    (home / "presets").mkdir()
    (home / "presets" / NOTIFY_FILE).write_bytes(b"a person's own file of that name")
    with gzip.open(archive(outside, home)) as unpacked:
        whole = unpacked.read()
    assert secret not in whole
    assert b"a person's own file of that name" in whole
    assert all(content in whole for content in FILES.values())


def test_a_folder_that_lies_elsewhere_is_told_before_a_training_and_never_left_out(
    place, outside, tmp_path, monkeypatch, caplog
):
    home, _ = place
    monkeypatch.setenv(KEEP, str(outside))
    archiver = Archiver(print)
    (home / "klines").rename(tmp_path / "large")
    (home / "klines").symlink_to(tmp_path / "large")
    with pytest.raises(UsageError, match=rf"{home}/klines is a link"):
        archive_folder()
    archiver.archive()  # made while it trained
    assert f"not kept: {home}/klines is a link" in caplog.text
    assert not [*outside.iterdir()]


def test_an_archive_taken_while_a_run_writes_holds_whole_transactions_and_whole_files(place, outside):
    home, writer = place
    stopped = threading.Event()
    replaced = home / "fleets/0f/progress.json"

    def write():
        for number in range(2, 100_000):
            insert(writer, number)
            draft = replaced.with_name(f".progress.json.{number:012x}")
            draft.write_text(f"{number}" * 5000)
            draft.replace(replaced)
            if stopped.is_set():
                return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        taken = [shutil.copy(archive(outside, home), outside / f"{number}.gz") for number in range(3)]
    finally:
        stopped.set()
        thread.join()
    writer.close()
    shutil.rmtree(home)
    for path in taken:
        with gzip.open(path) as unpacked, tarfile.open(fileobj=unpacked, mode="r|") as packed:
            packed.extractall(home, filter="data")
        numbers = rows(home / "mlruns/mlflow.db")
        assert numbers == [
            (number, half) for number in range(1, len(numbers) // 2 + 1) for half in ("first", "second")
        ]
        if replaced.exists():
            text = replaced.read_text()
            assert text == text[: len(text) // 5000] * 5000
        shutil.rmtree(home)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A folder with two archives of one home, the older with the file `old`, the newer with `new`."""
    folder = tmp_path_factory.mktemp("packed")
    home, drive = folder / "home", folder / "drive"
    drive.mkdir()
    write_home_store(home, HomeStore(store_id=STORE, address="sqlite:///mlruns/mlflow.db"))
    for number, name in enumerate(("old", "new")):
        (home / name).write_bytes(bytes(range(256)) * 20)
        path = archive(drive, home)
        path.rename(drive / f"cpb-{STORE}-2026010{number + 1}T000000Z.tar.gz")
    shutil.rmtree(home)
    return home, drive


@example(cut=0, flip=None)
@example(cut=0.0028, flip=None)  # within the header of gzip
@given(cut=st.floats(0, 1, exclude_max=True), flip=st.integers(0, 7) | st.none())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_part_of_an_archive_or_a_changed_one_is_never_taken_for_it(packed, tmp_path, cut, flip):
    home, drive = packed
    newest, older = archives(drive)
    good = newest.read_bytes()
    place = int(cut * len(good))
    if flip is None:
        bad = good[:place]
    else:
        bad = bytearray(good)
        bad[place] ^= 1 << flip
    shutil.rmtree(home, ignore_errors=True)
    try:
        newest.write_bytes(bad)
        taken = restore(home, drive)
    finally:
        newest.write_bytes(good)
    files = content(home)
    if taken == newest:  # a bit of gzip's header that changes nothing, such as its time
        assert "new" in files
        assert files["new"] == bytes(range(256)) * 20
    else:
        assert taken == older
        assert "new" not in files
        assert files["old"] == bytes(range(256)) * 20
    assert module.PLACE not in files


def test_where_no_archive_is_whole_nothing_is_restored(packed, tmp_path):
    home, drive = packed
    shutil.rmtree(home, ignore_errors=True)
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in archives(drive):
        (broken / path.name).write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CpbError, match=r"no archive in .*broken is whole: move them away"):
        restore(home, broken)
    assert not home.exists()
    assert not [*home.parent.glob(".home.*")]


def test_the_lines_of_the_page_bring_a_home_back(packed):
    home, drive = packed
    shutil.rmtree(home, ignore_errors=True)
    (block,) = re.findall(r"```sh\n(export CPB_HOME=[^`]*restore[^`]*)```", PAGE.read_text())
    lines = block.replace("/content/cpb-store", str(home)).replace("/content/drive/MyDrive/cpb", str(drive))
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-c", lines],
        cwd=PAGE.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{archives(drive)[0]}\n"
    assert (home / "new").is_file()


def test_a_home_in_which_something_lies_is_left_alone(packed):
    home, drive = packed
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    assert restore(home, drive)  # an empty folder is none
    (home / "new").write_bytes(b"mine")
    assert restore(home, drive) is None
    assert (home / "new").read_bytes() == b"mine"


def test_an_archive_of_a_home_in_another_place_is_refused(packed, tmp_path):
    home, drive = packed
    with pytest.raises(CpbError, match=f"is an archive of the home {home}, .*set CPB_HOME to it"):
        restore(tmp_path / "elsewhere", drive)
    assert not (tmp_path / "elsewhere").exists()


def test_of_several_homes_in_a_folder_each_gets_its_own_archive_back(packed, tmp_path):
    home, drive = packed
    shutil.rmtree(home, ignore_errors=True)
    both, other = tmp_path / "both", tmp_path / "other"
    both.mkdir()
    write_home_store(other, HomeStore(store_id="f" * 32, address="sqlite:///mlruns/mlflow.db"))
    newest = archive(both, other)  # today, so newer than those of 2026-01
    shutil.rmtree(other)
    (mine, _) = (shutil.copy(path, both) for path in archives(drive))
    assert restore(home, both) == Path(mine)
    assert (home / "new").is_file()
    assert restore(other, both) == newest


def test_folders_without_an_archive_restore_nothing(tmp_path):
    assert restore(tmp_path / "home", tmp_path / "missing", tmp_path) is None


def test_the_newest_of_several_folders_is_taken(packed, tmp_path):
    home, drive = packed
    shutil.rmtree(home, ignore_errors=True)
    newest, older = archives(drive)
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, path in ((one, newest), (other, older)):
        folder.mkdir()
        shutil.copy(path, folder)
    assert restore(home, other, one) == one / newest.name


def test_two_archives_of_a_store_are_kept_and_nothing_else_is_deleted(place, outside, monkeypatch):
    home, _ = place
    other = f"cpb-{'f' * 32}-20200101T000000Z.tar.gz"
    mine = ("notes.txt", f"cpb-{STORE}-20200101T000000Z.tar", f".cpb-{STORE}-notes", other)
    for name in mine:
        (outside / name).write_text("mine")
    drafts = [f".cpb-{STORE}-2020010{day}T000000Z.tar.gz.0123456789ab" for day in (1, 2)]
    for name in drafts:
        (outside / name).touch()
    monkeypatch.setattr(module, "DRAFT_S", -1)
    (outside / drafts[1]).unlink()
    for year in (2021, 2022, 2023):
        (outside / f"cpb-{STORE}-{year}0101T000000Z.tar.gz").touch()
    path = archive(outside, home)
    assert {entry.name for entry in outside.iterdir()} == {
        *mine,
        path.name,
        f"cpb-{STORE}-20230101T000000Z.tar.gz",
    }


def test_a_draft_that_may_still_be_written_stays(place, outside):
    draft = outside / f".cpb-{STORE}-20200101T000000Z.tar.gz.0123456789ab"
    draft.touch()
    archive(outside, place[0])
    assert draft.exists()


def test_what_keep_names_is_checked_before_a_training(place, outside, tmp_path, monkeypatch):
    home, _ = place
    monkeypatch.delenv(KEEP, raising=False)
    assert archive_folder() is None
    monkeypatch.setenv(KEEP, str(outside))
    assert archive_folder() == outside
    for folder, said in (
        (tmp_path / "missing", "there is no such folder; make it"),
        (home, "lies in CPB_HOME"),
    ):
        monkeypatch.setenv(KEEP, str(folder))
        with pytest.raises(UsageError, match=said):
            archive_folder()
    (tmp_path / "link").symlink_to(home)
    for folder in (tmp_path / "link", outside / ".." / home.name):
        monkeypatch.setenv(KEEP, str(folder))
        with pytest.raises(UsageError, match="lies in CPB_HOME"):
            archive_folder()
    monkeypatch.setenv(KEEP, str(outside))
    for uri in (
        "postgresql://me@localhost/mlflow",
        "http://127.0.0.1:5000",
        f"sqlite:///{tmp_path}/mlruns/mlflow.db",
    ):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with pytest.raises(UsageError, match="this store is not in the home"):
            archive_folder()


@pytest.mark.parametrize("gone", ["unmounted", "a file"])
def test_an_archive_that_cannot_be_written_is_a_warning(place, outside, monkeypatch, caplog, gone):
    monkeypatch.setenv(KEEP, str(outside))
    said = []
    archiver = Archiver(said.append)
    outside.rmdir()
    if gone == "a file":
        outside.write_text("the disk is gone")
    archiver.archive()
    assert said == []
    assert "not kept: " in caplog.text
    assert not outside.is_dir()  # below a mount point a folder would lie on the disk that is lost
    assert Path(place[0], "fleets").exists()


def test_fleets_that_end_while_an_archive_is_written_share_the_next(place, outside, monkeypatch):
    monkeypatch.setenv(KEEP, str(outside))
    begun, go_on, written = threading.Event(), threading.Event(), []

    def slow(folder, home):
        begun.set()
        assert go_on.wait(60)
        written.append(time.monotonic())
        (folder / "archive").touch()
        return folder / "archive"

    monkeypatch.setattr(module, "archive", slow)
    said = []
    archiver = Archiver(said.append)
    threads = [threading.Thread(target=archiver.archive) for _ in range(4)]
    threads[0].start()
    assert begun.wait(60)
    asked = threading.Semaphore(0)

    class Lock:
        """The archiver's lock, which tells that a thread has asked for it."""

        def __init__(self, lock):
            self._lock = lock

        def __enter__(self):
            asked.release()
            self._lock.acquire()

        def __exit__(self, *_):
            self._lock.release()

    archiver._one_at_a_time = Lock(archiver._one_at_a_time)
    for thread in threads[1:]:
        thread.start()
        assert asked.acquire(timeout=60)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert len(written) == len(said) == 2
