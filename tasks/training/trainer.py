"""The resident process (`tasks.running.resident`) that trains shards: its device, its memory, its requests.

A request is a shard's folder, and why its kernels are not used, if so. An error ends the process: a device is not
reliable after an error, and the last output line states the cause. Does not import Prefect or MLflow.
"""

import ctypes
import gc
import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import cpbmodels
from cpbmodels.fleet.kernel_check import kernels_off
from schemas.errors import CpbError
from tasks.running.resident import Requests
from tasks.storage.locks import locked
from tasks.training.gpu_locks import gpu_locked
from tasks.training.shard import LOCK, RESULT
from tasks.training.shard_training import profile_of, train_job
from tasks.training.trainers import GPU_LOST, KERNELS

log = logging.getLogger("cpb")


def serve(requests: Requests) -> None:
    """Open the device, then train the requested shards one after another; the answer is whether the device was free."""
    # Before anything is computed: the last bits of a CPU's sums depend on the number of threads.
    torch.set_num_threads(int(os.environ.get("CPB_THREADS", "1")))
    if torch.cuda.is_available():
        torch.cuda.init()  # type: ignore[no-untyped-call]
        compile_kernels(json.loads(os.environ.get(KERNELS) or "{}"), requests)
        forget_peaks()  # a trainer that waits for a busy GPU keeps no memory of it
    for folder, without_kernels in requests:
        with gpu_locked() as is_free:
            if is_free:
                forget_peaks()
                try:
                    train_once(folder, without_kernels)
                except Exception as error:
                    if _gpu_is_lost():
                        raise CpbError(f"{GPU_LOST}: {' '.join(str(error).split())[:200]}") from error
                    raise
        requests.answer(is_free)


def _gpu_is_lost() -> bool:
    """Whether this process can use its GPU no more, as after an illegal address."""
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def compile_kernels(wanted: dict[str, Any], requests: Requests) -> None:
    """Compile and check the kernels that the run will launch until the first request: candles are still being read.

    wanted: the `FleetSpec` of each fleet, as a dict, and their profile. A failure is only logged, and the kernels for
    which there was no time are left to the shard that needs them.
    """
    for fleet in wanted.get("fleets", []):
        if requests.waiting:
            return
        name = fleet["architecture"]
        try:
            profile = profile_of(wanted["profile"], "cuda")
            options = cpbmodels.preset(fleet["preset"], name, profile, **fleet["overrides"])
            if not cpbmodels.architecture(name).closed_form:
                kernels_off(name, options, torch.device("cuda", 0))
        except Exception as error:
            if _gpu_is_lost():
                raise
            log.warning("kernels of %s were not compiled ahead: %s", name, error)


def forget_peaks() -> None:
    """Release memory and reset its peaks, so that a shard's figures do not depend on earlier shards."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError):  # glibc only: return freed memory to the system
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # the peak of resident memory (proc(5), clear_refs)
        Path("/proc/self/clear_refs").write_text("5")


def train_once(folder: Path, without_kernels: str = "") -> None:
    """Train the job in `folder` unless it is done; raises `CpbError` if none of its members can be trained."""
    with locked(folder / LOCK):
        if not (folder / RESULT).exists():
            train_job(folder, without_kernels)
