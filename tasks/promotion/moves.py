"""Changes of the gate in the registry: a candidate or challenger becomes champion, a challenger is appointed.

They are serialised by a single lock: a night's decisions, an hourly switch and a manual command.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import CpbError
from schemas.handover import BacktestEvidence, Decision, ModelRef, PairEvidence
from schemas.identity import SeriesId, market_home
from tasks.judging.gate import Contender, Ruling
from tasks.promotion.contenders import Candidate, standing
from tasks.storage.locks import locked
from tasks.tracking.connection import Store, alone_everywhere
from tasks.tracking.decisions import DECISION, decision_text, keep_decision
from tasks.tracking.registry import Champion, register, registered
from tasks.tracking.tags import REASON, RECIPE, SELECTED
from tasks.tracking.versions import ALIAS, CHALLENGER, find_version, succeed

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


def decided(
    series: SeriesId,
    ruling: Ruling,
    before: Contender | None,
    candidate: ModelRef | None = None,
    evidence: PairEvidence | None = None,
    backtest: BacktestEvidence | None = None,
) -> Decision:
    """Return the record of a ruling on a series; `before`: its champion, which serves until the alias is moved."""
    return Decision(
        series=series, outcome=ruling.outcome, rule=ruling.rule, reason=ruling.reason, compared=ruling.compared,
        version_number=before.version if before else "", incumbent=before.ref if before else None,
        candidate=candidate, evidence=evidence, backtest=backtest, decided_at=datetime.now(UTC),
    )  # fmt: skip


def promote_candidate(
    store: Store,
    candidate: Candidate,
    decision: Decision,
    before: Champion | None,
) -> Decision:
    """Make tonight's model the champion as decided, and return the decision with its version number.

    The span of a backtest that chose its recipe is marked on it, and on its refreshes as long as their own test span
    overlaps it.
    """
    found = decision.backtest
    chosen = f"{found.first:%Y-%m-%d}/{found.last:%Y-%m-%d}" if found else ""
    if before and standing(before).recipe == candidate.model.recipe:
        chosen = before.tags.get(SELECTED, "")
    tested = candidate.model.tested_from
    overlaps = chosen and (tested is None or f"{tested:%Y-%m-%d}" <= chosen.rpartition("/")[2])
    selected = {SELECTED: chosen} if overlaps else {}
    return _promote(store, _registered(store, candidate, {REASON: decision.reason, **selected}), decision)


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
    store.client.set_model_version_tag(winner.name, winner.version, REASON, decision.reason)
    return _promote(store, version, decision)


def _promote(store: Store, version: "ModelVersion", decision: Decision) -> Decision:
    """Record the decision on the version, move the aliases, then record it as the newest decision on the series."""
    number = {"version_number": str(version.version)}
    candidate = decision.candidate and decision.candidate.model_copy(update=number)
    decision = decision.model_copy(update=number | {"candidate": candidate})
    store.client.set_model_version_tag(version.name, str(version.version), DECISION, decision_text(decision))
    succeed(store, version)
    keep_decision(store, decision)
    return decision


def retire(store: Store, champion: Champion, decision: Decision) -> None:
    """Remove the alias from a champion as decided; its version stays registered."""
    store.client.set_model_version_tag(champion.name, champion.version, DECISION, decision_text(decision))
    store.client.delete_registered_model_alias(champion.name, ALIAS)
    keep_decision(store, decision)


def appoint(store: Store, candidate: Candidate) -> Champion:
    """Register tonight's model, point the alias `challenger` at it, and return it."""
    series, version = candidate.model.series, _registered(store, candidate, {})
    store.client.set_registered_model_alias(series.registered, CHALLENGER, str(version.version))
    found = registered(store, series, str(version.version))
    assert found is not None
    return found


def dismiss(store: Store, losers: Iterable[Champion]) -> None:
    """Remove the alias `challenger` from models; their versions stay registered."""
    for one in losers:
        aliases = store.client.get_registered_model(one.name).aliases
        if CHALLENGER in aliases:
            store.client.delete_registered_model_alias(one.name, CHALLENGER)


def _registered(store: Store, candidate: Candidate, tags: Mapping[str, str]) -> "ModelVersion":
    judged, model = candidate.judgement, candidate.judgement.model
    known = {
        "architecture": model.architecture, "recipe": model.recipe, RECIPE: str(candidate.model.recipe),
        "verdict": judged.verdict, **tags,
    }  # fmt: skip
    series = candidate.model.series
    return register(series, judged.run_id, metrics=judged.metrics, tags=known, store=store)


@contextmanager
def promotion_lock(store: Store, home: Path, market: str) -> Iterator[None]:
    """Hold the promotion lock of all markets that share a home's root, and on a server of all homes that use it.

    Waits for other processes, and for other machines as far as `alone_everywhere` can.
    """
    with locked(market_home(home, market) / "promotion.lock"), alone_everywhere(store, "registry"):
        yield
