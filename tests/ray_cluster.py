"""A Ray cluster of several nodes on this machine: a head without cores, and nodes that can be killed."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": os.environ["RAY_AUTH_TOKEN"],
    "RAY_USAGE_STATS_ENABLED": "0",
}


class SmallCluster:
    """Nodes of one core each; the cache of a node lies in the folder that it is added with."""

    def __init__(self):
        os.environ.update(ENVIRONMENT)  # before Ray is imported
        os.environ["PYTHONPATH"] = str(ROOT)
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        self.address = self.cluster.address
        self.nodes = {}

    def add(self, cache, **env):
        """Start a node."""
        self.nodes[cache] = self.cluster.add_node(num_cpus=1, env_vars={"CPB_CACHE_HOME": str(cache), **env})

    def kill(self, cache):
        """Kill a node's processes, all at once."""
        self.cluster.remove_node(self.nodes.pop(cache), allow_graceful=False)

    def at_work(self):
        """The caches of the nodes that a trainer works on."""
        return [one for one in self.nodes if trainers_of(one)]

    def clear(self):
        """Remove all nodes but the head."""
        for cache in list(self.nodes):
            self.kill(cache)

    def close(self):
        """End the cluster."""
        self.clear()
        self.cluster.shutdown()


def trainers_of(cache):
    """The trainers of the node with this cache."""
    found = []
    for one in psutil.process_iter(["cmdline", "status"]):
        command = one.info["cmdline"] or []
        if "tasks.shard_worker" in command and one.info["status"] != "zombie":
            with suppress(psutil.Error):
                if one.environ().get("CPB_CACHE_HOME") == str(cache):
                    found.append(one)
    return found


ATTACK = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    print("inside", ray.get(ray.remote(num_cpus=0)(lambda: 1).remote(), timeout=20))
except BaseException as error:
    print("refused", type(error).__name__, str(error)[:200])
"""
"""What somebody on the network tries who knows the address alone."""

PYTHON = sys.executable
