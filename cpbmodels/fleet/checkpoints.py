"""Checkpoints of a fleet: one safetensors file per epoch, whole or absent; the last two are kept.

Its name holds the CRC-32 of its bytes, so that training never resumes from a damaged file. A background thread writes,
so training waits for a copy in memory only. If the disk is slower than the epochs, or the copies (of gigabytes, from a
GPU) would take more than a fiftieth of the time, epochs in between are skipped. Random draws are functions of (seed,
step): there is no generator state to save.
"""

import json
import logging
import re
import time
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from cpbmodels.errors import ModelError
from cpbmodels.fleet.config import write_whole

log = logging.getLogger(__name__)

MAX_FILES = 2  # two, in case the newest is damaged
MAX_TIME_SHARE = 0.02  # of the training that copies may take
_NAME = re.compile(r"epoch-\d{6}-[0-9a-f]{8}\.safetensors")


class Checkpoints:
    """The checkpoints of one fleet in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.pending: Future[None] | None = None
        self.next_due = 0.0  # on time.monotonic's clock: an earlier copy would take more than MAX_TIME_SHARE

    def save(self, epoch: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Write the state after `epoch` in the background.

        Skipped while the last checkpoint is still being written, and while its copy is more than `MAX_TIME_SHARE` of
        the time since it began.
        """
        started = time.monotonic()
        if self.pending is not None:
            if not self.pending.done() or started < self.next_due:
                return
            self.pending.result()  # raises the writer's error, such as a full disk
        # Copied at once: the next step changes these tensors in place while the thread writes.
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        self.pending = self.pool.submit(self._write, epoch, copies, json.dumps(state))
        ended = time.monotonic()
        self.next_due = ended + (ended - started) / MAX_TIME_SHARE

    def _write(self, epoch: int, tensors: dict[str, Tensor], state: str) -> None:
        from safetensors.torch import save as to_bytes

        self.folder.mkdir(parents=True, exist_ok=True)
        content = to_bytes(tensors, {"state": state})
        write_whole(self.folder / f"epoch-{epoch:06d}-{zlib.crc32(content):08x}.safetensors", content)
        # After the new file is whole: at no moment is there less than what was there before.
        for old in self.files()[:-MAX_FILES]:
            old.unlink(missing_ok=True)

    def files(self) -> list[Path]:
        """Checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and state of the newest readable checkpoint, or None."""
        from safetensors import safe_open

        for path in reversed(self.files()):
            # damaged: try the previous checkpoint
            if f"{zlib.crc32(path.read_bytes()):08x}" not in path.name:
                continue
            with safe_open(str(path), "pt") as file:
                names = file.keys()
                return {name: file.get_tensor(name) for name in names}, json.loads(file.metadata()["state"])
        return None

    def clear(self) -> None:
        """Remove the checkpoints of earlier trainings: this training starts from scratch."""
        for path in self.files():
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Wait for the last write."""
        self.pool.shutdown(wait=True)
        if self.pending is not None:
            self.pending.result()


def is_same(saved: dict[str, Any], wanted: dict[str, Any], folder: Path) -> bool:
    """Whether training continues from a checkpoint here: False for other members of the same training (another cut).

    A fleet is cut by the number of cores, and again where memory runs out: such a part starts from scratch.

    Raises:
        ModelError: it belongs to a different training.
    """
    differing = sorted(key for key in wanted if saved.get(key) != wanted[key])
    if not differing:
        return True
    before, seeds = saved.get("seeds", []), wanted["seeds"]
    if "options" not in differing and before != seeds and not set(before).isdisjoint(seeds):
        log.warning(
            "%s belongs to a fleet that was split differently (%d members, here %d), as with other cores "
            "or too little memory: these members start from new weights.",
            folder,
            len(before),
            len(seeds),
        )
        return False
    raise ModelError(
        f"{folder} holds a checkpoint of a different training ({', '.join(differing)} differ): "
        "resume with the same data and options, or start without resume."
    )
