"""Whether the head of a Ray cluster still answers: Ray ends a process by force when it has not for 60 s."""

import socket
import threading
import time

ASK_S, SILENT_S = 2.0, 20.0
"""Seconds between two questions, and how long none may be answered until the head counts as lost."""


class Head:
    """A cluster's head. `address`: HOST:PORT of its control service (GCS)."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._place = host.strip("[]"), int(port)
        self._lock, self._asked = threading.Lock(), 0.0
        self._silent_since: float | None = None

    def is_lost(self) -> bool:
        """Whether it has answered nothing for `SILENT_S`; may be called often, from any thread."""
        with self._lock:
            now = time.monotonic()
            if now - self._asked >= ASK_S:
                self._asked = now
                if self._answers():
                    self._silent_since = None
                elif self._silent_since is None:
                    self._silent_since = now
            return self._silent_since is not None and now - self._silent_since >= SILENT_S

    def _answers(self) -> bool:
        try:
            socket.create_connection(self._place, ASK_S).close()
        except OSError:
            return False
        return True
