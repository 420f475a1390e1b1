"""The store that machines share, on a folder and in fsspec's memory: whole or not there, checked, no secrets."""

import errno
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.errors import DamagedError, UsageError
from tasks.storage import store_faults, store_url
from tasks.storage.digests import file_digest
from tasks.storage.files import DiskFull
from tasks.storage.shared import SharedStore, shared_store
from tasks.storage.store_faults import StoreFault, StoreFull, may_pass, reason_of
from tasks.storage.store_tree import by_digest, is_plain, listing_damage, part_key


def fine(_path):
    return ""


def anything(_name):
    return True


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path, monkeypatch):
    monkeypatch.setattr(store_faults, "WAIT_S", 0.0)
    if request.param == "memory":
        return in_memory()
    (tmp_path / "store").mkdir()
    return SharedStore.open(f"file://{tmp_path}/store")


def in_memory():
    return SharedStore(MemoryFileSystem(), f"/{uuid.uuid4().hex}", "memory://test")


@pytest.fixture
def folder(tmp_path):
    """A folder with a tree of three files, the last of them `result.json`."""
    made = tmp_path / "home/fleets/k"
    (made / "members/a").mkdir(parents=True)
    (made / "members/a/weights").write_bytes(b"weights" * 1000)
    (made / "members/empty").write_bytes(b"")
    (made / "result.json").write_text('{"a": 1}')
    return made


NAMES = ["members/a/weights", "members/empty", "result.json"]


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_an_object_comes_back_as_it_was(store, folder, tmp_path):
    store.put(folder / "members/a/weights", "features/x.1")
    assert store.has("features/x.1")
    assert not store.has("features/x")
    assert store.names("features") == {"x.1": 7000}
    assert store.names("nothing") == {}
    store.get("features/x.1", tmp_path / "back/x", by_digest(file_digest(folder / "members/a/weights")))
    assert (tmp_path / "back/x").read_bytes() == b"weights" * 1000
    store.remove(["features/x.1", "features/never"])
    assert not store.has("features/x.1")


def test_a_tree_comes_back_as_it_was(store, folder, tmp_path):
    store.put_tree(folder, "fleets/k", NAMES, last="result.json")
    there = tmp_path / "other/fleets/k"
    assert store.get_tree("fleets/k", there, last="result.json", check=fine, allowed=anything)
    assert content(there) == content(folder)


def test_a_tree_that_is_not_there_leaves_nothing(store, tmp_path):
    assert not store.get_tree("fleets/k", tmp_path / "k", last="result.json", check=fine, allowed=anything)
    assert not (tmp_path / "k").exists()


def test_a_store_whose_folder_goes_away_is_a_fault_and_no_folder_is_made_in_its_place(
    tmp_path, folder, monkeypatch
):
    monkeypatch.setattr(store_faults, "WAIT_S", 0.0)
    (tmp_path / "store").mkdir()
    store = SharedStore.open(f"file://{tmp_path}/store")
    store.put_tree(folder, "k", NAMES, last="result.json")
    (tmp_path / "store").rename(tmp_path / "away")
    tries = [
        lambda: store.put_tree(folder, "k", NAMES, last="result.json"),
        lambda: store.get_tree("k", tmp_path / "b", last="result.json", check=fine, allowed=anything),
        lambda: store.has("k/result.json"),
        lambda: store.names("k"),
        lambda: store.remove(["k/result.json"]),
    ]
    for one in tries:
        with pytest.raises(
            StoreFault, match=r"there is no folder .*/store any more; mount it again"
        ) as caught:
            one()
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "store").exists()
    (tmp_path / "away").rename(tmp_path / "store")
    assert store.get_tree("k", tmp_path / "b", last="result.json", check=fine, allowed=anything)


def test_a_folder_that_is_gone_for_a_moment_is_waited_for(tmp_path, folder, monkeypatch):
    (tmp_path / "store").mkdir()
    store = SharedStore.open(f"file://{tmp_path}/store")
    (tmp_path / "store").rename(tmp_path / "away")
    monkeypatch.setattr(store_faults, "pause", lambda _s: (tmp_path / "away").rename(tmp_path / "store"))
    store.put(folder / "result.json", "x")
    assert store.has("x")


