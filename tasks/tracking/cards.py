"""The ledger's card of a registered version: what remains of it when its weights and its run are pruned.

Stored forecasts name their model (`cpb-BTCUSDT-1h/3`); the card says what that model was and how it scored.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.handover import Record
from schemas.identity import SeriesId, tree_of
from tasks.forecasting.months import LEDGER
from tasks.storage.records import write_record
from tasks.tracking.archive import rounded
from tasks.tracking.connection import Store, find_run
from tasks.tracking.registry import version_metrics
from tasks.tracking.tags import REASON, digests_of

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


class VersionCard(Record):
    """One registered version. `files`: the sha256 of each file of its model folder."""

    series: SeriesId
    model_version: str
    architecture: str
    preset: str
    recipe: str
    run_id: str
    created_at: datetime
    data_digest: str
    as_of: str
    git_commit: str
    files: dict[str, str]
    metrics: dict[str, float]
    verdict: str
    reason: str


def card_path(home: Path, series: SeriesId, version: str) -> Path:
    """Return where a version's card lies: `HOME/ledger/cards/cpb-BTCUSDT-1h-3.json`."""
    return tree_of(home, LEDGER.name, series.market) / "cards" / f"{series.registered}-{version}.json"


def write_card(store: Store, home: Path, series: SeriesId, version: "ModelVersion") -> Path:
    """Write the card of a version, from its tags and those of its run, and return its path."""
    run = find_run(store, version.run_id)
    tags = {**(run.data.tags if run else {}), **version.tags}
    path = card_path(home, series, str(version.version))
    card = VersionCard(
        series=series,
        model_version=f"{version.name}/{version.version}",
        architecture=tags.get("architecture", ""),
        preset=tags.get("preset", ""),
        recipe=tags.get("recipe", tags.get("preset", "")),
        run_id=version.run_id or "",
        created_at=datetime.fromtimestamp(version.creation_timestamp / 1000, UTC),
        data_digest=tags.get("data_digest", ""),
        as_of=tags.get("as_of", ""),
        git_commit=tags.get("git_commit", ""),
        files=digests_of(tags),
        metrics=rounded(version_metrics(version) or (run.data.metrics if run else {})),
        verdict=tags.get("verdict", ""),
        reason=tags.get(REASON, ""),
    )
    write_record(path, card, compact=True)
    return path
