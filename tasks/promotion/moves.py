"""Changes of the registry: a run's candidate, or a registered version, becomes champion; a champion retires.

They are serialised by a single lock: a run's decisions and a manual command.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from schemas.decision import BacktestEvidence, Decision, ModelRef, decided_sentence
from schemas.errors import MINUTE, CpbError
from schemas.identity import SeriesId, market_home
from tasks.judging.gate import GateDecision, GateModel
from tasks.promotion.losses import TrainedCandidate, registered_model
from tasks.storage.locks import locked
from tasks.tracking.calls import upsert
from tasks.tracking.champions import Champion, recorded_fleet, succeed
from tasks.tracking.decisions import DECISION, decision_text, keep_decision
from tasks.tracking.experiment import Store
from tasks.tracking.registry import ALIAS, find_version, register
from tasks.tracking.tags import FLEET_SPEC, REASON, RECIPE, SELECTED, mlflow_text

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

_TESTED = "On its test span"
"""Begins the description of a version; one that begins otherwise is a person's."""
_MAX_DESCRIPTION = 5000
"""Characters; MLflow's databases hold no more."""


def decided(
    series: SeriesId,
    ruling: GateDecision,
    before: GateModel | None,
    candidate: ModelRef | None = None,
    backtest: BacktestEvidence | None = None,
) -> Decision:
    """Return the record of a ruling on a series; `before`: its champion, which serves until the alias is moved."""
    return Decision(
        series=series,
        outcome=ruling.outcome,
        rule=ruling.rule,
        reason=ruling.reason,
        compared=ruling.compared,
        version_number=before.version if before else "",
        incumbent=before.ref if before else None,
        candidate=candidate,
        backtest=backtest,
        decided_at=datetime.now(UTC),
    )


def promote_candidate(
    store: Store,
    candidate: TrainedCandidate,
    decision: Decision,
    before: Champion | None,
) -> Decision:
    """Make tonight's model the champion as decided, and return the decision with its version number.

    The span of a backtest that chose its recipe is marked on it, and on its refreshes as long as their own test span
    overlaps it.
    """
    # The span on which a recipe was chosen makes its figures look better than they are: it is marked until
    # the test span has moved past it.
    evidence = decision.backtest
    chosen = f"{evidence.first:%Y-%m-%d}/{evidence.last:%Y-%m-%d}" if evidence else ""
    if before and registered_model(before).recipe == candidate.model.recipe:
        chosen = before.tags.get(SELECTED, "")
    # ISO dates compare as texts.
    tested = candidate.model.tested_from
    overlaps = chosen and (tested is None or f"{tested:%Y-%m-%d}" <= chosen.rpartition("/")[2])
    selected = {SELECTED: chosen} if overlaps else {}
    version = _registered(store, candidate, {REASON: decision.reason, **selected})
    return _promote(store, version, decision, candidate.model)


def promote_version(store: Store, winner: Champion, decision: Decision) -> Decision:
    """Make a registered version the champion as decided, and return the decision with its version number.

    Raises:
        CpbError: the version was deleted after it was looked up.
    """
    version = find_version(store, winner.series, winner.version)
    if version is None:
        raise CpbError(
            f"{winner.model_version} was deleted meanwhile; choose a different version", code="no-version"
        )
    _tag(store, winner, REASON, decision.reason)
    return _promote(store, version, decision, registered_model(winner))


def _promote(store: Store, version: "ModelVersion", decision: Decision, model: GateModel) -> Decision:
    """Record the decision on the version, move the aliases, then record it as the newest decision on the series."""
    number = {"version_number": str(version.version)}
    candidate = decision.candidate and decision.candidate.model_copy(update=number)
    decision = decision.model_copy(update=number | {"candidate": candidate})
    # In this order: an alias without a decision on its version would be taken for one that a person moved.
    _tag(store, version, DECISION, decision_text(decision))
    # What a person has written about a version stays.
    if (version.description or _TESTED).startswith(_TESTED):
        text = _description(version, decision, model)
        store.client.update_model_version(version.name, str(version.version), text)
    succeed(store, version)
    keep_decision(store, decision)
    return decision


def _description(version: "ModelVersion", decision: Decision, model: GateModel) -> str:
    """Return what MLflow's page of a version says of it: its verdict, the span of its test, and the decision."""
    ends = [f"{end:%Y-%m-%d}" for end in (model.tested_from, model.tested_until) if end]
    tested = f"{_TESTED}{f' from {ends[0]} to {ends[1]}, UTC' if len(ends) == 2 else ''}"
    verdict = version.tags.get("verdict") or "it was not judged"
    decided = f"{decided_sentence([decision])} ({decision.decided_at:{MINUTE}} UTC): {decision.reason}"
    return shorten(mlflow_text(f"{tested}: {verdict}. {decided}"), _MAX_DESCRIPTION, placeholder=" …")


def _tag(store: Store, version: "ModelVersion | Champion", name: str, value: str) -> None:
    upsert(store.client.set_model_version_tag, version.name, str(version.version), name, value)


def record_fleet(store: Store, champion: Champion, candidate: TrainedCandidate) -> None:
    """Record on a champion's version what makes its recipe, unless it says that; `candidate` is of the same recipe."""
    # Never over what the version says already: that is what trained these very weights.
    if recorded_fleet(champion.tags) is None:
        _tag(store, champion, FLEET_SPEC, candidate.judgement.fleet.model_dump_json())


def retire(store: Store, champion: Champion, decision: Decision) -> None:
    """Remove the alias from a champion as decided; its version stays registered."""
    # Before the alias goes: a kill in between leaves a champion with the reason that it is about to lose
    # it, and the next night does it again.
    _tag(store, champion, DECISION, decision_text(decision))
    store.client.delete_registered_model_alias(champion.name, ALIAS)
    keep_decision(store, decision)


def _registered(store: Store, candidate: TrainedCandidate, tags: Mapping[str, str]) -> "ModelVersion":
    judged, model = candidate.judgement, candidate.judgement.model
    recorded = {
        "architecture": model.architecture,
        "recipe": model.recipe,
        RECIPE: str(candidate.model.recipe),
        FLEET_SPEC: judged.fleet.model_dump(mode="json"),
        "verdict": judged.verdict,
        **tags,
    }
    series = candidate.model.series
    return register(store, series, judged.run_id, metrics=judged.metrics, tags=recorded)


@contextmanager
def promotion_lock(home: Path, market: str) -> Iterator[None]:
    """Hold the promotion lock of all markets that share a home's root; waits for other processes."""
    with locked(market_home(home, market) / "promotion.lock"):
        yield
