"""The models used for forecasts, available also while the MLflow server is down.

While the server is up, the registry is the source. Its last state is cached in `HOME/champions/served.json`, beside the
fetched model folders; the cache is updated on each successful read and used only when the server is down. A SQLite
store is on the same machine as the home and is not cached.
"""

import json
import logging
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from schemas.errors import CpbError
from schemas.handover import Record
from schemas.identity import SeriesId
from schemas.scope import home as home_folder
from tasks.storage.model_folder import damage_of
from tasks.storage.records import find_record, write_record
from tasks.storage.urls import public_url
from tasks.tracking.artifacts import COPIES
from tasks.tracking.database import DOWN, is_server
from tasks.tracking.mlflow_store import open_store, tracking_uri
from tasks.tracking.registry import Champion, champions
from tasks.tracking.tags import FILES

log = logging.getLogger("cpb")


class KeptServing(Record):
    """The aliases of a server's registry as last read; `store`: its address.

    Of a model its run, the name of its local folder and the sha256 of each file are kept, no scores and other tags.
    """

    store: str
    champions: tuple[Champion, ...] = ()


def serving(series: Collection[SeriesId] | None = None, *, market: str | None = None) -> list[Champion]:
    """Return the champions; if the tracking server is down, return the last known models, with a warning.

    Args:
        series: filter; default all.
        market: filter; default all.

    Raises:
        CpbError: the store cannot be read, and nothing was cached.
    """
    uri, path = tracking_uri(), home_folder() / COPIES / "served.json"
    kept = find_record(path, KeptServing) if is_server(uri) else None
    if kept is None or kept.store != public_url(uri):
        kept = KeptServing(store=public_url(uri))

    def asked(model: Champion) -> bool:
        return (series is None or model.series in series) and market in (None, model.series.market)

    try:
        store = open_store(uri, create=False)
        found = champions(series, market=market, store=store)
    except CpbError as error:
        if error.code != DOWN or not kept.champions:
            raise
        log.warning("%s; forecasting continues with the last known champions", error)
        return [_read(path.parent, model) for model in kept.champions if asked(model)]
    if is_server(uri):
        others = (model for model in kept.champions if not asked(model))
        now = KeptServing(store=kept.store, champions=(*others, *map(_kept, found)))
        if now != kept:
            write_record(path, now)
    return found


def _kept(model: Champion) -> Champion:
    tags = {FILES: json.dumps(model.digests)}
    return replace(model, folder=Path(model.folder.name), metrics={}, tags=tags, damage="")


def _read(copies: Path, kept: Champion) -> Champion:
    folder = (copies / kept.folder).absolute()
    return replace(kept, folder=folder, damage=damage_of(folder, kept.digests))
