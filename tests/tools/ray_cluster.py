"""A Ray cluster of several nodes on this machine: a head without cores, and nodes that can be killed."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": os.environ["RAY_AUTH_TOKEN"],
    "RAY_USAGE_STATS_ENABLED": "0",
}


class SmallCluster:
    """Nodes of one core each; what a node works on lies below the temporary folder that it is added with."""

    def __init__(self):
        os.environ.update(ENVIRONMENT)  # before Ray is imported
        os.environ["PYTHONPATH"] = str(ROOT)
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        self.address = self.cluster.address
        self.nodes = {}

    def add(self, place, **env):
        """Start a node."""
        place.mkdir(exist_ok=True)
        self.nodes[place] = self.cluster.add_node(num_cpus=1, env_vars={"TMPDIR": str(place), **env})

    def kill(self, place):
        """Kill a node's processes, all at once."""
        self.cluster.remove_node(self.nodes.pop(place), allow_graceful=False)

    def clear(self):
        """Remove all nodes but the head."""
        for place in list(self.nodes):
            self.kill(place)

    def close(self):
        """End the cluster."""
        self.clear()
        self.cluster.shutdown()


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
