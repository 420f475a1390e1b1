"""Brings a store of an older release to the present layout, in which a model's name says its market.

Before, a run on simulated or futures candles made its model the champion under spot's name.
"""

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from schemas.identity import SPOT, SeriesId
from tasks.tracking.connection import LAYOUT, LAYOUT_TAG, Store, alone, experiment_of, find_run
from tasks.tracking.tags import PARENT, market_of, series_tags
from tasks.tracking.versions import (
    ALIAS,
    add_version,
    champion_version,
    make_champion,
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
