import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cpbmodels.fleet.config import write_whole
from schemas.failure import Failure
from tasks.storage import folders
from tasks.storage.files import DRAFT, DiskFull, replacing, write_bytes, write_secret
from tasks.storage.folders import new_folder
from tasks.storage.records import write_record
from tasks.storage.source_code import ROOT
from tasks.tracking.database import make_sqlite


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "members"
    with pytest.raises(RuntimeError):
        _fail_within(target)
    assert list(tmp_path.iterdir()) == []
    with new_folder(target) as draft:
        (draft / "whole").write_text("x")
        assert not target.exists()
    assert (target / "whole").read_text() == "x"


def _fail_within(target):
    with new_folder(target) as draft:
        (draft / "half").write_text("x")
        raise RuntimeError


def test_writers_at_once_leave_one_whole_folder_and_nothing_beside_it(tmp_path):
    target = tmp_path / "hub"

    def write(number):
        for _ in range(40):
            with new_folder(target) as draft:
                for name in "abc":
                    (draft / name).write_text(str(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len({file.read_text() for file in target.iterdir()}) == 1
    assert sorted(f.name for f in target.iterdir()) == ["a", "b", "c"]
    assert [p.name for p in tmp_path.iterdir()] == ["hub"]


@pytest.mark.parametrize("step", range(3))
def test_a_ctrl_c_at_any_step_leaves_the_old_folder_or_the_new_one(tmp_path, monkeypatch, step):
    """Steps: the old folder moves aside, the new one takes its place, the old one is deleted."""
    target = tmp_path / "hub"
    monkeypatch.setattr(folders, "_exchange", lambda *_: False)  # as on a file system that cannot
    with new_folder(target) as draft:
        (draft / "old").touch()
    steps, rename, rmtree = [], Path.rename, shutil.rmtree

    def interrupted(action):
        def run(*args, **kwargs):
            done = action(*args, **kwargs)
            steps.append(action)
            if len(steps) == step + 1:
                raise KeyboardInterrupt
            return done

        return run

    monkeypatch.setattr(Path, "rename", interrupted(rename))
    monkeypatch.setattr("tasks.storage.folders.shutil.rmtree", interrupted(rmtree))
    with pytest.raises(KeyboardInterrupt), new_folder(target) as draft:
        (draft / "new").touch()
    assert [p.name for p in target.iterdir()] == [["old"], ["new"], ["new"]][step]
    assert [p.name for p in tmp_path.iterdir()] == ["hub"]


KILLED = """
import os, signal, sys
from pathlib import Path
from tasks.storage import folders
target, step, exchanges, seen = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True", 0
if not exchanges:
    folders._exchange = lambda *_: False
def hook(event, args):
    global seen
    if event in ("os.rename", "os.rmdir", "os.remove", "ctypes.dlsym", "shutil.rmtree") and begun:
        seen += 1
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)
begun = False
sys.addaudithook(hook)
with folders.new_folder(target) as draft:
    (draft / "new").touch()
    begun = True
print(seen)
"""


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_kill_at_any_step_leaves_the_old_folder_or_the_new_one(tmp_path, exchanges):
    def run(step):
        target = tmp_path / str(step) / "hub"
        target.mkdir(parents=True)
        (target / "old").touch()
        command = [sys.executable, "-c", KILLED, str(target), str(step), str(exchanges)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode in (0, -9), done.stderr
        if exchanges:  # not for a moment is there none
            assert target.is_dir()
        folders.recover_folder(target)
        (found,) = [p.name for p in target.iterdir()]
        with new_folder(target) as draft:
            (draft / "newer").touch()
        assert [p.name for p in target.iterdir()] == ["newer"]
        assert not folders.folders_aside(target)
        return done.returncode, found

    found = [run(step) for step in range(1, 12)]
    killed = [name for code, name in found if code]
    assert killed[0] == "old"
    assert killed[-1] == "new"
    assert found[-1] == (0, "new")


def test_a_second_writer_of_a_folder_waits_so_that_it_replaces_what_it_has_read(tmp_path):
    """Else the folder of a writer that began earlier and ends later would replace a newer one."""
    target, number = tmp_path / "hub", 8

    def add(_):
        with new_folder(target) as draft:
            before = int((target / "count").read_text()) if target.exists() else 0
            (draft / "count").write_text(str(before + 1))

    with ThreadPoolExecutor(number) as pool:
        list(pool.map(add, range(number)))
    assert (target / "count").read_text() == str(number)


def test_a_link_to_a_folder_stays_and_that_folder_is_replaced(tmp_path):
    elsewhere, link = tmp_path / "disk/hub", tmp_path / "home/hub"
    for folder in (elsewhere, link.parent):
        folder.mkdir(parents=True)
    (elsewhere / "old").touch()
    link.symlink_to(elsewhere)
    with new_folder(link) as draft:
        assert draft.parent == elsewhere.parent  # else the rename would go from one disk to another
        (draft / "new").touch()
    assert link.is_symlink()
    assert [p.name for p in elsewhere.iterdir()] == ["new"]
    assert [p.name for folder in (link.parent, elsewhere.parent) for p in folder.iterdir()] == ["hub", "hub"]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_every_file_follows_the_umask_and_a_secret_does_not(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_bytes(tmp_path / "file", b"")
        write_whole(tmp_path / "weights", b"")
        make_sqlite(tmp_path / "mlflow.db")
        write_secret(tmp_path / "secret", "x")
    finally:
        os.umask(before)
    modes = {p.name: p.stat().st_mode & 0o777 for p in tmp_path.iterdir() if not p.name.startswith(".")}
    assert modes == {"file": mode, "weights": mode, "mlflow.db": mode, "secret": 0o600}


@pytest.fixture
def synced(monkeypatch):
    """What a power cut leaves of each file: the size that it had at its last sync, by inode."""
    sizes, fsync = {}, os.fsync

    def record(handle):
        fsync(handle)
        status = os.fstat(handle)
        sizes[status.st_ino] = status.st_size

    monkeypatch.setattr(os, "fsync", record)
    return sizes


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_bytes(path, b"whole"),
        lambda path: write_record(path, Failure(step="train", reason="why")),
        lambda path: write_whole(path, b"whole"),
        lambda path: write_secret(path, "whole"),
    ],
)
def test_a_power_cut_leaves_no_file_with_a_part_of_its_content(tmp_path, monkeypatch, synced, write):
    """A name may be on disk before its content is: so the content must be, before the file gets its name."""
    named = []

    def named_by(way):
        def name(path, other):
            draft = path if way == "replace" else other
            named.append(synced.get(draft.stat().st_ino) == draft.stat().st_size > 0)
            return ways[way](path, other)

        return name

    ways = {way: getattr(Path, way) for way in ("replace", "rename", "hardlink_to")}
    for way in ways:
        monkeypatch.setattr(Path, way, named_by(way))
    write(tmp_path / "file")
    assert named == [True]


def test_a_power_cut_during_the_exchange_of_a_folder_leaves_the_old_or_the_new_one(
    tmp_path, monkeypatch, synced
):
    """The new name is on disk before the first file of the old folder goes."""
    target, rmtree = tmp_path / "hub", shutil.rmtree
    target.mkdir()

    def remove(path, **how):
        assert tmp_path.stat().st_ino in synced
        rmtree(path, **how)

    monkeypatch.setattr("tasks.storage.folders.shutil.rmtree", remove)
    with new_folder(target) as draft:
        (draft / "new").touch()
    assert [p.name for p in target.iterdir()] == ["new"]


def test_drafts_of_killed_writers_are_swept_after_a_day(tmp_path):
    old, young, other = (
        tmp_path / f".{name}" for name in ("hub.0123456789ab", "hub.ba9876543210", "hubs.0123456789ab")
    )
    for folder in (old, young, other):
        folder.mkdir()
    for folder in (old, other):
        os.utime(folder, (1, 1))
    with new_folder(tmp_path / "hub"):
        pass
    assert (old.exists(), young.exists(), other.exists()) == (False, True, True)


@pytest.mark.parametrize(
    ("error", "expected"), [(OSError(28, "No space left on device"), DiskFull), (KeyError(), KeyError)]
)
def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path, error, expected):
    write_bytes(tmp_path / "file", b"old")

    def fail():
        with replacing(tmp_path / "file") as draft:
            draft.write_bytes(b"half")
            assert DRAFT.fullmatch(draft.name)["name"] == "file"
            raise error

    with pytest.raises(expected):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"
