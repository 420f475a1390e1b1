import os
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from flows.ops.passwords import make_password, read_password
from schemas.errors import CpbError


def test_one_password_is_made_for_its_owner_alone_and_kept(tmp_path):
    old = os.umask(0)  # the widest: the mode must not depend on it
    try:
        path = tmp_path / "prefect" / "auth"
        first = make_password(path)
    finally:
        os.umask(old)
    assert make_password(path) == read_password(path) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["auth"]
    assert make_password(tmp_path / "other") != first


def test_a_new_password_replaces_that_of_an_earlier_server(tmp_path):
    path = tmp_path / "auth"
    first = make_password(path, new=True)
    second = make_password(path, new=True)
    assert first != second
    assert make_password(path) == read_password(path) == second
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["auth"]


def test_of_processes_that_start_at_once_all_use_the_same(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        made = set(pool.map(lambda _: make_password(tmp_path / "auth"), range(64)))
    assert len(made) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["auth"]


@pytest.mark.parametrize("damage", ["readable", "link", "empty", "folder"])
def test_a_file_that_others_may_know_is_not_used(tmp_path, damage):
    path = tmp_path / "auth"
    make_password(path)
    if damage == "readable":
        path.chmod(0o640)
    elif damage == "link":
        path.rename(tmp_path / "target")
        path.symlink_to(tmp_path / "target")
    elif damage == "empty":
        path.write_text("")
    else:
        path.unlink()
        path.mkdir(mode=0o700)
    for use in (make_password, partial(make_password, new=True), read_password):
        with pytest.raises(CpbError, match="`cpb deploy up`, which makes a new one") as error:
            use(path)
        assert (error.value.code, error.value.field) == ("auth-file", str(path))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CpbError, match="No such file"):
        read_password(tmp_path / "auth")
