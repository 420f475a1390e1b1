import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from flows.prefect_server import password_file
from schemas.errors import CpbError


def test_one_password_is_made_for_its_owner_alone_and_kept(tmp_path):
    old = os.umask(0)  # the widest: the mode must not depend on it
    try:
        home = tmp_path / "prefect"
        first = password_file(home).make()
    finally:
        os.umask(old)
    assert password_file(home).make() == password_file(home).read() == first
    assert stat.S_IMODE(password_file(home).path.stat().st_mode) == 0o600
    assert [path.name for path in home.iterdir()] == ["cpb-api-auth"]
    assert password_file(tmp_path / "other").make() != first


def test_of_processes_that_start_at_once_all_use_the_same(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        made = set(pool.map(lambda _: password_file(tmp_path).make(), range(64)))
    assert len(made) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["cpb-api-auth"]


@pytest.mark.parametrize("damage", ["readable", "link", "empty", "folder"])
def test_a_file_that_others_may_know_is_not_used(tmp_path, damage):
    password_file(tmp_path).make()
    path = password_file(tmp_path).path
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
    for use in (password_file(tmp_path).make, password_file(tmp_path).read):
        with pytest.raises(CpbError) as error:
            use()
        assert (error.value.code, error.value.field) == ("auth-file-unsafe", str(path))


def test_without_a_file_the_sentence_says_what_makes_one(tmp_path):
    with pytest.raises(CpbError) as error:
        password_file(tmp_path).read()
    assert error.value.code == "no-auth-file"
