"""A node's cache: its folder is claimed, entries are fetched once, used ones stay, and nothing foreign goes."""

import os
import subprocess
import sys
import threading
import time

import pytest

from schemas.errors import UsageError
from tasks.storage.node_cache import NodeCache, size_of


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CPB_CACHE_GB", "0.000003")  # 3,000 bytes
    return NodeCache.open()


def entry(cache, name, size=1000, used=0):
    path = cache.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (used, used))
    return path


def test_the_cache_is_opened_again_and_by_many_at_once(cache, tmp_path, monkeypatch):
    assert cache.max_bytes == 3000
    assert NodeCache.open() == cache
    made, home = [], tmp_path / "other"
    monkeypatch.setenv("CPB_CACHE_HOME", str(home))
    threads = [threading.Thread(target=lambda: made.append(NodeCache.open())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.home for one in made} == {home}
    assert len(made) == 8
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_default_is_the_users_own_folder_below_the_temporary_one(tmp_path, monkeypatch):
    monkeypatch.delenv("CPB_CACHE_HOME", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = NodeCache.open()
    assert found.home == tmp_path / f"cpb-cache-{os.geteuid()}"
    assert found.home.stat().st_mode & 0o77 == 0
    assert found.max_bytes == 20e9


@pytest.mark.parametrize("kind", ["full", "link", "file"])
def test_a_folder_that_is_not_the_caches_is_refused_and_left_as_it_is(kind, tmp_path, monkeypatch):
    home = tmp_path / "place"
    if kind == "full":
        home.mkdir()
        (home / "thesis.txt").touch()
    elif kind == "link":
        (tmp_path / "real").mkdir()
        home.symlink_to(tmp_path / "real")
    else:
        home.touch()
    monkeypatch.setenv("CPB_CACHE_HOME", str(home))
    with pytest.raises(UsageError) as caught:
        NodeCache.open()
    assert caught.value.field == "CPB_CACHE_HOME"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        {"place"} | ({"real"} if kind == "link" else set())
    )
    assert not (tmp_path / "real/cpb-cache").exists()


@pytest.mark.parametrize("text", ["much", "-1", "0", "nan"])
def test_a_size_that_is_none_is_refused(text, cache, monkeypatch):
    monkeypatch.setenv("CPB_CACHE_GB", text)
    with pytest.raises(UsageError, match="give gigabytes"):
        NodeCache.open()


def test_the_least_recently_used_go_until_the_rest_fits(cache):
    paths = [entry(cache, f"features/{i}", used=i) for i in range(5)]
    foreign = entry(cache, "notes.txt", size=9000)
    assert cache.trim(paths) == paths[:2]
    assert [path.exists() for path in paths] == [False, False, True, True, True]
    assert foreign.exists()
    assert cache.trim(paths[2:]) == []


def test_folders_are_entries_too(cache):
    entry(cache, "fleets/k/members/a", size=2000)
    entry(cache, "fleets/k/result.json", size=1500)
    folder = cache.home / "fleets/k"
    assert size_of(folder) == 3500
    assert cache.trim([folder]) == [folder]
    assert not folder.exists()


def test_what_is_used_stays_and_what_a_dead_process_used_goes(cache):
    paths = [entry(cache, f"features/{i}", size=2000, used=i) for i in range(3)]
    code = (
        "import sys, time\nfrom tasks.storage.node_cache import NodeCache\n"
        "with NodeCache.open().using(['features/1']):\n    print('using', flush=True)\n    time.sleep(600)"
    )
    with cache.using(["features/0"]):
        other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        try:
            assert other.stdout.readline() == b"using\n"
            assert cache.trim(paths) == [paths[2]]
        finally:
            other.kill()
            other.wait()
        assert cache.trim(paths[:2]) == [paths[1]]
    entry(cache, "features/1", size=2000, used=9)
    assert cache.trim(paths[:2]) == [paths[0]]
    assert list((cache.home / "in-use").iterdir()) == []


def test_an_entry_is_fetched_by_one_at_a_time(cache):
    fetched = []

    def fetch():
        with cache.filling("features/x") as path:
            if not path.exists():
                fetched.append(1)
                time.sleep(0.1)
                entry(cache, "features/x")

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetched == [1]
    assert time.time() - (cache.home / "features/x").stat().st_mtime < 60  # used now
