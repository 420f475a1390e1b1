"""A lock per GPU, held while a shard is trained and its forecasts are made, so that commands take turns on it.

It is a file lock named by the device's UUID, which is the same for every process, however `CUDA_VISIBLE_DEVICES`
renumbers the devices, and for every user of the machine.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from schemas.errors import BusyError
from tasks.storage.interrupts import pause
from tasks.storage.locks import locked, machine_lock

BUSY_S = 0.5
"""Seconds between two tries of a GPU on which another command trains."""


@contextmanager
def gpu_held(gpus: tuple[str, ...]) -> Iterator[None]:
    """Lock one of these GPUs during the block, waiting for it (interruptible); with no GPUs, do nothing."""
    with ExitStack() as stack:
        # Any of them: a device that another command has just released is taken, whichever it is.
        while gpus and not any(_locks(stack, gpu) for gpu in gpus):
            pause(BUSY_S)
        yield


@contextmanager
def gpu_locked() -> Iterator[bool]:
    """Lock this trainer's GPU during the block; yields False if another training holds it, True on a CPU."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
    with ExitStack() as stack:
        yield not gpu or _locks(stack, gpu)  # without one: a trainer on a CPU


def _locks(stack: ExitStack, gpu: str) -> bool:
    """Lock a GPU until the stack is closed; whether no other training holds it."""
    with suppress(BusyError):
        stack.enter_context(locked(machine_lock(f"cpb-{gpu}.lock"), wait=False))
        return True
    return False
