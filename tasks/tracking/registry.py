"""The registry: one registered model per series with the aliases `champion` and `previous`.

The registered model's name contains the market (`cpb-BTCUSDT-1h`, `cpb-um-BTCUSDT-1h`, `cpb-sim-BTCUSDT-1h`), so
models of different markets never replace each other. `champions` returns what the aliases point at, `decisions` why.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from schemas.errors import UsageError
from schemas.identity import SeriesId
from tasks.tracking.calls import existing, pages, upsert
from tasks.tracking.experiment import Store
from tasks.tracking.model import make_mlflow_model
from tasks.tracking.tags import (
    FILES,
    digests_of,
    series_tags,
    tag_texts,
)

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

ALIAS = "champion"
PREVIOUS = "previous"
"""Alias of the previous champion."""
METRICS_TAG = "metrics"
"""Tag with a version's scores as JSON: separate tags would take 5 kB of the database per version."""


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
        # Nearly always the newest version has the alias, and it came with the model.
        newest = (v for v in model.latest_versions or () if str(v.version) == str(number))
        versions[series] = next(newest, None) or store.client.get_model_version_by_alias(model.name, alias)
    return dict(
        sorted(versions.items(), key=lambda item: (item[0].timeframe, item[0].symbol, item[0].market))
    )


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


def register(
    store: Store,
    series: SeriesId,
    run_id: str,
    *,
    metrics: Mapping[str, Any] | None = None,
    tags: Mapping[str, Any] | None = None,
) -> "ModelVersion":
    """Register a member run as a version of a series' model, without an alias, and return the version.

    The version is an MLflow model (`make_mlflow_model`). A run that already has a version keeps it, with updated tags.
    `metrics` are this series' own, stored with the version: a universal member serves many series.
    """
    run: Run = store.client.get_run(run_id)
    digests = digests_of(run.data.tags)
    scores = {k: float(v) for k, v in (metrics or {}).items() if v is not None}
    # What `training_command` names must outlive the run.
    kept = {name: run.data.tags.get(name) for name in ("architecture", "preset")}
    version_tags = tag_texts(
        {**kept, **(tags or {}), **series_tags(series), FILES: digests or None, METRICS_TAG: scores or None}
    )
    make_model(store, series)
    # One run, one version: a run that is registered again after a kill must not count as another model.
    versions = store.client.search_model_versions(f"name = '{series.registered}' and run_id = '{run_id}'")
    version = max(versions, key=lambda v: int(v.version), default=None)
    # Only what differs: each tag is a write of its own.
    if version:
        for key, value in version_tags.items():
            if version.tags.get(key) != value:
                upsert(store.client.set_model_version_tag, version.name, str(version.version), key, value)
    else:
        source = run.info.artifact_uri.rstrip("/")
        version = store.client.create_model_version(
            series.registered, source, run_id, tags=version_tags, await_creation_for=0
        )
    # Last: the version exists even where its folder cannot be written to, as on a server.
    make_mlflow_model(store, run)
    return version
