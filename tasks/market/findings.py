"""Which published files were refused, or found changed at the source, since some time: read from the manifest."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from schemas.identity import SeriesId
from schemas.wording import count
from tasks.market.manifest import MANIFEST, Manifest


@dataclass(frozen=True)
class FileFinding:
    """A published file (of a month or a day) that needs a person's look."""

    series: SeriesId
    period: str
    kind: Literal["quarantined", "changed"]
    reason: str


def file_findings(root: Path, series: Sequence[SeriesId], since: datetime) -> list[FileFinding]:
    """Return the files of some series that a market home refused, or that had changed, at `since` or later.

    Raises:
        CpbError: the manifest cannot be read.
    """
    path, start = root / MANIFEST, int(since.timestamp())
    if not path.exists():
        return []
    found = []
    with Manifest(path) as manifest:
        for one in series:
            for record in manifest.files(one).values():
                if record.facts.get("at", 0) < start:
                    continue
                if record.status == "quarantined":
                    found.append(FileFinding(one, record.period, "quarantined", record.reason))
                elif rows := record.facts.get("changed"):
                    reason = f"published again with {count(rows, 'candle')} changed, which the store has taken over"
                    found.append(FileFinding(one, record.period, "changed", reason))
    return found
