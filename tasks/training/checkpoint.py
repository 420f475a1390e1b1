"""The checkpoints from which a shard's training resumes: its own, another machine's, or those of an earlier epoch."""

import re
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import UsageError
from schemas.handover import ShardResult
from tasks.storage.files import write_bytes
from tasks.storage.records import find_record
from tasks.training.shard import CHECKPOINTS, RESULT, shard_damage

LATEST = ("latest", "models/checkpoint-latest.pt")
"""The value of `--resume` that continues from the same command's own checkpoints."""

_CHECKPOINT = re.compile(r"epoch-[0-9]{6}-[0-9a-f]{8}\.safetensors")

TRAINED = "trained before by the same command"
"""What `progress_so_far` says of a shard that has its result."""


def progress_so_far(folder: Path) -> str:
    """Return the progress of earlier runs in words: trained, started, or "" for none and for a damaged result."""
    result = find_record(folder / RESULT, ShardResult)
    if result and not shard_damage(folder, result):
        return TRAINED
    # By the same rule as the trainer's, so that what is promised here is what is resumed.
    newest = _newest((folder / CHECKPOINTS).rglob("epoch-*.safetensors"))
    epochs = [int(path.name.split("-")[1]) for path, _ in newest.values()]
    return f"from its last checkpoint on, of epoch {max(epochs)}" if epochs else ""


def _newest(files: Iterable[Path]) -> dict[str, tuple[Path, bytes]]:
    """Return the newest undamaged checkpoint of each part of a training, with its content: what a trainer resumes from.

    A checkpoint's name holds the CRC-32 of its content. One copied elsewhere counts as the first part's.
    """
    newest: dict[str, tuple[Path, bytes]] = {}
    # Names begin with the epoch, in six digits: the newest first. A damaged one is passed over for the one before.
    for file in sorted(files, reverse=True):
        part = file.parent.name if file.parent.name.startswith("fleet-") else "fleet-0000"
        if _CHECKPOINT.fullmatch(file.name) and part not in newest:
            with suppress(FileNotFoundError):  # a trainer at work replaces its oldest
                content = file.read_bytes()
                if f"-{zlib.crc32(content):08x}." in file.name:
                    newest[part] = file, content
    return newest


@dataclass(frozen=True)
class Checkpoint:
    """The newest state of each part of a training, in memory: its folder may be the folder to train in again.

    `files`: by name below a shard's `checkpoints`. The trainer checks whether they match the training: options, seeds
    and windows must agree.
    """

    files: Mapping[str, bytes]

    @classmethod
    def at(cls, path: Path) -> "Checkpoint":
        """Return the checkpoint in a file, or the newest checkpoint in or below a folder.

        Raises:
            UsageError: there is no checkpoint, it cannot be read, or all are damaged.
        """
        files = [path] if path.is_file() else list(path.rglob("epoch-*.safetensors"))
        try:
            newest = _newest(files)
        except OSError as error:
            message = f"resume: {error.filename} cannot be read ({error.strerror}); choose another"
            raise UsageError(message, code="resume") from error
        if not newest and any(_CHECKPOINT.fullmatch(file.name) for file in files):
            raise UsageError(
                f"resume {str(path)!r} holds damaged checkpoints alone: their bytes are not those that were written; "
                "copy it again, or choose another",
                code="resume",
            )
        if not newest:
            raise UsageError(
                f"resume {str(path)!r} is not a checkpoint and holds none: give latest, a file "
                "fleets/KEY/checkpoints/…/epoch-….safetensors, or its shard's folder",
                code="resume",
            )
        return cls({f"{part}/{file.name}": content for part, (file, content) in newest.items()})

    def put_into(self, shard: Path) -> None:
        """Write it to the folder of checkpoints of the shard in a folder."""
        for name, content in self.files.items():
            path = shard / CHECKPOINTS / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content)

    def take_out_of(self, shard: Path) -> None:
        """Remove the files of `put_into` after a training failed to resume from them: no later run must use them."""
        for name in self.files:
            (shard / CHECKPOINTS / name).unlink(missing_ok=True)
