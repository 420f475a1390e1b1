import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cpbmodels.fleet.config import write_whole
from tasks.storage.files import DRAFT, DiskFull, new_folder, replacing, write_bytes, write_secret
from tasks.tracking.store import make_sqlite


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
    monkeypatch.setattr("tasks.storage.files.shutil.rmtree", interrupted(rmtree))
    with pytest.raises(KeyboardInterrupt), new_folder(target) as draft:
        (draft / "new").touch()
    assert [p.name for p in target.iterdir()] == [["old"], ["new"], ["new"]][step]
    assert [p.name for p in tmp_path.iterdir()] == ["hub"]


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
