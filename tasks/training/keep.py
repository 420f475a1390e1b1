"""Which fleets stay on disk: about 10 MB per architecture and run would otherwise pile up every night.

What champions need lies in MLflow's artifacts. A fleet's folder serves the run that makes it, the same command
repeated (after a kill, say), and whoever was told its model folder: so the last few of each kind are kept.
"""

import fcntl
import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

KEPT = 3
"""Fleets kept of each kind (architecture, preset and member series), the most recently used first."""


class FleetsInUse:
    """A run's hold on `HOME/fleets`: while any run has one, nothing there is pruned. Ends with the process."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "fleets"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = (home / "fleets.lock").open("a")  # beside: whoever looks into `fleets` finds fleets only
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def release(self) -> list[Path]:
        """End the hold; the last run to do so removes old fleets. Returns what was removed."""
        with self._lock as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another run is at work; it will prune when it ends
                return []
            return prune(self._folder)


def prune(fleets: Path) -> list[Path]:
    """Remove all but the newest `KEPT` fleets of each kind, and return the folders that were removed."""
    kinds: dict[str, list[tuple[float, Path]]] = defaultdict(list)
    for file in fleets.glob("*/job.json"):
        kinds[_kind(json.loads(file.read_text()))].append((file.stat().st_mtime, file.parent))
    old = [folder for found in kinds.values() for _, folder in sorted(found, reverse=True)[KEPT:]]
    for folder in old:
        shutil.rmtree(folder)
    return old


def is_training(folder: Path) -> bool:
    """Whether a worker is at work in this fleet's folder."""
    if not (folder / "lock").exists():
        return False
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _kind(job: dict[str, Any]) -> str:
    members = sorted((m["symbol"], m["timeframe"]) for m in job["members"])
    return json.dumps([job["architecture"], job["preset"], members])
