"""What the steps hand over for logging."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.identity import ModelId

REPORT = "report.html"
"""Name of a flow run's report among its artifacts."""


@dataclass(frozen=True)
class OpenRun:
    """A parent or fleet run ready to be written to; `finished` says that it was already complete."""

    run_id: str
    finished: bool


@dataclass(frozen=True)
class Dataset:
    """Candles that a run learned from or was judged on, with their digest; `path`: the parquet file, or the folder.

    `context`: `training` or `test`, as MLflow's interface shows it.
    """

    name: str
    digest: str
    path: str
    rows: int
    columns: tuple[str, ...] = ()
    context: str = "training"


@dataclass(frozen=True)
class MemberRecord:
    """One trained and judged member, or one that failed (then `reason` says why).

    `history` is one dict per epoch (`train_loss val_loss lr`); `metrics` are logged once; `config` is the
    whole resolved configuration; `folder` holds the artifacts; `tags` adds to the contract's ones.
    """

    key: str
    model: ModelId
    device: str
    preset: str
    data_digest: str
    as_of: str
    config: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def name(self) -> str:
        """The run's name, `ARCH/SYMBOL/IV`."""
        return str(self.model)
