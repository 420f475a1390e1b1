"""Which architecture becomes a series' champion, and why.

The choice is made on the validation span. Choosing by the test span would make the champion's test score the
best of several draws, and no longer an honest estimate of what it is worth.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """One judged member: `metrics` holds `validation_crps_ratio` (the choice) and `test_*` (the report)."""

    name: str
    symbol: str
    timeframe: str
    architecture: str
    run_id: str
    metrics: dict[str, float]
    verdict: str


@dataclass(frozen=True)
class Choice:
    """A champion and the reason in one sentence."""

    best: Candidate
    reason: str


def choose(candidates: Iterable[Candidate]) -> list[Choice]:
    """Return one choice per coin x timeframe: the lowest validation CRPS ratio; ties go to the first name."""
    groups: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        if "validation_crps_ratio" in candidate.metrics:
            groups[candidate.name].append(candidate)
    return [_choice(sorted(group, key=_rank)) for group in groups.values()]


def _rank(candidate: Candidate) -> tuple[float, str]:
    return candidate.metrics["validation_crps_ratio"], candidate.architecture


def _choice(ranked: list[Candidate]) -> Choice:
    best, rest = ranked[0], ranked[1:]
    ratio = best.metrics["validation_crps_ratio"]
    against = "the only candidate"
    if rest:
        second = rest[0]
        against = f"next {second.architecture} {second.metrics['validation_crps_ratio']:.4f} of {len(ranked)}"
    reason = (
        f"{best.architecture}: validation CRPS ratio {ratio:.4f} ({against}); on the test span {best.verdict}"
    )
    return Choice(best, reason)
