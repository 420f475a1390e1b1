"""Small records that steps hand to one another: names, paths and digests, never frames or tensors."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict


class Failure(BaseModel):
    """One member that could not go on, and why. `step` is the step that gave up on it."""

    model_config = ConfigDict(frozen=True)

    symbol: str
    timeframe: str
    step: str
    reason: str
    architecture: str | None = None


class SeriesRecord(BaseModel):
    """Features of one series on disk."""

    model_config = ConfigDict(frozen=True)

    symbol: str
    timeframe: str
    path: Path
    digest: str
    rows: int
    first_us: int
    last_us: int


class FleetRecord(BaseModel):
    """One trained fleet on disk: `folder` holds `job.json`, `done.json` and a folder per member.

    `run_id` and `run_ids` (member folder name -> run id) are known once it is judged and logged.
    """

    model_config = ConfigDict(frozen=True)

    architecture: str
    key: str
    folder: Path
    run_id: str | None = None
    run_ids: dict[str, str] = {}
    failures: tuple[Failure, ...] = ()
