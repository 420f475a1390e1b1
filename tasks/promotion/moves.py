"""The moves of the gate in the registry: a candidate or a challenger becomes champion, a challenger is appointed.

They are made under one lock: a night's decisions, an hour's switch and a person's command one by one.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from schemas.errors import CpbError
from schemas.identity import market_home
from tasks.judging.gate import Contender
from tasks.promotion.contenders import Candidate, standing
from tasks.storage.locks import locked
from tasks.tracking.connection import Store, alone_everywhere
from tasks.tracking.registry import Champion, register, register_champion, registered
from tasks.tracking.tags import REASON, RECIPE, SELECTED
from tasks.tracking.versions import CHALLENGER, find_version, succeed

Span = tuple[datetime, datetime]


def promote_candidate(
    store: Store, candidate: Candidate, reason: str, before: Champion | None, selected_on: Span | None = None
) -> str:
    """Make tonight's model the champion and return its version.

    Where it refreshes a champion whose recipe was chosen on test rows that lie in its own test span too, that span
    stays marked.

    Args:
        selected_on: as in `promote_version`, where it follows a switch.
    """
    chosen = _span(selected_on)
    if before and standing(before).recipe == candidate.model.recipe:
        chosen = before.tags.get(SELECTED, "")
    return register_champion(
        candidate.model.series,
        candidate.judgement.run_id,
        reason=reason,
        metrics=candidate.judgement.metrics,
        tags=_tags(candidate) | ({SELECTED: chosen} if still_selected(chosen, candidate.model) else {}),
        files=candidate.judgement.files,
        store=store,
    )


def promote_version(store: Store, winner: Champion, reason: str, selected_on: Span | None = None) -> str:
    """Make a registered version the champion and return its number.

    Args:
        selected_on: first and last origin of the test rows that its recipe was chosen on, if any.

    Raises:
        CpbError: somebody has deleted it since it was looked up.
    """
    version = find_version(store, winner.series, winner.version)
    if version is None:
        raise CpbError(
            f"{winner.model_version} was deleted meanwhile; choose another version", code="no-version"
        )
    text = _span(selected_on)
    tags = {REASON: reason} | ({SELECTED: text} if still_selected(text, standing(winner)) else {})
    for name, value in tags.items():
        store.client.set_model_version_tag(winner.name, winner.version, name, value)
    succeed(store, version)
    return winner.version


def appoint(store: Store, candidate: Candidate) -> Champion:
    """Register tonight's model, point the alias `challenger` at it, and return it."""
    series = candidate.model.series
    version = register(
        series,
        candidate.judgement.run_id,
        metrics=candidate.judgement.metrics,
        tags=_tags(candidate),
        files=candidate.judgement.files,
        store=store,
    )
    store.client.set_registered_model_alias(series.registered, CHALLENGER, str(version.version))
    found = registered(store, series, str(version.version))
    assert found is not None
    return found


def dismiss(store: Store, losers: Iterable[Champion]) -> None:
    """Take the alias `challenger` from models; their versions stay."""
    for one in losers:
        aliases = store.client.get_registered_model(one.name).aliases
        if CHALLENGER in aliases:
            store.client.delete_registered_model_alias(one.name, CHALLENGER)


def still_selected(span: str, model: Contender) -> bool:
    """Whether a model's test span reaches back into the rows on which its recipe was chosen (`SELECTED`)."""
    if not span:
        return False
    return model.tested_from is None or f"{model.tested_from:%Y-%m-%d}" <= span.rpartition("/")[2]


def _span(selected_on: Span | None) -> str:
    return "/".join(f"{end:%Y-%m-%d}" for end in selected_on) if selected_on else ""


def _tags(candidate: Candidate) -> dict[str, Any]:
    model = candidate.judgement.model
    return {
        "architecture": model.architecture,
        "recipe": model.recipe,
        RECIPE: str(candidate.model.recipe),
        "verdict": candidate.judgement.verdict,
    }


@contextmanager
def promotion_lock(store: Store, home: Path, market: str) -> Iterator[None]:
    """Hold the promotions of all markets that share a home's root, and on a server those of all homes that use it.

    Waits for another process's to end, and for another machine's as far as `alone_everywhere` can.
    """
    with locked(market_home(home, market) / "promotion.lock"), alone_everywhere(store, "registry"):
        yield
