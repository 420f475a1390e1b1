"""Comparison of every two models on the rows both have forecast: is a network better than the linear model?"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from tasks.judging import inference
from tasks.judging.member import MemberScore
from tasks.judging.pool import compare
from tasks.judging.table import title_of

ALPHA = 0.05
"""Significance level of a verdict."""


@dataclass(frozen=True)
class Pair:
    """Two models compared.

    `ratio`: CRPS of `first` / that of `second`, every coin with the same weight. `p`: Diebold-Mariano, corrected by
    Holm over the pairs. `n`: common forecast rows.
    """

    first: str
    second: str
    timeframe: str
    ratio: float
    p: float
    n: int

    @property
    def verdict(self) -> str:
        """The finding as a sentence."""
        relation = "no different from"
        if self.p < ALPHA:
            relation = "better than" if self.ratio < 1 else "worse than"
        shown = f"p={self.p:.3f}" if self.p >= 0.001 else "p<0.001"
        return (
            f"{title_of(self.first)} {self.timeframe} is {relation} {title_of(self.second)} "
            f"(CRPS ratio {self.ratio:.4f}, {shown}, n={self.n:,})"
        )


def all_pairs(members: Sequence[MemberScore]) -> list[Pair]:
    """Return every pair of architectures of a timeframe that share rows; p is corrected over the timeframe's pairs."""
    groups: dict[str, dict[str, list[MemberScore]]] = defaultdict(lambda: defaultdict(list))
    for member in members:
        groups[member.timeframe][member.architecture].append(member)
    return [pair for timeframe, own in groups.items() for pair in _of_timeframe(timeframe, own)]


def _of_timeframe(timeframe: str, models: dict[str, list[MemberScore]]) -> list[Pair]:
    names = [(a, b) for a, b in combinations(models, 2) if _coins(models[a]) & _coins(models[b])]
    found = [compare(models[a], models[b]) for a, b in names]
    corrected = inference.holm([p for _, p, _ in found])
    return [
        Pair(a, b, timeframe, ratio, p, n)
        for (a, b), (ratio, _, n), p in zip(names, found, corrected, strict=True)
    ]


def _coins(members: list[MemberScore]) -> set[str]:
    return {member.symbol for member in members}
