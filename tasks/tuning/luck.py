"""What luck alone would have given: the best of as many trials of which none is better than the reference.

White's reality check (Econometrica 2000): resample blocks of time; in each resample every trial's loss is taken minus
its own skill, so that its expected ratio to the reference is 1, and the best of them is noted. Trials share their
candles, so they are resampled together and their correlation is kept.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.judging.inference import bootstrap_weights

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Luck:
    """best: median over resamples of the lowest ratio among null trials; low: its 5 % quantile.

    p: share of resamples in which luck alone is at least as good as the winner.
    """

    trials: int
    best: float
    low: float
    p: float


def best_of_null_trials(losses: Array, reference: Array, observed: float, seed: int = 0) -> Luck:
    """Return what the best of len(losses) trials without skill would have scored.

    Args:
        losses: [trials, blocks], sums of each trial's losses.
        reference: [blocks], of the reference's, on the same origins.
        observed: the winner's ratio.
        seed: of the resamples.
    """
    share = losses.sum(1, keepdims=True) / reference.sum()
    null = losses - (share - 1) * reference  # each trial's ratio is now 1, its noise is what it was
    weights = bootstrap_weights(len(reference), seed=seed)
    below = weights @ reference
    ratios = np.where(below > 0, (weights @ null.T).T / np.where(below > 0, below, 1), 1.0)
    best = ratios.min(0)
    return Luck(
        trials=len(losses),
        best=float(np.median(best)),
        low=float(np.quantile(best, 0.05)),
        p=float(np.mean(best <= observed)),
    )
