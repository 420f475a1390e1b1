"""The checks of what a home has once: its version, its MLflow store, its results, the readings of tables."""

import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from schemas.errors import DamagedError, UsageError
from schemas.identity import MARKETS, OWN, market_home
from schemas.reading import REMEMBERED, remembered
from tasks.forecasting.published import RESTORE
from tasks.market.manifest import MANIFEST
from tasks.storage.home_version import VERSION_FILE, restore_version
from tasks.storage.records import parse_record
from tasks.storage.urls import public_url
from tasks.tracking.database import database_damage
from tasks.tracking.home_store import RECORD, TAKE, HomeStore, sqlite_path, tracking_uri
from tasks.tracking.registry_copy import COPY, Registry
from tasks.tracking.results import results_fault, results_path
from tasks.verify.checks import Check, is_database


def unseen() -> list[str]:
    """Return a sentence about what of the store is not checked; empty without a store."""
    try:
        uri = tracking_uri()
    except DamagedError:  # reported by its own check
        return []
    database = sqlite_path(uri)
    if database and not database.exists():
        return []
    place = str(database) if database else public_url(uri)
    return [
        f"not checked: files of runs whose model is neither champion nor previous, and, as MLflow stores no digests of "
        f"them, params, metrics and tags in {place}; "
        + ("of the file SQLite's own check was run" if database else "nor the database behind it")
    ]


def home_version(home: Path) -> Iterator[Check]:
    """Yield the file with the home's version, which is written before any manifest."""
    # Where no manifest of ours lies the folder may be a person's, and a version there would claim it.
    roots = {market_home(home, market) for market in MARKETS}
    if any(is_database(root / MANIFEST) for root in roots):
        path = home / VERSION_FILE
        yield path, lambda: "" if path.exists() else "it is missing", restore_version(path)


def store_record(home: Path) -> Iterator[Check]:
    """Yield the record that says which MLflow store is the home's."""
    if (path := home / RECORD).exists():
        yield path, partial(parse_record, path, HomeStore), TAKE


def registry_copy(home: Path) -> Iterator[Check]:
    """Yield the copy of what the registry says of the champions."""
    if (path := home / COPY).exists():
        yield path, partial(parse_record, path, Registry), "cpb champions"


def mlflow_database(_home: Path) -> Iterator[Check]:
    """Yield the store's SQLite file; one that cannot be opened is reported by the check of champions."""
    database = sqlite_path(tracking_uri())
    if database and database.exists():
        yield database, partial(database_damage, database), RESTORE


def results(home: Path, market: str) -> Iterator[Check]:
    """Yield a market's `results.json`, which is not replaced if it is not as cpb wrote it."""
    path = results_path(home, market)
    if path.exists():
        # Moved, not removed: it may be a person's file of that name.
        aside = path.with_name(f"{path.name}.aside")
        yield path, partial(results_fault, path), f"mv {shlex.join(map(str, (path, aside)))}"


def table_readings(home: Path, market: str) -> Iterator[Check]:
    """Yield how tables are read, as remembered from the commands that said so."""
    path = market_home(home, OWN) / REMEMBERED
    if market != OWN or not path.exists():
        return

    def fault() -> str:
        try:
            remembered(home)
        except UsageError as error:
            return str(error.__cause__)[:120]
        return ""

    yield path, fault, f"rm {shlex.quote(str(path))}"
