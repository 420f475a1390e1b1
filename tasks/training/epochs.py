"""`epochs.jsonl` of a shard: a line per epoch (`Epoch`), beside the checkpoints, so that a resumed training keeps all.

The shard's result contains them.
"""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import cpbmodels
from cpbmodels.files import read_regular
from schemas.handover import Epoch
from tasks.running.cores import usable_cores


class EpochFile:
    """Writes the epochs of a shard in training: `add` is called with each record of `cpbmodels.train_fleet`.

    Models that train apart report epochs of their own; a line says where the shard as a whole stands.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._stage = path, 0
        if path.exists() and not read_regular(path).endswith(b"\n"):
            with path.open("a") as file:
                file.write("\n")  # after a line that a killed process has left unfinished
        self._epochs: dict[int, int] = {}  # by model, the epoch of the models that it trains with
        self._last: dict[int, tuple[float, float]] = {}
        self._active: set[int] = set()

    def add(self, record: "cpbmodels.EpochRecord") -> None:
        """Append an epoch as a line of JSON."""
        if record.stage != self._stage:
            self._stage, self._epochs, self._last, self._active = record.stage, {}, {}, set()
        for model, losses in record.last.items():
            self._epochs[model], self._last[model] = record.epoch, losses
        self._active -= {*record.last}
        self._active |= {member["index"] for member in record.members if not member["stopped"]}
        without_epochs = all(member["stopped"] == "closed_form" for member in record.members)
        # Fleets of a shard train apart and report apart; until each has reported, its models count with epoch 0.
        models = max(record.of_members, len(self._epochs))
        # Of the newest epoch of every model that has begun, not of those that just reported: a line says where the
        # shard stands.
        train_loss, val_loss = (_mean(losses[i] for losses in self._last.values()) for i in (0, 1))
        epoch = Epoch(
            metrics=plain(
                {
                    "epoch": record.epoch,
                    "members_training": len(record.members),
                    "lr": record.lr,
                    "epoch_seconds": record.seconds,
                    "epoch_windows_per_s": record.windows_per_s,
                    **record.memory,
                }
                | mean_losses(record)
            ),
            architecture=record.architecture,
            stage=record.stage,
            stages=record.stages,
            epoch=sum(self._epochs.values()) / models,
            epochs=0 if without_epochs else record.epochs,
            models=models,
            begun=len(self._epochs),
            train_loss=train_loss,
            val_loss=val_loss,
            ended=not self._active and len(self._epochs) == models,
            cores=usable_cores(),
        )
        with self._path.open("a") as file:
            file.write(f"{epoch.model_dump_json()}\n")


def read_epochs(path: Path) -> tuple[Epoch, ...]:
    """Return the epochs of a shard; a line that a killed process has left unfinished is passed over."""
    return tuple(epochs_in(read_regular(path))) if path.exists() else ()


def epochs_in(content: bytes) -> Iterator[Epoch]:
    """Yield the epochs of whole lines."""
    for line in content.splitlines():
        with suppress(ValueError):
            yield Epoch.model_validate_json(line)


def mean_losses(record: "cpbmodels.EpochRecord") -> dict[str, float]:
    """Return the means of the finite losses, by name, of the members that trained in an epoch."""
    means = {
        name: _mean(member.get(name, math.nan) for member in record.members)
        for name in ("train_loss", "val_loss")
    }
    return {name: mean for name, mean in means.items() if mean is not None}


def _mean(values: Iterable[float]) -> float | None:
    """Return the mean of the finite values, None without any."""
    finite = [value for value in values if math.isfinite(value)]
    return fmean(finite) if finite else None


def plain(value: Any) -> Any:
    """Convert numbers of numpy and torch to Python's."""
    return json.loads(json.dumps(value, default=float))
