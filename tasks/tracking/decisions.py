"""Decisions of the gate as MLflow keeps them: a file on the flow's run, tags on the registered model and its version.

The registered model's tag is the newest decision on its series, whatever came of it; a version's tag is the one by
which it became champion.
"""

import logging
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from schemas.errors import DamagedError
from schemas.handover import Decision, Decisions
from schemas.identity import SeriesId
from tasks.storage.records import read_record, write_record
from tasks.tracking.artifacts import attaching
from tasks.tracking.connection import Store, search_lazily
from tasks.tracking.mlflow_private import local_path
from tasks.tracking.records import text
from tasks.tracking.tags import FLOW, KIND
from tasks.tracking.versions import registered_models, series_of, versions_of

if TYPE_CHECKING:
    from collections.abc import Mapping

DECISIONS = "decisions.json"
"""Name of the artifact on the flow's run."""
DECISION = "decision"
"""Tag of a registered model and of a version: a `Decision` as JSON."""

_FLOWS = f"tags.`{KIND}` = '{FLOW}'"
_MAX_FLOWS = 500
"""Runs of the flow that are searched for decisions: more than a year of nights."""

log = logging.getLogger("cpb")


def keep_decisions(store: Store, decisions: Iterable[Decision], run_id: str = "") -> None:
    """Write decisions as tags, and as a file on the flow's run where they were made by one."""
    found = tuple(decisions)
    for one in found:
        value = text(one.model_dump_json(exclude_none=True))
        store.client.set_registered_model_tag(one.series.registered, DECISION, value)
        if one.moved or one.outcome == "retired":
            store.client.set_model_version_tag(one.series.registered, one.version_number, DECISION, value)
    if run_id:
        with attaching(store, store.client.get_run(run_id), DECISIONS) as path:
            write_record(path, Decisions(decisions=found), of=run_id)


def newest_decisions(store: Store) -> dict[SeriesId, Decision]:
    """Return the newest decision on each series."""
    found = {}
    for model in registered_models(store):
        series = series_of(model.name)
        decision = decision_in(model.tags)
        if series and decision:
            found[series] = decision
    return found


def decisions_on(store: Store, series: SeriesId, limit: int) -> list[Decision]:
    """Return the newest `limit` decisions on a series, newest first.

    Those of flows come from their runs' files, which a server does not show at once: of one there are only those that
    tags hold, the newest and each by which a version became champion.
    """
    tagged = [model.tags for model in registered_models(store) if model.name == series.registered]
    tagged += [version.tags for version in versions_of(store, series)]
    found = {one.decided_at: one for tags in tagged if (one := decision_in(tags))}
    for run in islice(
        search_lazily(store, _FLOWS, ["attributes.start_time DESC"], page_size=100), _MAX_FLOWS
    ):
        folder = local_path(run.info.artifact_uri)
        path = folder / DECISIONS if folder else None
        if path and path.exists():
            found |= {
                one.decided_at: one
                for one in _read(path, run.info.run_id, path.stat().st_mtime_ns)
                if one.series == series
            }
        if len(found) >= limit:
            break
    return sorted(found.values(), key=lambda one: one.decided_at, reverse=True)[:limit]


@lru_cache(maxsize=_MAX_FLOWS)
def _read(path: Path, run_id: str, _changed: int) -> tuple[Decision, ...]:
    try:
        return read_record(path, Decisions, of=run_id).decisions
    except DamagedError as error:
        log.warning("%s", error)
        return ()


def decision_in(tags: "Mapping[str, str]") -> Decision | None:
    """Return the decision in the tags of a registered model or a version; None where there is none to be read."""
    try:
        return Decision.model_validate_json(tags[DECISION])
    except (KeyError, ValidationError):  # none, or written by a person
        return None
