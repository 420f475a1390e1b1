"""The recipe of each version that has issued forecasts of a series, `versions.json`: rows name the version alone.

A registry forgets versions that are pruned; their record stays.
"""

from pathlib import Path

from schemas.identity import SeriesId
from schemas.ledger import KnownVersions
from tasks.forecasting.daily import LOCK
from tasks.forecasting.months import LEDGER
from tasks.storage.locks import locked
from tasks.storage.records import find_record, write_record

_FILE = "versions.json"


def recipes_of(home: Path, series: SeriesId) -> dict[str, str]:
    """Return the known recipes by version (`cpb-BTCUSDT-1h/3`)."""
    known = find_record(series.folder(home, LEDGER.name) / _FILE, KnownVersions)
    return dict(known.recipes) if known else {}


def note_version(home: Path, series: SeriesId, model_version: str, recipe: str) -> None:
    """Keep the recipe of a version that issues forecasts; that of another writer at the same time stays too."""
    if recipes_of(home, series).get(model_version) == recipe:
        return
    path = series.folder(home, LEDGER.name) / _FILE
    with locked(path.with_name(LOCK)):
        known = recipes_of(home, series)
        write_record(path, KnownVersions(recipes={**known, model_version: recipe}), compact=True)
