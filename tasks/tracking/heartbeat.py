"""The sign of life of the flows that this process runs, for other machines that share the store.

One thread renews a tag on each open flow run every ten minutes: a training may take hours between two steps.
"""

import logging
import threading
from datetime import UTC, datetime

from schemas.errors import CpbError
from tasks.tracking.connection import Store
from tasks.tracking.tags import HEARTBEAT

INTERVAL_S = 600.0

log = logging.getLogger("cpb")


def heartbeat_tag(now: datetime | None = None) -> dict[str, str]:
    """Return the tag that says when a run's process was last known to live."""
    return {HEARTBEAT: (now or datetime.now(UTC)).isoformat(timespec="seconds")}


class Heartbeats:
    """Renews the tag of every run between `start` and `stop`, in a daemon thread of its own."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._runs: dict[str, Store] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self, store: Store, run_id: str) -> None:
        """Begin to renew a run's tag."""
        with self._lock:
            self._runs[run_id] = store
            if self._thread is None or not self._thread.is_alive():  # a fork leaves the thread behind
                self._thread = threading.Thread(target=self._beat, name="cpb-heartbeat", daemon=True)
                self._thread.start()

    def stop(self, run_id: str) -> None:
        """End it; nothing happens where the run was not begun here."""
        with self._lock:
            self._runs.pop(run_id, None)

    def _beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._interval_s):
            with self._lock:
                runs = dict(self._runs)
                if not runs:
                    self._thread = None
                    return
            for run_id, store in runs.items():
                try:
                    store.client.set_tag(run_id, HEARTBEAT, heartbeat_tag()[HEARTBEAT])
                except CpbError as error:  # the store is away: the next beat tries again
                    log.debug("no heartbeat for run %s: %s", run_id, error)


heartbeats = Heartbeats()
"""Those of this process."""
