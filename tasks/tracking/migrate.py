"""Brings a store of an older release to the present layout.

In it a model's name says its market: before, a run on simulated or futures candles made its model the champion under
spot's name. And every registered version is an MLflow model: before, it was a folder that only cpb could load.
"""

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from schemas.identity import SPOT, SeriesId
from tasks.tracking.connection import (
    LAYOUT,
    LAYOUT_TAG,
    MODELS,
    MODELS_TAG,
    Store,
    alone,
    experiment_of,
    find_run,
)
from tasks.tracking.flavour import add_flavour
from tasks.tracking.mlflow_private import local_path
from tasks.tracking.tags import PARENT, market_of, series_tags
from tasks.tracking.versions import (
    ALIAS,
    add_version,
    all_versions,
    champion_version,
    make_champion,
    series_of,
    series_with_champion,
    versions_of,
)

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

log = logging.getLogger("cpb")


def migrate(store: Store) -> list[str]:
    """Move champions under spot's names that learnt from another market, and return the names they moved to.

    Done once: a tag of the experiment says so. Each step can be repeated, so a kill in the middle, or a second
    process on another machine, does no harm. No version is deleted.
    """
    if _is_migrated(store):
        return []
    with alone(store):
        if _is_migrated(store):  # by the process that held the store until now
            return []
        served = series_with_champion(store)
        moved = [
            name for series in served if series.market == SPOT and (name := _move(store, series, served))
        ]
        store.client.set_experiment_tag(store.experiment_id, LAYOUT_TAG, LAYOUT)
    if moved and not store.read_only:
        log.warning(
            "the MLflow store is of an older release: %d champions that learnt from another market than spot have "
            "moved to their market's name (%s)", len(moved), ", ".join(moved[:3]) + (", …" if len(moved) > 3 else ""),
        )  # fmt: skip
    return moved


def make_mlflow_models(store: Store) -> None:
    """Make MLflow models of the versions of older releases whose files lie on this machine, and say how many.

    Done once, when the store is first opened for writing: a tag of the experiment says so. Whatever is registered
    again becomes one as well.
    """
    if MODELS_TAG in experiment_of(store).tags:
        return
    with alone(store):
        if MODELS_TAG in experiment_of(store).tags:  # by the process that held the store until now
            return
        done, left = 0, []
        for version in _own_versions(store):
            if _make_mlflow_model(store, version):
                done += 1
            else:
                left.append(f"{version.name}/{version.version}")
        store.client.set_experiment_tag(store.experiment_id, MODELS_TAG, MODELS)
    if done or left:
        log.warning(
            "the MLflow store is of an older release: %d of its %d registered versions are MLflow models now%s",
            done, done + len(left),
            f"; not so {', '.join(left[:3])}{', …' if len(left) > 3 else ''}, whose files are damaged or not on this "
            "machine: `mlflow` loads the next champion that `cpb train-all` makes" if left else "",
        )  # fmt: skip


def _own_versions(store: Store) -> "list[ModelVersion]":
    return [v for v in all_versions(store) if (series := series_of(v.name)) and series.registered == v.name]


def _make_mlflow_model(store: Store, version: "ModelVersion") -> bool:
    run, series = find_run(store, version.run_id), series_of(version.name)
    folder = local_path(version.source or "")
    if run is None or series is None or folder is None:
        return False
    return bool(add_flavour(store, run, version.source or "", folder, series.timeframe))


def _is_migrated(store: Store) -> bool:
    return experiment_of(store).tags.get(LAYOUT_TAG) == LAYOUT


def _move(store: Store, series: SeriesId, served: Collection[SeriesId]) -> str | None:
    """Move the champion of a spot series to its own market; None where it is spot's.

    Args:
        served: series that have a champion; a newer release may have made one under the new name already.
    """
    version = champion_version(store, series)
    market = _market(store, version)
    if market == SPOT:
        return None
    target = SeriesId(market, series.symbol, series.timeframe)  # type: ignore[arg-type]
    copy = next((v for v in versions_of(store, target) if v.run_id == version.run_id), None)
    if copy is None:
        tags = version.tags | series_tags(target)
        copy = add_version(store, target, version.source or "", version.run_id or "", tags)
    if target not in served:
        make_champion(store, copy)
    _restore(store, series)
    return target.registered


def _restore(store: Store, series: SeriesId) -> None:
    """Give spot's alias back to the newest version that is spot's own; without one, spot has no champion."""
    own = next((v for v in versions_of(store, series) if _market(store, v) == SPOT), None)
    if own is not None:
        make_champion(store, own)
    else:
        store.client.delete_registered_model_alias(series.registered, ALIAS)


def _market(store: Store, version: "ModelVersion") -> str:
    """Return the market that a version learnt from: by its run, else by the flow above it (member, fleet, flow)."""
    run = find_run(store, version.run_id)
    while run is not None:
        market = market_of(run)
        if market != SPOT:
            return market
        run = find_run(store, run.data.tags.get(PARENT))
    return SPOT
