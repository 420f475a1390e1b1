"""Runs a fleet's job in a process of its own, with a device slot and a kill timer.

A process of its own, because a long device call cannot be interrupted from within, because the memory goes
back to the system afterwards, and because one CPU fleet per core is faster than one fleet on all cores. The
slot is an OS file lock, which the kernel frees when its holder dies, however it dies.
"""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from schemas.errors import CpbError
from tasks.storage.files import read_json
from tasks.training.allocator import MALLOC


@dataclass(frozen=True)
class Slots:
    """Where fleets may run at the same time: GPUs by index, or a number of CPU processes."""

    gpus: tuple[int, ...]
    workers: int
    threads: int


def count_gpus() -> int:
    """Return how many NVIDIA GPUs the driver offers this process; 0 where there is no driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def plan_slots(device: str, fleets: int) -> Slots:
    """Return the slots for `fleets` jobs: one per GPU, else one process per core up to the number of jobs.

    The thread count follows from the plan alone, never from what is left to do: a CPU result's last bits
    depend on it, and a run that was killed and repeated must end with the same bits.
    """
    gpus = 0 if device == "cpu" else count_gpus()
    if gpus:
        return Slots(tuple(range(gpus)), gpus, max(1, (os.cpu_count() or 1) // gpus))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = max(1, min(cores, fleets))
    return Slots((), workers, max(1, cores // workers))


@cache
def _cpu_slots(workers: int) -> threading.Semaphore:
    return threading.Semaphore(workers)


@contextmanager
def slot(slots: Slots) -> Iterator[int | None]:
    """Yield a free GPU's index, or None for one of this process's CPU slots; waits until one is free."""
    if slots.gpus:
        with gpu_slot(slots.gpus) as gpu:
            yield gpu
    else:
        with _cpu_slots(slots.workers):
            yield None


@contextmanager
def gpu_slot(gpus: tuple[int, ...], poll_s: float = 0.5) -> Iterator[int]:
    """Yield the index of a free GPU, waiting for one."""
    while True:
        for gpu in gpus:
            with (Path(tempfile.gettempdir()) / f"cpb-gpu-{gpu}.lock").open("a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield gpu
                return
        time.sleep(poll_s)


def launch(
    folder: Path, slots: Slots, timeout_s: float, on_progress: Callable[[dict[str, Any]], None] | None = None
) -> None:
    """Train the job in `folder` to its `done.json`; return at once where that is there already.

    Raises:
        CpbError: the process failed, was killed or ran past `timeout_s` seconds; what it had checkpointed stays.
    """
    if (folder / "done.json").exists():
        return
    with slot(slots) as gpu:
        env = os.environ | MALLOC | {"CPB_THREADS": str(slots.threads), "OMP_NUM_THREADS": str(slots.threads)}
        if gpu is not None:
            env["CUDA_VISIBLE_DEVICES"] = _visible(gpu)
        with (folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tasks.training.worker", str(folder.resolve())],
                env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                _wait(process, folder, timeout_s, on_progress)
            finally:
                _stop(process)
    if not (folder / "done.json").exists():
        raise CpbError(_reason(folder, process.returncode))


def _visible(gpu: int) -> str:
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return listed.split(",")[gpu].strip() if listed else str(gpu)


def _wait(
    process: subprocess.Popen[bytes],
    folder: Path,
    timeout_s: float,
    on_progress: Callable[[dict[str, Any]], None] | None,
) -> None:
    deadline = time.monotonic() + timeout_s
    seen = 0.0
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise CpbError(
                f"training {folder.name} ran past its limit of {timeout_s:.0f} s; run again to resume it"
            )
        progress = folder / "progress.json"
        if on_progress and progress.exists() and (stamp := progress.stat().st_mtime) > seen:
            seen = stamp
            on_progress(read_json(progress))
        time.sleep(0.1)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process: first a request, on which it leaves its last checkpoint in place, then by force."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _reason(folder: Path, returncode: int) -> str:
    lines = (folder / "worker.log").read_text(errors="replace").strip().splitlines()
    last = lines[-1] if lines else "it wrote nothing"
    how = f"was killed by signal {-returncode}" if returncode < 0 else f"ended with code {returncode}"
    return f"training process {how}: {last} (log: {folder / 'worker.log'})"