class Cut(Exception):
    """The machine is gone."""


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(objects=st.integers(0, 20), files=st.integers(0, 6))
def test_a_tree_that_was_cut_off_at_any_moment_is_not_there(objects, files, tmp_path):
    home, there = tmp_path / uuid.uuid4().hex, tmp_path / uuid.uuid4().hex
    (home / "members").mkdir(parents=True)
    names = [f"members/{i}" for i in range(files)]
    for name in names:
        (home / name).write_text(name)
    (home / "result.json").write_text("last")
    store = in_memory()
    left = objects
    put_file = store.fs.put_file

    def until_cut(path, key, **how):
        nonlocal left
        if not left:
            raise Cut
        left -= 1
        put_file(path, key, **how)

    store.fs.put_file = until_cut
    try:
        store.put_tree(home, "k", [*names, "result.json"], last="result.json")
        whole = True
    except Cut:
        whole = False
    finally:
        del store.fs.put_file
    assert whole == (objects >= files + 2)  # the listing, and the last file
    assert store.get_tree("k", there, last="result.json", check=fine, allowed=anything) == whole
    assert (content(there) if there.exists() else {}) == (content(home) if whole else {})


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations([(who, step) for who in "ab" for step in range(3)]))
def test_two_machines_that_write_one_tree_at_once_do_not_mix_theirs(order, tmp_path):
    """Whatever order their objects arrive in (each machine keeps its own), a reader gets the tree of one of them."""
    store, puts = in_memory(), {}
    for who in "ab":
        home = tmp_path / uuid.uuid4().hex
        home.mkdir()
        (home / "config").write_text(f"of {who}")
        (home / "result.json").write_text(f"result of {who}")
        other = in_memory()
        made = puts[who] = []
        other.fs.put_file = lambda path, key, made=made, root=other.root, **_: made.append(
            (key.removeprefix(root), Path(path).read_bytes())
        )
        try:
            other.put_tree(home, "k", ["config", "result.json"], last="result.json")
        finally:
            del other.fs.put_file
    for who, _ in order:
        key, data = puts[who].pop(0)
        store.fs.pipe_file(store.root + key, data)
    there = tmp_path / uuid.uuid4().hex
    assert store.get_tree("k", there, last="result.json", check=fine, allowed=anything)
    assert content(there)["result.json"].decode() == f"result {content(there)['config'].decode()}"


def test_a_damaged_object_is_fetched_twice_and_never_used(store, folder, tmp_path):
    store.put(folder / "result.json", "x")
    reads = []

    def check(path):
        reads.append(path)
        return "its sha256 differs"

    with pytest.raises(DamagedError, match="its sha256 differs") as caught:
        store.get("x", tmp_path / "back/x", check)
    assert len(reads) == 2
    assert caught.value.field == "x"
    assert list((tmp_path / "back").iterdir()) == []


def test_an_object_damaged_on_its_way_is_fetched_once_more(store, folder, tmp_path):
    store.put(folder / "result.json", "x")
    answers = iter(["its sha256 differs", ""])
    store.get("x", tmp_path / "back", lambda _: next(answers))
    assert (tmp_path / "back").read_text() == '{"a": 1}'


def test_a_damaged_part_of_a_tree_spoils_the_tree(store, folder, tmp_path):
    store.put_tree(folder, "k", NAMES, last="result.json")
    key = part_key("k", "members/a/weights", file_digest(folder / "members/a/weights"))
    store.fs.pipe_file(f"{store.root}/{key}", b"waights" * 1000)
    with pytest.raises(DamagedError, match="sha256"):
        store.get_tree("k", tmp_path / "there", last="result.json", check=fine, allowed=anything)
    assert not (tmp_path / "there/result.json").exists()
    store.remove([key])
    with pytest.raises(DamagedError, match="missing"):
        store.get_tree("k", tmp_path / "there", last="result.json", check=fine, allowed=anything)
    store.put_tree(folder, "k", NAMES, last="result.json")  # heals it
    assert store.get_tree("k", tmp_path / "there", last="result.json", check=fine, allowed=anything)


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/evil", "members/../../evil", "a//b", ".", "", "a\\b", "a\0b"]
)
def test_a_listing_cannot_name_a_file_outside_its_folder(name, store, folder, tmp_path, monkeypatch):
    assert not is_plain(name)
    monkeypatch.setattr(SharedStore, "_put_part", lambda *_: (file_digest(folder / "result.json"), 8))
    store.put_tree(folder, "k", [name, "result.json"], last="result.json")
    with pytest.raises(DamagedError, match="no tree of cpb holds"):
        store.get_tree("k", tmp_path / "there", last="result.json", check=fine, allowed=anything)
    assert content(tmp_path / "there") == {} if (tmp_path / "there").exists() else True


def test_a_listing_may_name_allowed_files_only(store, folder, tmp_path):
    store.put_tree(folder, "k", NAMES, last="result.json")
    with pytest.raises(DamagedError, match="no tree of cpb holds"):
        store.get_tree(
            "k", tmp_path / "t", last="result.json", check=fine, allowed=lambda n: n != "members/empty"
        )


