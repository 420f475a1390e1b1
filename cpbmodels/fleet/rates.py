"""Learning rates: cosine over all epochs, reduced every few epochs, or constant, with a linear warm-up before.

A rate depends on the epoch and, while warming up, on the step of the first epoch: never on how many windows a member
or its neighbours have, so a member's rate is the same in any fleet.
"""

import numpy as np

from cpbmodels.arch.options import SCHEDULES, Preset


def learning_rate(options: Preset, epoch: int) -> float:
    """The rate of an epoch (from 0), after its warm-up."""
    return options.lr * SCHEDULES[options.schedule](options, epoch)


def step_rates(options: Preset, epoch: int, steps: int) -> np.ndarray:
    """The rates [steps] that an epoch's steps take: float64, rounded to float32.

    The fused optimizers read a float32 rate on a GPU and a float64 rate on a CPU. Without rounding on both, the same
    training would differ by 3e-8 of the rate between them, in float64 too.
    """
    rates = np.full(steps, learning_rate(options, epoch))
    # Within the first epoch alone: over several it would depend on how many steps a member's epochs have.
    if epoch == 0 and options.warmup_steps:
        rates *= np.minimum(1.0, np.arange(1, steps + 1) / options.warmup_steps)
    return rates.astype(np.float32).astype(np.float64)
