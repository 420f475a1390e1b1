"""Scores of `research.columns`: losses of each coin in each fold, and what they say of two models."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from cpbmodels.data.series import Series
from research._shared import HORIZON, Quantiles
from tasks.judging.baselines import Rows, realised, reference
from tasks.judging.inference import block_length, diebold_mariano
from tasks.judging.scores import BANDS, Array, crps


@dataclass(frozen=True)
class Fold:
    """The coins with a fold's spans, and their test origins."""

    coins: tuple[Series, ...]

    def origins(self, split: str) -> list[tuple[Series, Rows]]:
        """Each coin with its origins in a span."""
        return [(one, one.origins(split, 1, HORIZON)) for one in self.coins]


@dataclass(frozen=True)
class Score:
    """Losses of one coin in one fold: `own` and `other` (the reference's) [N, H], in the 80 and 90 % band [N, 2]."""

    symbol: str
    times: Rows
    own: Array
    other: Array
    inside: Array

    @property
    def ratio(self) -> float:
        """CRPS over the reference's."""
        return float(self.own.sum() / self.other.sum())


def score(fold: Fold, quantiles: Quantiles) -> list[Score]:
    found = []
    for (one, known), (_, rows) in zip(fold.origins("train"), fold.origins("test"), strict=True):
        assert one.times is not None
        truth, own = realised(one, rows, HORIZON), quantiles(one, rows)
        other = crps(reference(one, known, rows, HORIZON), truth)
        edges = [BANDS[80], BANDS[90]]
        inside = [((truth >= own[..., a]) & (truth <= own[..., b])).mean(axis=1) for a, b in edges]
        found.append(Score(one.symbol, one.times[rows], crps(own, truth), other, np.stack(inside, axis=1)))
    return found


def ratio(scores: Iterable[Score]) -> float:
    return float(np.mean([one.ratio for one in scores]))


def significance(own: Sequence[Score], other: Sequence[Score]) -> float:
    """Diebold-Mariano's p of the difference, the mean of the coins at each time, of losses over the reference's."""
    times = np.concatenate([one.times for one in own])
    difference = np.concatenate(
        [(a.own - b.own).mean(axis=1) / a.other.mean() for a, b in zip(own, other, strict=True)]
    )
    unique, place = np.unique(times, return_inverse=True)
    mean = np.bincount(place, difference) / np.bincount(place)
    return diebold_mariano(mean, block_length(HORIZON, len(unique)))[1]


def blocks_lower(own: Sequence[Score], other: Sequence[Score]) -> tuple[int, int]:
    """(30-day blocks with a lower loss, blocks)."""
    month = round(timedelta(days=30) / timedelta(microseconds=1))
    start = min(one.times[0] for one in own)
    total: dict[int, float] = {}
    for a, b in zip(own, other, strict=True):
        difference = (a.own - b.own).mean(axis=1) / a.other.mean()
        for block, value in zip((a.times - start) // month, difference, strict=True):
            total[int(block)] = total.get(int(block), 0.0) + float(value)
    return sum(value < 0 for value in total.values()), len(total)


def compared(own: Sequence[Sequence[Score]], other: Sequence[Sequence[Score]]) -> str:
    """What all folds say: p of the difference, blocks that are lower, and the share within the bands."""
    mine, theirs = ([one for fold in folds for one in fold] for folds in (own, other))
    lower, blocks = blocks_lower(mine, theirs)
    bands = 100 * np.mean([one.inside.mean(axis=0) for one in mine], axis=0)
    return (
        f"p {significance(mine, theirs):.4f}, lower in {lower} of {blocks} blocks of 30 days, "
        f"bands {bands[0]:.1f} / {bands[1]:.1f}"
    )