@given(
    data=st.binary(max_size=60)
    | st.sampled_from([b'{"files": [1], "digest": ""}', b"[]", b'{"files": {"a": 3}}'])
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_in_place_of_a_listing_are_told_from_one(data, tmp_path):
    (tmp_path / "listing").write_bytes(data)
    assert listing_damage(tmp_path / "listing", anything)


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="/\\\0"), min_size=1), min_size=1, max_size=4
    )
)
def test_plain_names_stay_where_they_are(parts):
    name = "/".join(parts)
    inside = Path("/root").joinpath(name)
    if is_plain(name):
        assert os.path.normpath(inside).startswith("/root/")
        assert part_key("p", name, "0" * 64) == f"p/{name}.{'0' * 16}"


def test_a_full_folder_is_said_to_be_the_store_and_a_full_disk_the_home(store, folder, tmp_path, monkeypatch):
    store.put(folder / "result.json", "x")

    def full(*_args, **_how):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store.fs, "get_file", full, raising=False)
    with pytest.raises(DiskFull, match="CPB_CACHE_HOME") as caught:
        store.get("x", tmp_path / "back/x", fine)
    assert caught.value.code == "disk-full"
    monkeypatch.setattr(store.fs, "put_file", full, raising=False)
    monkeypatch.setattr("tasks.storage.shared.shutil.copyfile", full)
    with pytest.raises(StoreFull, match="no space left in the store") as caught:
        store.put(folder / "result.json", "y")
    assert caught.value.code == "store-full"
    assert not store.has("y")
    assert store.names("") == {"x": 8}


def test_faults_that_pass_are_tried_again_and_others_are_not(folder, monkeypatch):
    monkeypatch.setattr(store_faults, "WAIT_S", 0.0)
    store, tries = in_memory(), []

    def failing(error, times):
        def put(*_args, **_how):
            tries.append(error)
            if len(tries) <= times:
                raise error

        monkeypatch.setattr(store.fs, "put_file", put, raising=False)
        tries.clear()

    failing(OSError(errno.EBUSY, "Please reduce your request rate"), store_faults.MAX_TRIES - 1)
    store.put(folder / "result.json", "x")
    assert len(tries) == store_faults.MAX_TRIES
    failing(TimeoutError(), 99)
    with pytest.raises(StoreFault, match="no answer in time; check the network"):
        store.put(folder / "result.json", "x")
    assert len(tries) == store_faults.MAX_TRIES
    failing(PermissionError("Access Denied"), 99)
    with pytest.raises(StoreFault, match=r"Access Denied \(PermissionError\); give this user the right"):
        store.put(folder / "result.json", "x")
    assert len(tries) == 1
    failing(ValueError("a fault of cpb"), 99)
    with pytest.raises(ValueError, match="a fault of cpb"):
        store.put(folder / "result.json", "x")


def test_errors_of_drivers_are_told_apart_by_their_library():
    from botocore.exceptions import EndpointConnectionError, NoCredentialsError

    assert may_pass(EndpointConnectionError(endpoint_url="http://x"))
    assert not may_pass(NoCredentialsError())
    assert not may_pass(KeyError("x"))


def test_no_secret_is_in_a_reason(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-in-the-environment")
    error = OSError("no https://user:word@host/x?token=abc with hidden-in-the-environment")
    assert reason_of(error) == "no https://host/x?token=*** with *** (OSError)"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nonsense", "is no store"),
        ("ftp://host/x", "is no store"),
        ("https://user:word@host/x", "is no store"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://key:word@bucket/x", "must hold no user, password"),
        ("s3://bucket/x?token=word", "must hold no user, password"),
        ("file://nfs/x", "names a folder of the host 'nfs'"),
        ("file:///nowhere/at/all", "there is no folder"),
    ],
)
def test_a_wrong_url_is_refused_without_showing_what_is_secret(url, reason, monkeypatch):
    monkeypatch.setenv("CPB_STORE", url)
    with pytest.raises(UsageError, match=reason) as caught:
        shared_store()
    assert caught.value.field == "CPB_STORE"
    assert "word" not in str(caught.value).replace("password", "")


def test_a_missing_driver_names_its_extra(monkeypatch):
    monkeypatch.setattr(store_url, "find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r's3://bucket needs s3fs, which is not installed: run pip install "cpb\[s3\]"'
    ):
        SharedStore.open("s3://bucket")
    with pytest.raises(UsageError, match=r"cpb\[gs\]"):
        SharedStore.open("gs://bucket/x")


def test_without_the_variable_there_is_no_store_and_no_fsspec(monkeypatch):
    monkeypatch.delenv("CPB_STORE", raising=False)
    assert shared_store() is None
    code = "import sys, tasks.storage.shared as s; assert s.shared_store() is None; assert 'fsspec' not in sys.modules"
    env = {k: v for k, v in os.environ.items() if k != "CPB_STORE"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_a_store_is_asked_whether_it_can_be_written(store, monkeypatch):
    store.check_writable()
    assert store.names("") == {}
    if store.is_local:
        return
    monkeypatch.setattr(
        store.fs, "get_file", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError), raising=False
    )
    with pytest.raises(StoreFault, match="does not give back"):
        store.check_writable()
