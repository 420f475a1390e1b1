"""Registered models and their versions, as MLflow holds them: what registry and migration both need."""

from typing import TYPE_CHECKING, Any

from schemas.errors import UsageError
from schemas.identity import SeriesId
from tasks.tracking.connection import Store
from tasks.tracking.tags import series_tags

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

ALIAS = "champion"


def series_with_champion(store: Store) -> list[SeriesId]:
    """Return the series whose registered model has a champion, by timeframe, symbol and market."""
    found = []
    token = None
    while True:
        page = store.client.search_registered_models("name LIKE 'cpb-%'", max_results=1000, page_token=token)
        found += [series for model in page if ALIAS in model.aliases and (series := series_of(model.name))]
        token = page.token
        if not token:
            return sorted(found, key=lambda s: (s.timeframe, s.symbol, s.market))


def champion_version(store: Store, series: SeriesId) -> "ModelVersion":
    """Return the version that the alias `champion` of a series points at."""
    return store.client.get_model_version_by_alias(series.registered, ALIAS)


def make_champion(store: Store, version: "ModelVersion") -> None:
    """Point the alias `champion` at a version."""
    store.client.set_registered_model_alias(version.name, ALIAS, str(version.version))


def versions_of(store: Store, series: SeriesId) -> "list[ModelVersion]":
    """Return all versions of a series' registered model, newest first; the model is made where missing."""
    from mlflow.exceptions import MlflowException

    try:
        store.client.create_registered_model(series.registered, series_tags(series))
        return []
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    found = store.client.search_model_versions(f"name = '{series.registered}'")
    return sorted(found, key=lambda v: int(v.version), reverse=True)


def add_version(
    store: Store, series: SeriesId, source: str, run_id: str, tags: dict[str, str]
) -> "ModelVersion":
    """Register a run's model folder as a new version."""
    return store.client.create_model_version(
        series.registered, source, run_id, tags=tags, await_creation_for=0
    )


def all_versions(store: Store) -> list["ModelVersion"]:
    """Return every version of every registered model, also of those that are not cpb's."""
    found: list[ModelVersion] = []
    token = None
    while True:
        page: Any = store.client.search_model_versions(max_results=1000, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def series_of(name: str) -> SeriesId | None:
    """Return the series of a registered model; None for one that somebody else named `cpb-…`."""
    try:
        return SeriesId.parse(name)
    except UsageError:
        return None
