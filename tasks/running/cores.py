"""The cores of this machine: how many there are, and who holds them."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tasks.storage.interrupts import check_interrupted


class Cores:
    """The cores of this machine, shared by trainers and judges: the cores held never exceed the total."""

    def __init__(self, number: int) -> None:
        self.number, self._free = number, number
        self._changed = threading.Condition()

    @contextmanager
    def held(self, wanted: int) -> Iterator[None]:
        """Hold `wanted` cores (at most all) during the block, waiting for them; an interrupt ends the wait."""
        # A shard that wants more threads than there are cores would wait forever.
        wanted = min(wanted, self.number)
        with self._changed:
            # In slices, as a condition's wait does not end by itself where an interrupt is only noted.
            while self._free < wanted:
                self._changed.wait(0.2)
                check_interrupted()
            self._free -= wanted
        try:
            yield
        finally:
            with self._changed:
                self._free += wanted
                self._changed.notify_all()


def usable_cores() -> int:
    """Return the number of cores that this process may use, as `cpbmodels.device.monitor`, which imports torch."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
