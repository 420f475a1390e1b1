"""What nodes report of shards in training, kept on the driver's node until the driver takes it."""

import threading
import time
from collections import defaultdict
from typing import Any, Literal

Kind = Literal["start", "progress", "line"]
Report = tuple[Kind, Any]

TAKE_S = 0.3
"""Shortest time between two questions to the board, of all waiting threads together."""


class Board:
    """A Ray actor on the driver's node, so that no other node's loss loses it. Methods are called from anywhere."""

    def __init__(self) -> None:
        self._new: dict[str, list[Report]] = defaultdict(list)

    def start(self, key: str) -> None:
        """Take in that a shard has its place."""
        self._new[key].append(("start", None))

    def progress(self, key: str, state: dict[str, Any]) -> None:
        """Take in how far a shard is; only the newest report is kept."""
        self._new[key] = [one for one in self._new[key] if one[0] != "progress"] + [("progress", state)]

    def line(self, key: str, level: int, text: str) -> None:
        """Take in a line of a shard's log, with its level."""
        self._new[key].append(("line", (level, text)))

    def take(self) -> dict[str, list[Report]]:
        """Return what is new, by shard, and forget it."""
        new, self._new = dict(self._new), defaultdict(list)
        return new


class BoardReader:
    """The driver's side: `take` gives a thread what is new of its own shard, and asks for all shards together."""

    def __init__(self, ray: Any) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
        self._ray = ray
        self.board = ray.remote(num_cpus=0)(Board).options(scheduling_strategy=here).remote()
        self._lock, self._asked = threading.Lock(), 0.0
        self._found: dict[str, list[Report]] = defaultdict(list)

    def take(self, key: str) -> list[Report]:
        """Return what is new of one shard, oldest first."""
        with self._lock:
            if time.monotonic() - self._asked >= TAKE_S:
                for one, reports in self._ray.get(self.board.take.remote()).items():
                    self._found[one] += reports
                self._asked = time.monotonic()
            return self._found.pop(key, [])
