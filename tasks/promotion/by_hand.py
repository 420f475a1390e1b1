"""Champions as a person sees and sets them: `cpb champions`, `cpb promote`."""

from dataclasses import dataclass
from pathlib import Path

from schemas.decision import Decision
from schemas.errors import UsageError
from schemas.identity import SIM, SeriesId
from tasks.judging.gate import GateDecision
from tasks.promotion.losses import registered_model
from tasks.promotion.moves import decided, promote_version, promotion_lock
from tasks.tracking.champions import Champion, registered
from tasks.tracking.decisions import decision_in, keep_decision
from tasks.tracking.experiment import Store
from tasks.tracking.registry import ALIAS, PREVIOUS, aliases_of, versions_of
from tasks.tracking.registry_copy import read_registry
from tasks.tracking.store import open_store, read_store


@dataclass(frozen=True)
class Served:
    """A champion, the newest decision on its series, and the decision that made it champion (None: not by the gate)."""

    champion: Champion
    newest: Decision | None
    became: Decision | None


def served(market: str | None = None) -> list[Served]:
    """Return every champion of a market; by default of all real markets, or of the simulator if there are no others.

    Raises:
        CpbError: there is no store yet.
    """
    registry = read_registry(read_store)
    newest = {decision.series: decision for decision in registry.decisions}
    serving = [version for version in registry.champions if market in (None, version.series.market)]
    if market is None:
        # Simulated champions among real ones would be taken for real ones.
        serving = [version for version in serving if version.series.market != SIM] or serving
    return [
        Served(Champion.of(registry.uri, version), newest.get(version.series), decision_in(version.tags))
        for version in serving
    ]


def promote_by_hand(home: Path, series: SeriesId, version: str, reason: str) -> Decision:
    """Make a registered version of a series its champion, regardless of its figures, and store the reason.

    Args:
        version: a number, or `previous`: the champion before the current champion.
        reason: stored with the decision.

    Raises:
        UsageError: there is no reason, no registered model of the series, or no such version.
        DamagedError: the version's files differ from the registered files.
    """
    if not reason.strip():
        raise UsageError(
            'promoting by hand needs a reason that is kept, as in --force "the feed was wrong in May"',
            code="reason",
            field="force",
        )
    store = open_store(create=False)
    with promotion_lock(home, series.market):
        # Looked up under the lock: a night may be moving the same alias.
        aliases = aliases_of(store, series)
        if aliases is None:
            raise UsageError(
                f"no model of {series} is registered; train it first, as in `cpb train-all {series.options}`",
                code="unknown-series",
                field="coin",
            )
        wanted = _chosen(store, series, version, aliases)
        before = registered(store, series, aliases[ALIAS]) if ALIAS in aliases else None
        text = reason.strip()
        # The reason is kept also where nothing moves: whoever reads the decisions later sees that a person
        # has looked at it.
        if same := before is not None and before.version == wanted.version:
            text = f"it was the champion already ({text})"
        ruling = GateDecision("unchanged" if same else "forced", "by-hand", text)
        decision = decided(
            series, ruling, registered_model(before) if before else None, registered_model(wanted).ref
        )
        if decision.moved:
            return promote_version(store, wanted, decision)
        keep_decision(store, decision)
    return decision


def _chosen(store: Store, series: SeriesId, version: str, aliases: dict[str, str]) -> Champion:
    # The alias is resolved here, so that the decision names the version and not a word that moves.
    number = aliases.get(PREVIOUS, "") if version == PREVIOUS else version
    chosen = registered(store, series, number) if number.isdecimal() else None
    if chosen is None:
        numbers = ", ".join(str(champion.version) for champion in versions_of(store, series))
        raise UsageError(
            f"{series.registered} has no version {version!r}: choose from {numbers}",
            code="no-version",
            field="version",
        )
    # A damaged version would forecast nothing: refused here, not at the next forecast.
    chosen.check()
    return chosen
