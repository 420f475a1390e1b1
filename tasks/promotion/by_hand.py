"""Manual commands: list the champions with their decisions, and promote another version."""

from dataclasses import dataclass
from pathlib import Path

from schemas.errors import DamagedError, UsageError
from schemas.handover import Decision
from schemas.identity import SIM, SeriesId
from tasks.judging.gate import Ruling
from tasks.promotion.contenders import standing
from tasks.promotion.moves import decided, promote_version, promotion_lock
from tasks.tracking.connection import Store
from tasks.tracking.decisions import decision_in, keep_decision, newest_decisions
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.registry import Champion, champions, registered
from tasks.tracking.versions import ALIAS, PREVIOUS, aliases_of, versions_of


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
    store = open_store(create=False)
    newest = newest_decisions(store)
    found = champions(market=market, store=store)
    if market is None:
        found = [one for one in found if one.series.market != SIM] or found
    return [Served(one, newest.get(one.series), decision_in(one.tags)) for one in found]


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
            code="reason", field="force",
        )  # fmt: skip
    store = open_store(create=False)
    with promotion_lock(store, home, series.market):
        aliases = aliases_of(store, series)
        if aliases is None:
            raise UsageError(
                f"no model of {series} is registered; train it first, as in `cpb train-all {series.options}`",
                code="unknown-series", field="coin",
            )  # fmt: skip
        wanted = _registered(store, series, version, aliases)
        before = registered(store, series, aliases[ALIAS]) if ALIAS in aliases else None
        text = reason.strip()
        if same := before is not None and before.version == wanted.version:
            text = f"it was the champion already ({text})"
        ruling = Ruling("unchanged" if same else "forced", "by-hand", text)
        decision = decided(series, ruling, standing(before) if before else None, standing(wanted).ref)
        if decision.moved:
            return promote_version(store, wanted, decision)
        keep_decision(store, decision)
    return decision


def _registered(store: Store, series: SeriesId, version: str, aliases: dict[str, str]) -> Champion:
    number = aliases.get(PREVIOUS) if version == PREVIOUS else version
    if number is None:
        raise UsageError(
            f"{series.registered} has no version under the alias {PREVIOUS}: its champion never had a predecessor; "
            "name a number",
            code="no-version", field="version",
        )  # fmt: skip
    found = registered(store, series, number) if number.isdecimal() else None
    if found is None:
        known = ", ".join(str(one.version) for one in versions_of(store, series))
        raise UsageError(
            f"{series.registered} has no version {number!r}: choose from {known}, or {PREVIOUS}",
            code="no-version", field="version",
        )  # fmt: skip
    if found.damage:
        raise DamagedError(
            f"{found.model_version} is damaged and cannot be promoted: {found.damage}; choose a different version, or "
            "repair it with `cpb verify --repair`",
            field=str(found.folder),
        )
    return found
