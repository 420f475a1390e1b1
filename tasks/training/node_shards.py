"""A shard on a node of a cluster: its job, features and checkpoints come from the store into the node's cache."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import UsageError
from schemas.handover import FleetJob
from schemas.identity import APART
from tasks.storage.node_cache import NodeCache
from tasks.storage.shared import shared_store
from tasks.storage.store_url import STORE
from tasks.training.fleet_files import RESULT, fleet_folders
from tasks.training.retention import is_own
from tasks.training.shared_checkpoints import SharedCheckpoints
from tasks.training.shared_shards import SharedShards

_FEATURES = re.compile(r"features(-[a-z]+)?/interval=[^/]+/symbol=[^/]+/[0-9a-f]{16}-[0-9a-f]{8}\.parquet")


@dataclass(frozen=True)
class NodeShard:
    """A shard in a node's cache. `folder` is as in a home: its trainer finds the features by the job's paths."""

    shards: SharedShards
    folder: Path
    job: FleetJob

    def is_trained(self) -> bool:
        """Whether the shard is trained, here or in the store, from which it is fetched then."""
        return (self.folder / RESULT).exists() or self.shards.get_result(self.folder)

    def checkpoints(self, setting: str) -> SharedCheckpoints:
        """Return its checkpoints: `get` before the trainer, `kept` around it; see `SharedCheckpoints`."""
        return self.shards.checkpoints(self.folder, setting)

    def put_result(self) -> None:
        """Put the trained shard into the store and delete its checkpoints there; raises `StoreFault`."""
        self.shards.put_result(self.folder)
        self.shards.checkpoints(self.folder, "").remove()


@contextmanager
def shard_on_node(key: str) -> Iterator[NodeShard]:
    """Yield a shard whose job and features have come to this node; nothing of it is removed while the block lasts.

    Args:
        key: where the shard lies below any home, as in `fleets/KEY` or `sim/fleets/KEY`.

    Raises:
        UsageError: `CPB_STORE` or `CPB_CACHE_HOME` is missing or cannot be used on this node.
        DamagedError: the job or a feature file is missing in the store, or damaged there.
        StoreFault: the store cannot be read.
    """
    store = shared_store()
    if store is None:
        raise UsageError(
            f"{STORE} is not set on this node: give every node the URL of the store that all of them share",
            code="store", field=STORE,
        )  # fmt: skip
    cache = NodeCache.open()
    shards = SharedShards(store, cache.home, cache)
    with cache.using([key]):
        folder = cache.home / key
        with cache.filling(key):
            job = shards.get_job(folder)
        with cache.using([member.features.path for member in job.members]):
            shards.get_features(job)
            yield NodeShard(shards, folder, job)
    cache.trim(own_entries(cache.home))


def own_entries(home: Path) -> list[Path]:
    """Return the feature files and shards in a node's cache that are provably cpb's."""
    roots = [home, *(home / market for market in APART)]
    features = [
        path
        for root in roots
        for path in root.glob("features*/interval=*/symbol=*/*.parquet")
        if _FEATURES.fullmatch(path.relative_to(root).as_posix()) and not path.is_symlink()
    ]
    return features + [folder for root in roots for folder in fleet_folders(root) if is_own(folder)]
