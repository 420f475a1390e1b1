"""What one fleet is to learn, written down so completely that its digest names the result."""

import hashlib
import json
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from schemas.config import UNIVERSAL, TrainConfig
from schemas.records import SeriesRecord
from tasks.storage.files import write_json
from tasks.signals.splits import SplitBounds

_CODE = ("cpbmodels", "tasks/signals", "tasks/training")
"""Folders whose source decides a trained model; a change in them makes older fleets stale."""


class JobMember(BaseModel):
    """One series of a fleet."""

    model_config = ConfigDict(frozen=True)

    symbol: str
    timeframe: str
    features: Path
    digest: str
    rows: int
    seed: int

    @property
    def name(self) -> str:
        """Folder name of the member, as in `BTCUSDT-1h`."""
        return f"{self.symbol}-{self.timeframe}"


class Job(BaseModel):
    """One fleet: an architecture, a preset, the member series and the time split of each timeframe.

    `seeds`: how often each member is trained; the copies are averaged into one model.
    """

    model_config = ConfigDict(frozen=True)

    architecture: str
    preset: str
    seeds: int
    overrides: dict[str, Any]
    device: str
    profile: str
    dtype: str
    members: tuple[JobMember, ...]
    bounds: dict[str, SplitBounds]
    warm_start: dict[str, Path] | None = None
    code: str

    @property
    def universal(self) -> bool:
        """Whether one model learns all series of a timeframe."""
        return self.architecture.endswith(UNIVERSAL)

    @property
    def base_architecture(self) -> str:
        """The architecture's name in `cpbmodels`."""
        return self.architecture.removesuffix(UNIVERSAL)

    @property
    def key(self) -> str:
        """Digest of everything that decides the result; where the files lie does not."""
        fields = self.model_dump(mode="json", exclude={"members": {"__all__": {"features"}}})
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]

    def save(self, folder: Path) -> None:
        """Write `job.json`."""
        write_json(folder / "job.json", self.model_dump(mode="json"))

    @classmethod
    def load(cls, folder: Path) -> "Job":
        """Read `job.json`."""
        return cls.model_validate_json((folder / "job.json").read_text())


@cache
def code_digest() -> str:
    """Return a digest of the source that decides what a model learns."""
    root = Path(__file__).resolve().parents[2]
    files = sorted(file for folder in _CODE for file in (root / folder).rglob("*.py"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(root).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def member_seed(seed: int, architecture: str, symbol: str, timeframe: str) -> int:
    """Return a member's own seed: it must not depend on which other members are in the fleet."""
    return zlib.crc32(f"{seed}/{architecture}/{symbol}/{timeframe}".encode())


def plan_job(
    config: TrainConfig,
    architecture: str,
    records: list[SeriesRecord],
    bounds: dict[str, SplitBounds],
    warm_start: dict[str, Path] | None = None,
) -> Job:
    """Return the job that trains `architecture` on `records`."""
    members = tuple(
        JobMember(
            symbol=r.symbol,
            timeframe=r.timeframe,
            features=r.path,
            digest=r.digest,
            rows=r.rows,
            seed=member_seed(config.seed, architecture, r.symbol, r.timeframe),
        )
        for r in records
    )
    return Job(
        architecture=architecture,
        preset=config.preset,
        seeds=config.copies(architecture),
        overrides=config.overrides,
        device=config.device,
        profile=config.profile,
        dtype=config.dtype,
        members=members,
        bounds=bounds,
        warm_start=warm_start,
        code=code_digest(),
    )
