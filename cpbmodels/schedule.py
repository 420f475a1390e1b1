"""Learning rates: cosine over all epochs, reduced every few epochs, or constant, with a linear warm-up before.

A rate depends on the epoch and, while warming up, on the step of the first epoch: never on how many windows a member
or its neighbours have, so a member's rate is the same in any fleet.
"""

from __future__ import annotations

import math

import numpy as np

from cpbmodels.options import Preset


def learning_rate(options: Preset, epoch: int, step: int = 10**9) -> float:
    """The rate of a step (counted within its epoch, from 0) of an epoch (from 0)."""
    rate = options.lr * _factor(options, epoch)
    if epoch == 0 and options.warmup_steps:
        rate *= min(1.0, (step + 1) / options.warmup_steps)
    return rate


def step_rates(options: Preset, epoch: int, steps: int) -> np.ndarray:
    """The rates [steps] that an epoch's steps take: float64, rounded to float32.

    The fused optimizers read a float32 rate on a GPU and a float64 one on a CPU. Without rounding on both, the same
    training would differ by 3e-8 of the rate between them, in float64 too.
    """
    rates = [learning_rate(options, epoch, step) for step in range(steps)]
    return np.array(rates, dtype=np.float32).astype(np.float64)


def _factor(options: Preset, epoch: int) -> float:
    if options.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * epoch / options.epochs))
    if options.schedule == "step":
        return float(options.step_gamma ** (epoch // options.step_size))
    return 1.0
