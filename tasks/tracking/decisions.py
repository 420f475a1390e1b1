"""The gate's decisions, as tags of the registry.

The registered model's tag `decision` is the newest decision on its series, whatever the outcome; the names of earlier
decisions' tags end with their time. A version's tag is the decision that made it champion, written before the alias
moves: so an alias at a version without such a decision was moved by a person in MLflow.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import ValidationError

from schemas.decision import Decision
from schemas.identity import SeriesId
from schemas.retention import EARLIER_DECISIONS
from tasks.tracking.calls import existing, upsert
from tasks.tracking.experiment import Store
from tasks.tracking.registry import ALIAS, find_version, registered_models, series_of, versions_of
from tasks.tracking.tags import (
    mlflow_text,
)

if TYPE_CHECKING:
    from mlflow.entities.model_registry import RegisteredModel
DECISION = "decision"
"""Tag of a registered model and of a version: a `Decision` as JSON."""
_EARLIER = f"{DECISION}."


def decision_text(decision: Decision) -> str:
    """Return the tag value of a decision."""
    return mlflow_text(decision.model_dump_json(exclude_none=True))


def keep_decision(store: Store, decision: Decision) -> None:
    """Write a decision as the newest on its series; a kill in between loses no earlier decision."""
    name = decision.series.registered
    tags = store.client.get_registered_model(name).tags
    # The earlier one first under a name of its own, then the newest over it.
    if before := decision_in(tags):
        at = f"{_EARLIER}{before.decided_at.astimezone(UTC):%Y%m%dT%H%M%S.%f}"
        upsert(store.client.set_registered_model_tag, name, at, tags[DECISION])
    upsert(store.client.set_registered_model_tag, name, DECISION, decision_text(decision))
    # Their names end with their time, so the oldest sort first.
    for old in sorted(tag for tag in tags if tag.startswith(_EARLIER))[: -EARLIER_DECISIONS + 1]:
        store.client.delete_registered_model_tag(name, old)


def newest_decisions(store: Store) -> dict[SeriesId, Decision]:
    """Return the newest decision on each series; an alias moved in MLflow counts as a decision by hand."""
    newest = {}
    for model in registered_models(store):
        series = series_of(model.name)
        if series and (decision := _newest(store, series, model)):
            newest[series] = decision
    return newest


def decisions_on(store: Store, series: SeriesId, limit: int) -> list[Decision]:
    """Return the newest `limit` decisions on a series, newest first: those of the last nights and of every champion."""
    model = existing(store.client.get_registered_model, series.registered)
    if model is None:
        return []
    decisions = [_newest(store, series, model), decision_in(model.tags)]
    decisions += [decision_in(model.tags, tag) for tag in model.tags if tag.startswith(_EARLIER)]
    decisions += [decision_in(version.tags) for version in versions_of(store, series)]
    # A champion's decision is on its version and among the earlier ones: once is enough.
    by_time = {(decision.decided_at, decision.rule): decision for decision in decisions if decision}
    return sorted(by_time.values(), key=lambda decision: decision.decided_at, reverse=True)[:limit]


def decision_in(tags: Mapping[str, str], name: str = DECISION) -> Decision | None:
    """Return the decision in the tags of a registered model or a version; None if missing or invalid."""
    try:
        return Decision.model_validate_json(tags[name])
    except (KeyError, ValidationError):  # missing, or written by a person
        return None


def _newest(store: Store, series: SeriesId, model: "RegisteredModel") -> Decision | None:
    recorded, number = decision_in(model.tags), model.aliases.get(ALIAS)
    serves = recorded and recorded.outcome != "retired" and recorded.version_number == str(number)
    # Looked up only where the alias is not where the newest decision left it.
    version = None if number is None or serves else find_version(store, series, str(number))
    if version is None:
        return recorded
    promoted = decision_in(version.tags)
    if (
        promoted
        and promoted.outcome != "retired"
        and (recorded is None or promoted.decided_at > recorded.decided_at)
    ):
        return promoted  # a process was killed between the alias and the registered model's tag
    since = f" after {recorded.decided_at:%Y-%m-%d %H:%M} UTC" if recorded else ""
    made = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC)
    return Decision(
        series=series,
        outcome="forced",
        rule="by-hand",
        version_number=str(number),
        reason=f"it was made champion in MLflow{since}, where the alias was moved by hand",
        decided_at=max(made, recorded.decided_at)
        if recorded
        else made,  # earliest possible time: MLflow stores no time of an alias change
    )
