"""Which architecture becomes a series' champion, and why.

The choice is made on the validation span. Choosing by the test span would make the champion's test score the
best of several draws, and no longer an honest estimate of what it is worth.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from schemas.handover import Judgement
from schemas.identity import SeriesId

_DECIDES = "validation_crps_ratio"


@dataclass(frozen=True)
class Choice:
    """A champion and the reason in one sentence."""

    best: Judgement
    reason: str


def choose(judgements: Iterable[Judgement]) -> list[Choice]:
    """Return one choice per series: the lowest validation CRPS ratio; ties go to the first architecture by name.

    A judgement without that ratio (classifiers have none), or with one that is not finite, is no candidate.
    """
    groups: dict[SeriesId, list[Judgement]] = defaultdict(list)
    for judgement in judgements:
        if math.isfinite(judgement.metrics.get(_DECIDES, math.nan)):
            groups[judgement.model.series].append(judgement)
    return [_choice(sorted(group, key=_rank)) for group in groups.values()]


def _rank(judgement: Judgement) -> tuple[float, str]:
    return judgement.metrics[_DECIDES], judgement.model.architecture


def _choice(ranked: list[Judgement]) -> Choice:
    best, rest = ranked[0], ranked[1:]
    against = "the only candidate"
    if rest:
        second = rest[0]
        against = f"next {second.model.architecture} {second.metrics[_DECIDES]:.4f} of {len(ranked)}"
    reason = (
        f"{best.model.architecture}: validation CRPS ratio {best.metrics[_DECIDES]:.4f} ({against}); "
        f"on the test span {best.verdict}"
    )
    return Choice(best, reason)
