import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tasks.storage.files import DRAFT, DiskFull, new_folder, read_json, replacing, write_bytes, write_json


def test_a_failed_write_leaves_the_old_file_and_no_debris(tmp_path):
    target = tmp_path / "a.json"
    write_json(target, {"x": 1})
    with pytest.raises(TypeError):
        write_bytes(target, "not bytes")  # type: ignore[arg-type]
    assert read_json(target) == {"x": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


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


def test_the_old_folder_goes_whole_so_that_a_kill_never_leaves_half_of_it(tmp_path, monkeypatch):
    with new_folder(tmp_path / "hub") as draft:
        (draft / "old").touch()

    def killed(path, **_):
        assert path.name.startswith(".hub.")  # never the folder under its own name
        raise KeyboardInterrupt

    monkeypatch.setattr("tasks.storage.files.shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "hub") as draft:
        (draft / "new").touch()


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
