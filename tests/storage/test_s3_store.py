"""The shared store on a real S3 server over loopback, which is busy, cuts its answers, is slow or refuses."""

import itertools
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest
from s3_server import BUCKET, ENVIRONMENT, s3_server

from schemas.errors import DamagedError
from tasks.storage import shared, store_faults
from tasks.storage.digests import file_digest
from tasks.storage.shared import SharedStore
from tasks.storage.store_faults import StoreFault
from tasks.storage.store_tree import by_digest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server():
    with s3_server() as found:
        yield found


@pytest.fixture
def faults(server, monkeypatch):
    url, faults = server
    for name, value in (ENVIRONMENT | {"AWS_ENDPOINT_URL": url}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(store_faults, "WAIT_S", 0.01)
    faults.clear()
    return faults


@pytest.fixture
def store(faults):
    return SharedStore.open(f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}")


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "a"
    (made / "members").mkdir(parents=True)
    for i in range(6):
        (made / f"members/{i}").write_bytes(os.urandom(1000 * i))
    (made / "result.json").write_text('{"result": 1}')
    return made


def names(folder):
    return [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]


def put(store, folder):
    store.put_tree(folder, "fleets/k", names(folder), last="result.json")


def get(store, there):
    return store.get_tree(
        "fleets/k", there, last="result.json", check=lambda _: "", allowed=lambda n: n.startswith("members/")
    )


def same(one, other):
    assert {n: file_digest(one / n) for n in names(one)} == {n: file_digest(other / n) for n in names(other)}


def once_each(what, method="GET"):
    """Spoil the first answer for every object."""
    seen = set()

    def plan(asked, path):
        if asked != method or path in seen:
            return None
        seen.add(path)
        return what

    return plan


def test_a_tree_goes_there_and_back_and_away(store, folder, tmp_path):
    assert not get(store, tmp_path / "b")
    put(store, folder)
    assert get(store, tmp_path / "b")
    same(folder, tmp_path / "b")
    store.remove([f"fleets/k/{name}" for name in store.names("fleets/k")])
    assert store.names("fleets/k") == {}
    assert not get(store, tmp_path / "c")


def test_a_busy_server_is_asked_again(store, folder, tmp_path, faults):
    turns = itertools.count()
    faults.plan = lambda method, path: "busy" if next(turns) % 3 == 0 else None
    put(store, folder)
    assert get(store, tmp_path / "b")
    same(folder, tmp_path / "b")
    assert len(faults.asked) > 8 + 10  # what it takes where no answer is spoilt


def test_answers_that_are_cut_are_fetched_again_and_none_is_used(store, folder, tmp_path, faults):
    put(store, folder)
    faults.plan = once_each("cut")
    assert get(store, tmp_path / "b")
    same(folder, tmp_path / "b")


def test_an_object_that_is_always_cut_is_a_fault_in_one_sentence(store, folder, tmp_path, faults):
    put(store, folder)
    faults.plan = lambda method, path: "cut" if method == "GET" and "members/5" in path else None
    with pytest.raises(StoreFault, match="check the network and the server") as caught:
        get(store, tmp_path / "b")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "b/result.json").exists()
    assert not (tmp_path / "b/members/5").exists()
    assert sum("members/5" in path for _, path in faults.asked if _ == "GET") == store_faults.MAX_TRIES


def test_a_server_that_is_always_busy_is_a_fault_after_all_tries(store, folder, faults):
    faults.plan = lambda method, path: "busy"
    with pytest.raises(StoreFault, match="reduce your request rate"):
        store.put(folder / "result.json", "x")
    assert len(faults.asked) == store_faults.MAX_TRIES


def test_a_slow_answer_is_given_up_and_asked_for_again(store, folder, tmp_path, faults, monkeypatch):
    put(store, folder)
    monkeypatch.setattr(shared, "OBJECT_S", 2.0)
    faults.plan = once_each("slow")
    check = by_digest(file_digest(folder / "members/1"))
    (key,) = [name for name in store.names("fleets/k") if name.startswith("members/1.")]
    store.get(f"fleets/k/{key}", tmp_path / "b", check, size=1000)
    faults.plan = lambda method, path: "slow" if method == "GET" else None
    monkeypatch.setattr(store_faults, "MAX_TRIES", 2)
    with pytest.raises(StoreFault, match="no answer in time"):
        store.get(f"fleets/k/{key}", tmp_path / "c", check, size=1000)
    assert not (tmp_path / "c").exists()


def test_a_refusal_is_said_at_once_without_secrets(store, folder, faults):
    faults.plan = lambda method, path: "denied"
    with pytest.raises(StoreFault, match="Access Denied") as caught:
        store.check_writable()
    assert len(faults.asked) == 1
    assert "give this user the right" in str(caught.value)
    assert not any(value in str(caught.value) for value in ENVIRONMENT.values())


def test_a_bucket_that_is_not_there_is_said(faults):
    with pytest.raises(StoreFault, match="is there such a bucket"):
        SharedStore.open("s3://cpb-nowhere/x").check_writable()


def test_no_server_is_a_fault(faults, monkeypatch, folder):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    SharedStore.open(f"s3://{BUCKET}").fs.clear_instance_cache()
    store = SharedStore.open(f"s3://{BUCKET}/unreachable")
    with pytest.raises(StoreFault, match="check the network"):
        store.put(folder / "result.json", "x")
    store.fs.clear_instance_cache()


def test_bits_that_flipped_in_the_bucket_are_never_used(store, folder, tmp_path):
    put(store, folder)
    (key,) = [name for name in store.names("fleets/k") if name.startswith("members/5.")]
    flipped = bytearray((folder / "members/5").read_bytes())
    flipped[77] ^= 1
    (tmp_path / "flipped").write_bytes(flipped)
    store.put(tmp_path / "flipped", f"fleets/k/{key}")
    with pytest.raises(DamagedError, match="sha256"):
        get(store, tmp_path / "b")
    assert not (tmp_path / "b/members/5").exists()
    assert not (tmp_path / "b/result.json").exists()


@pytest.mark.parametrize("last_asked", ["/members/3.", "/tree-", "/result.json"])
def test_a_machine_that_dies_while_it_puts_a_tree_has_put_none(store, folder, tmp_path, faults, last_asked):
    faults.plan = lambda method, path: "held" if method == "PUT" and last_asked in path else None
    prefix = store.root.partition("/")[2]
    code = (
        "import sys, pathlib\nfrom tasks.storage.shared import SharedStore\n"
        f"folder = pathlib.Path({str(folder)!r})\n"
        f"store = SharedStore.open('s3://{BUCKET}/{prefix}')\n"
        f"store.put_tree(folder, 'fleets/k', {names(folder)!r}, last='result.json')"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    end = time.monotonic() + 60
    while not any(method == "PUT" and last_asked in path for method, path in faults.asked):
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    faults.clear()
    assert not store.has("fleets/k/result.json")
    assert not get(store, tmp_path / "b")
    put(store, folder)  # the same command again
    assert get(store, tmp_path / "b")
    same(folder, tmp_path / "b")
