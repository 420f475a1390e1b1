"""Registered models and their versions, as MLflow holds them: what registry and migration both need."""

from typing import TYPE_CHECKING, Any

from schemas.errors import UsageError
from schemas.identity import SeriesId
from tasks.tracking.connection import Store
from tasks.tracking.tags import series_tags

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

ALIAS = "champion"
CHALLENGER = "challenger"
"""Alias of the version that forecasts beside the champion until the evidence decides."""
PREVIOUS = "previous"
"""Alias of the champion before the present one."""


def series_with_champion(store: Store) -> list[SeriesId]:
    """Return the series whose registered model has a champion, by timeframe, symbol and market."""
    return series_with_alias(store, ALIAS)


def series_with_alias(store: Store, alias: str) -> list[SeriesId]:
    """Return the series whose registered model has a version under an alias, by timeframe, symbol and market."""
    found = [
        s for model in registered_models(store) if alias in model.aliases and (s := series_of(model.name))
    ]
    return sorted(found, key=lambda s: (s.timeframe, s.symbol, s.market))


def registered_models(store: Store) -> "list[RegisteredModel]":
    """Return every registered model whose name begins like cpb's, with its aliases and tags."""
    found: list[RegisteredModel] = []
    token = None
    while True:
        page: Any = store.client.search_registered_models(
            "name LIKE 'cpb-%'", max_results=1000, page_token=token
        )
        found += page
        token = page.token
        if not token:
            return found


def versions_with_alias(store: Store, alias: str) -> "dict[SeriesId, ModelVersion]":
    """Return the version that an alias points at for every series that has it, by timeframe, symbol and market.

    The registry is read in pages of a thousand models, each with its newest version; only an alias that points at an
    older one costs a call of its own.
    """
    found = {}
    for model in registered_models(store):
        series, number = series_of(model.name), model.aliases.get(alias)
        if series is None or number is None:
            continue
        newest = (v for v in model.latest_versions or () if str(v.version) == str(number))
        found[series] = next(newest, None) or aliased_version(store, series, alias)
    return dict(sorted(found.items(), key=lambda one: (one[0].timeframe, one[0].symbol, one[0].market)))


def champion_version(store: Store, series: SeriesId) -> "ModelVersion":
    """Return the version that the alias `champion` of a series points at."""
    return aliased_version(store, series, ALIAS)


def aliased_version(store: Store, series: SeriesId, alias: str) -> "ModelVersion":
    """Return the version that an alias of a series points at."""
    return store.client.get_model_version_by_alias(series.registered, alias)


def make_champion(store: Store, version: "ModelVersion") -> None:
    """Point the alias `champion` at a version, and at no other: that of migration, which replaces nobody."""
    store.client.set_registered_model_alias(version.name, ALIAS, str(version.version))


def succeed(store: Store, version: "ModelVersion") -> None:
    """Make a version the champion; the one before becomes `previous`, and a challenger that has won is none any more.

    The alias `champion` moves in one step, after `previous`: a kill in between leaves the old champion in its place.
    """
    name, number = version.name, str(version.version)
    aliases = {k: str(v) for k, v in store.client.get_registered_model(name).aliases.items()}
    before = aliases.get(ALIAS)
    if before != number:
        if before:
            store.client.set_registered_model_alias(name, PREVIOUS, before)
        make_champion(store, version)
    if aliases.get(CHALLENGER) == number:
        store.client.delete_registered_model_alias(name, CHALLENGER)


def aliases_of(store: Store, series: SeriesId) -> dict[str, str] | None:
    """Return alias -> version number of a series' registered model; None where there is no such model."""
    from mlflow.exceptions import MlflowException

    try:
        aliases = store.client.get_registered_model(series.registered).aliases
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return {alias: str(number) for alias, number in aliases.items()}


def numbers_of(store: Store, series: SeriesId) -> list[str]:
    """Return the numbers of a series' versions, the newest first."""
    found = store.client.search_model_versions(f"name = '{series.registered}'")
    return [str(n) for n in sorted((int(v.version) for v in found), reverse=True)]


def find_version(store: Store, series: SeriesId, number: str) -> "ModelVersion | None":
    """Return a version of a series' registered model by its number; None where there is none."""
    from mlflow.exceptions import MlflowException

    try:
        return store.client.get_model_version(series.registered, number)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        return None


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
