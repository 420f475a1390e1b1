"""A shard on a node: what it needs comes into the node's cache, what it made goes to the store."""

import os
import shutil

import pytest
from shard_tools import home_with_job, trained_shard

from schemas.errors import DamagedError, UsageError
from tasks.storage.node_cache import NodeCache
from tasks.training.fleet_files import RESULT, prepare
from tasks.training.node_shards import own_entries, shard_on_node
from tasks.training.shared_shards import SharedShards


@pytest.fixture
def sent(tmp_path, monkeypatch):
    """A driver's home and job, whose job and features are in the store."""
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("CPB_STORE", f"file://{tmp_path}/store")
    monkeypatch.setenv("CPB_CACHE_HOME", str(tmp_path / "node"))
    return send(tmp_path / "driver")


def send(home, **options):
    job = home_with_job(home, **options)
    shards = SharedShards.of(home)
    folder = prepare(home, job)
    shards.put_features(job)
    shards.put_job(folder)
    return shards, job, folder


def test_a_shard_goes_to_a_node_and_back(sent, tmp_path):
    shards, job, folder = sent
    with shard_on_node(shards.key(folder)) as there:
        assert there.job == job
        assert there.folder == tmp_path / "node/fleets" / folder.name
        features = job.members[0].features.path
        assert (tmp_path / "node" / features).read_bytes() == (tmp_path / "driver" / features).read_bytes()
        assert not there.is_trained()
        shutil.rmtree(there.folder)
        trained_shard(tmp_path / "node", job)
        there.put_result()
    assert shards.get_result(folder)
    shutil.rmtree(tmp_path / "node")  # another node
    with shard_on_node(shards.key(folder)) as there:
        assert there.is_trained()
        assert (there.folder / RESULT).read_bytes() == (folder / RESULT).read_bytes()


def test_features_that_are_there_are_not_fetched_again(sent, tmp_path):
    shards, job, folder = sent
    with shard_on_node(shards.key(folder)):
        pass
    shards.store.remove([name for name in shards.store.names("") if name.startswith("features")])
    with shard_on_node(shards.key(folder)):
        assert (tmp_path / "node" / job.members[0].features.path).exists()


def test_the_cache_is_trimmed_when_a_shard_is_done_and_only_of_what_is_cpbs(sent, tmp_path, monkeypatch):
    shards, job, folder = sent
    monkeypatch.setenv("CPB_CACHE_GB", "0.000000001")
    foreign = tmp_path / "node/features/interval=1h/symbol=BTCUSDT/notes.parquet"
    with shard_on_node(shards.key(folder)) as there:
        foreign.touch()
        (there.folder / "diary.txt").touch()
        assert NodeCache.open().trim(own_entries(tmp_path / "node")) == []  # in use
    assert foreign.exists()
    assert (tmp_path / "node/fleets" / folder.name / "diary.txt").exists()
    assert not (tmp_path / "node" / job.members[0].features.path).exists()
    os.unlink(tmp_path / "node/fleets" / folder.name / "diary.txt")  # noqa: PTH108
    NodeCache.open().trim(own_entries(tmp_path / "node"))
    assert not (tmp_path / "node/fleets" / folder.name).exists()


def test_a_job_that_is_not_in_the_store_and_a_node_without_store_say_so(sent, monkeypatch):
    with (
        pytest.raises(DamagedError, match="mean the same store on every machine"),
        shard_on_node("fleets/none"),
    ):
        pass
    monkeypatch.delenv("CPB_STORE")
    with pytest.raises(UsageError, match="give every node the URL"), shard_on_node("fleets/none"):
        pass
