import pytest

from tasks.files import new_folder, read_json, write_bytes, write_json


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
