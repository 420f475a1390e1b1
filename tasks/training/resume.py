"""Going on from a checkpoint that lies anywhere: another machine's, a backup's, or an earlier epoch's."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import UsageError
from tasks.storage.files import write_bytes

LATEST = "latest"
"""The value of `--resume` that means what the same command has left."""

_CHECKPOINT = re.compile(r"epoch-(?P<epoch>[0-9]{6})-[0-9a-f]{8}\.safetensors")


_FLEET = re.compile(r"fleet-[0-9]{4}")


@dataclass(frozen=True)
class Checkpoint:
    """The newest state of each part of a training, in memory: its folder may be the one that is trained in anew.

    `files`: by the name below a fleet's `checkpoints`. Whether they belong to the training that goes on from them, the
    trainer checks: options, seeds and windows must agree.
    """

    files: Mapping[str, bytes]

    @classmethod
    def at(cls, path: Path) -> "Checkpoint":
        """Return the checkpoint in a file, or the newest one of a fleet's folder or one below it.

        Raises:
            UsageError: there is none, or it cannot be read.
        """
        found = [path] if path.is_file() else sorted(path.rglob("epoch-*.safetensors"))
        newest = {_part(file): file for file in found if _CHECKPOINT.fullmatch(file.name)}
        if not newest:
            raise UsageError(
                f"resume {str(path)!r} is no checkpoint and holds none: give latest, a file "
                "fleets/KEY/checkpoints/…/epoch-….safetensors, or its fleet's folder",
                code="resume", field="resume",
            )  # fmt: skip
        try:
            return cls({f"{part}/{file.name}": file.read_bytes() for part, file in newest.items()})
        except OSError as error:
            raise UsageError(
                f"resume: {error.filename} cannot be read ({error.strerror}); choose another",
                code="resume", field="resume",
            ) from error  # fmt: skip

    def put_into(self, fleet: Path) -> None:
        """Write it where the fleet's trainer looks for its newest checkpoints."""
        for name, content in self.files.items():
            path = fleet / "checkpoints" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content)

    def take_out_of(self, fleet: Path) -> None:
        """Remove what `put_into` wrote, so that a training that could not go on from it leaves it to no other."""
        for name in self.files:
            (fleet / "checkpoints" / name).unlink(missing_ok=True)


def _part(file: Path) -> str:
    """Return the name of the folder that a checkpoint lies in; one copied elsewhere is that of the first part."""
    return file.parent.name if _FLEET.fullmatch(file.parent.name) else "fleet-0000"
