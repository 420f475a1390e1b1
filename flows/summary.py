"""What a run of the main job hands on and leaves behind."""

from dataclasses import asdict, dataclass, field
from typing import Any

from schemas.errors import COMPLETE, PARTIAL
from schemas.records import Failure, FleetRecord
from tasks.training.keep import FleetsInUse


@dataclass
class Summary:
    """What a run of the main job left behind."""

    run_id: str = ""
    series: int = 0
    members: int = 0
    champions: int = 0
    forecast_rows: int = 0
    published: str = ""
    failures: list[Failure] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 complete, 3 partial."""
        return PARTIAL if self.failures else COMPLETE

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return asdict(self) | {
            "failures": [f.model_dump() for f in self.failures],
            "exit": self.exit_code,
        }


@dataclass
class Training:
    """A run up to its scores."""

    summary: Summary
    judged: list[FleetRecord]
    fleets: FleetsInUse
    """To be released once nothing in the fleets' folders is needed any more."""
