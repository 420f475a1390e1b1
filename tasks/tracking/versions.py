"""Registered models and their versions, as stored in MLflow."""

from typing import TYPE_CHECKING

from schemas.errors import UsageError
from schemas.identity import SeriesId
from tasks.tracking.connection import Store, existing, pages
from tasks.tracking.tags import series_tags

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

ALIAS = "champion"
PREVIOUS = "previous"
"""Alias of the previous champion."""


def registered_models(store: Store) -> "list[RegisteredModel]":
    """Return every registered model whose name starts with `cpb-`, with its aliases and tags."""
    return list(pages(store.client.search_registered_models, "name LIKE 'cpb-%'", max_results=1000))


def versions_with_alias(store: Store, alias: str) -> "dict[SeriesId, ModelVersion]":
    """Return the version that an alias points at for every series that has it, by timeframe, symbol and market.

    The registry is read in pages of a thousand models, each with its newest version; only an alias that points at an
    older version needs a separate call.
    """
    versions = {}
    for model in registered_models(store):
        series, number = series_of(model.name), model.aliases.get(alias)
        if series is None or number is None:
            continue
        newest = (v for v in model.latest_versions or () if str(v.version) == str(number))
        versions[series] = next(newest, None) or store.client.get_model_version_by_alias(model.name, alias)
    return dict(
        sorted(versions.items(), key=lambda item: (item[0].timeframe, item[0].symbol, item[0].market))
    )


def succeed(store: Store, version: "ModelVersion") -> None:
    """Make a version the champion; the old champion becomes `previous`.

    The alias `champion` moves in one step, after `previous`: a kill in between leaves the old champion in place.
    """
    name, number = version.name, str(version.version)
    aliases = {k: str(v) for k, v in store.client.get_registered_model(name).aliases.items()}
    before = aliases.get(ALIAS)
    if before != number:
        if before:
            store.client.set_registered_model_alias(name, PREVIOUS, before)
        store.client.set_registered_model_alias(name, ALIAS, number)


def aliases_of(store: Store, series: SeriesId) -> dict[str, str] | None:
    """Return alias -> version number of a series' registered model; None without such a model."""
    model = existing(store.client.get_registered_model, series.registered)
    return {alias: str(number) for alias, number in model.aliases.items()} if model else None


def find_version(store: Store, series: SeriesId, number: str) -> "ModelVersion | None":
    """Return a version of a series' registered model by its number, or None."""
    return existing(store.client.get_model_version, series.registered, number)


def versions_of(store: Store, series: SeriesId) -> "list[ModelVersion]":
    """Return all versions of a series' registered model, newest first; empty without such a model."""
    versions = store.client.search_model_versions(f"name = '{series.registered}'")
    return sorted(versions, key=lambda v: int(v.version), reverse=True)


def make_model(store: Store, series: SeriesId) -> None:
    """Create a series' registered model if it is missing."""
    from mlflow.exceptions import MlflowException

    try:
        store.client.create_registered_model(series.registered, series_tags(series))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def all_versions(store: Store) -> list["ModelVersion"]:
    """Return every version of every registered model, including models not made by cpb."""
    return list(pages(store.client.search_model_versions, max_results=1000))


def full_name(version: "ModelVersion") -> str:
    """Return a version as stored with forecasts: `cpb-BTCUSDT-1h/3`."""
    return f"{version.name}/{version.version}"


def series_of(name: str) -> SeriesId | None:
    """Return the series of a registered model; None for a name `cpb-…` not made by cpb."""
    try:
        return SeriesId.parse(name)
    except UsageError:
        return None
