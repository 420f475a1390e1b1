"""The ledger's card of a registered version: what remains of it when its weights and its run are pruned.

Stored forecasts name their model (`cpb-BTCUSDT-1h/3`); the card says what that model was and how it scored.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import CpbError
from schemas.handover import Record
from schemas.identity import SeriesId, tree_of
from tasks.forecasting.months import LEDGER
from tasks.storage.records import set_aside, write_record
from tasks.storage.verify import REPAIRED, Asked, Stored, record_file
from tasks.tracking.archive import rounded
from tasks.tracking.connection import Store, find_run
from tasks.tracking.registry import version_metrics
from tasks.tracking.store import open_store
from tasks.tracking.tags import REASON, digests_of
from tasks.tracking.versions import find_version, series_of

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


_LOST = "set aside; what this version was is lost unless a backup has its card"


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
    return _folder(home, series.market) / f"{series.registered}-{version}.json"


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
    write_record(path, card, of=path.stem, compact=True)
    return path


def cards(asked: Asked) -> Iterator[Stored]:
    """Yield each card of a market's versions.

    A damaged one is set aside, and written again where MLflow still has its version, which pruning deletes after the
    card is written.

    Raises:
        CpbError: a card is to be written again, and the MLflow store cannot be read.
    """
    for path in sorted(_folder(asked.home, asked.market).glob("*.json")):
        if (named := _named(path)) and not path.is_symlink():
            stored = record_file(path, VersionCard, path.stem, _LOST)
            yield replace(stored, mend=partial(_write_again, asked.home, path, *named))


def _write_again(home: Path, path: Path, series: SeriesId, number: str, reason: str) -> str:
    set_aside(path, reason)
    try:
        store = open_store(create=False)
    except CpbError as error:
        if error.code != "no-store":
            raise
        return _LOST
    if (version := find_version(store, series, number)) is None:
        return _LOST
    write_card(store, home, series, version)
    return REPAIRED


def _folder(home: Path, market: str) -> Path:
    return tree_of(home, LEDGER.name, market) / "cards"


def _named(path: Path) -> tuple[SeriesId, str] | None:
    """Return the series and the version that a card's name speaks of; None for a file that is no card."""
    name, _, number = path.stem.rpartition("-")
    series = series_of(name) if name.startswith("cpb-") and number.isdigit() else None
    return (series, number) if series else None
