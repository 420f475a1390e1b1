"""Runs a fleet's job in a process of its own, with a device slot and a time limit.

A process of its own, because a long device call cannot be interrupted from within, because the memory goes
back to the system afterwards, and because one CPU fleet per core is faster than one fleet on all cores. It never
outlives the process that started it. This module loads no heavy library: the trainer calls `die_with_parent` first.
"""

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from schemas.errors import CpbError
from tasks.storage.files import open_log, read_json_or_none
from tasks.storage.waiting import let_ctrl_c_end_waits, pause
from tasks.training.slots import Slot, Slots, hold_slot

RESULT, PROGRESS, LOG = "result.json", "progress.json", "worker.log"
WORKER = "tasks.shard_worker"
"""The module that trains and judges: `python -m WORKER FOLDER`."""

MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
"""glibc keeps memory that was freed; read when a process starts, so set from outside. Otherwise every large temporary
is mapped and page-faulted anew in each step (up to 30 % slower)."""

OUT_OF_MEMORY, DISK_FULL = "out-of-memory", "disk-full"
"""Codes of `TrainerDied` for two causes that the user can mend."""

_PARENT = "CPB_TRAINER_OF"
_POLL_S = 0.1
_TERM_S, _KILL_S = 1.0, 0.6
"""Seconds for a trainer to end after SIGTERM, and after SIGKILL: Ctrl-C takes 3 s in all."""

_FULL_BYTES = 1 << 20
_TAIL_BYTES = 1 << 16

Progress = Callable[[dict[str, Any]], None]


class TrainerDied(CpbError):
    """The training process ended without a result; what it had checkpointed stays."""

    default_code = "trainer-died"


class TrainingTimeout(CpbError):
    """The training ran past its time limit and was stopped; what it had checkpointed stays."""

    default_code = "timeout"


def run_trainer(
    folder: Path,
    slots: Slots,
    timeout_s: float,
    on_progress: Progress | None = None,
    on_start: Callable[[], None] | None = None,
) -> None:
    """Train the job in `folder` to its `result.json`; return at once where that is there already.

    Waits for a free slot first; `timeout_s` counts from the start of the process. An interrupt stops the process.

    Args:
        on_progress: called with the contents of `progress.json` whenever it has changed.
        on_start: called when there is a slot.

    Raises:
        TrainerDied: the process failed or was killed.
        TrainingTimeout: it ran past `timeout_s` seconds.
    """
    if (folder / RESULT).exists():
        return
    let_ctrl_c_end_waits()
    with hold_slot(slots) as slot:
        if on_start:
            on_start()
        kills = _oom_kills()
        with open_log(folder / LOG) as log:
            begin = os.fstat(log.fileno()).st_size
            with _trainer(folder, slots.threads, slot, log.fileno()) as process:
                _wait(process, folder, timeout_s, on_progress)
        if not (folder / RESULT).exists():
            raise _death(folder, process.returncode, _last_line(folder / LOG, begin), kills)


def die_with_parent() -> None:
    """Let this process end with the one that started it; to be called before the first heavy import.

    A training nobody waits for must not hold a device, nor race with the training that the same command repeated
    starts. The parent hands over the end of a pipe, as standard input, and its process number. The kernel closes the
    pipe however the parent dies, also before this call. A child that the parent forked would keep it open: hence the
    look at the parent's number, which changes when this process is orphaned.
    """
    if parent := os.environ.pop(_PARENT, ""):
        threading.Thread(target=_watch, args=(int(parent),), daemon=True, name="parent").start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        if select.select([0], [], [], 0.5)[0] and not os.read(0, 1):
            break
    os._exit(1)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the process: first a request, on which it leaves its last checkpoint in place, then by force."""
    for end, seconds in ((process.terminate, _TERM_S), (process.kill, _KILL_S)):
        if process.poll() is not None:
            return
        end()
        # Never an untimed wait. What SIGKILL does not end hangs in a driver; it keeps its lock on the device.
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


@contextmanager
def _trainer(folder: Path, threads: int, slot: Slot, log: int) -> Iterator[subprocess.Popen[bytes]]:
    env = os.environ | MALLOC | {"CPB_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    # A trainer on a CPU slot sees no GPU: it would use one without its lock.
    env |= {"CUDA_VISIBLE_DEVICES": slot.gpu or "", _PARENT: str(os.getpid())}
    process = subprocess.Popen(
        [sys.executable, "-m", WORKER, str(folder.absolute())],
        env=env, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
        pass_fds=() if slot.lock is None else (slot.lock,),  # the GPU is free when the trainer has ended as well
    )  # fmt: skip
    assert process.stdin is not None
    try:
        yield process
    finally:
        stop(process)
        process.stdin.close()


def _wait(
    process: subprocess.Popen[bytes], folder: Path, timeout_s: float, on_progress: Progress | None
) -> None:
    deadline = time.monotonic() + timeout_s
    seen = None
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise TrainingTimeout(
                f"training {folder.name} ran past its limit of {timeout_s:.0f} s; run the same command again to "
                "resume it from its last checkpoint, or set train_timeout_s higher",
                field="train_timeout_s",
            )
        if on_progress and (stamp := _stamp(folder / PROGRESS)) != seen:
            seen = stamp
            if (progress := read_json_or_none(folder / PROGRESS)) is not None:
                on_progress(progress)
        pause(_POLL_S)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _death(folder: Path, returncode: int, last: str, kills: int) -> TrainerDied:
    """Return the error that names the cause: the last line of the log tells more than an exit code."""
    log = f"(log: {folder / LOG})"
    if _is_full(folder) or re.search(r"No space left on device|Disk quota exceeded", last):
        return TrainerDied(
            f"no space left on the disk of {folder}: training stopped; free some space, then run the same command "
            "again to resume it",
            code=DISK_FULL,
            field=str(folder),
        )
    if returncode == -signal.SIGKILL and _oom_kills() > kills:
        last = "the kernel killed it"
    elif not re.search(r"MemoryError|out of memory|(can't|cannot) allocate memory", last, re.IGNORECASE):
        how = f"was killed by signal {-returncode}" if returncode < 0 else f"ended with code {returncode}"
        return TrainerDied(f"training process {how}: {last} {log}")
    return TrainerDied(
        f"training process ran out of memory: {last}; lower batch_size, train fewer series at once, or add memory, "
        f"then run the same command again to resume it {log}",
        code=OUT_OF_MEMORY,
    )


def _last_line(path: Path, begin: int) -> str:
    """Return the last line that was written to a log after its first `begin` bytes."""
    with path.open("rb") as file:
        file.seek(max(begin, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it wrote nothing"


def _is_full(folder: Path) -> bool:
    """Whether next to nothing can be written: then the log lacks the line that would say so."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < _FULL_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


def _oom_kills() -> int:
    """Return how many processes the kernel has killed for want of memory since it started; 0 where it does not say."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
