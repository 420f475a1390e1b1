"""Evidence that a champion got worse than what its test span promised: one number per series, looked at every hour.

Three claims are tested against each other's money: at the first step the closes miss the central 80 % band, and the 90 %
band, no more often than promised, and the CRPS over all steps is at most the promised share of the reference's; each
with a tolerance, because real months differ. A gambler bets against each claim at odds that are fair if it just holds.

A drift may begin at any time, so the gambler gets fresh money with every forecast: `FRESH_A_YEAR` in a year, all of it
staked at once. Where the claims hold, bets gain nothing in expectation, and capital minus the money put in is a
supermartingale: the expected number of times that the capital rises from `RECOVERED` to `ALARM` is at most
(money put in + RECOVERED) / (ALARM - RECOVERED), whenever and however often it is looked at. For 40 series that is
about one false alarm a year (an e-detector: Shin, Ramdas, Rinaldo, "E-detectors", arXiv 2203.03532; the sum over
starting times of e-processes). `benchmarks/drift.py` measures it on real blocks, where claims hold only on average.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.judging.scores import Array

ALARM = 40.0
"""Capital from which a champion has drifted: 40 series, together, one false alarm a year."""
RECOVERED = 1.0
"""Capital below which a drifted champion keeps its promise again."""
NOTICEABLE = 4.0
"""Capital from which a champion is worth watching; a tenth of an alarm."""
MAX_CAPITAL = 100.0
"""Capital of each bet; profits above are taken out, so that a drift that is over is forgotten in about ten days."""

BANDS = (80, 90)
TOLERANCE_MISSES = {80: 0.012, 90: 0.008}
"""Added to the promised share of misses of a band at step 1. A real month's share differs from the promise by 2.0 and
1.3 points (standard deviation, 720 hours), of which 1.5 and 1.1 are chance."""
TOLERANCE_CRPS = 0.02
"""Share by which the CRPS ratio may exceed the promise; real months differ by 0.9 % (standard deviation)."""

NARROWED = 0.8
"""The alternative bet on: a band promised to be missed with probability p is missed with p ** 0.8, what drawing the
quantiles to the median by a fifth does to hourly moves (0.20 -> 0.29, 0.10 -> 0.165)."""
FRESH = {"80": 0.45, "90": 0.45, "crps": 0.1}
"""Share of the fresh money that each bet gets."""
FRESH_A_YEAR = 1.0
_YEAR_SECONDS = 365.25 * 86_400

_CRPS_UNIT = 0.2
"""Reference CRPS as a share of the reference's q10 .. q90 width: about this at every volatility."""
_CRPS_CLIP = 0.25
_CRPS_STAKE = 1.4
"""Share of the capital staked on the forecasts of one horizon; times the clip it stays below 1 / e, so that a run of
the worst outcomes, each bet on capital of a horizon ago, cannot take more than there is."""


@dataclass(frozen=True)
class Limits:
    """What is tested, tolerance included: misses of the bands at step 1 (shares), and CRPS / reference's CRPS."""

    misses: dict[int, Any]
    crps_ratio: Any


def limits(coverage_step_1: dict[int, Any], crps_ratio: Any) -> Limits:
    """Return the limits for a promise: coverage of the bands (shares; a band without one is nominal), CRPS ratio."""
    misses = {
        band: 1 - np.asarray(coverage_step_1.get(band, band / 100)) + TOLERANCE_MISSES[band] for band in BANDS
    }
    return Limits(misses, np.asarray(crps_ratio) * (1 + TOLERANCE_CRPS))


@dataclass(frozen=True)
class Outcome:
    """One forecast that is scored whole. `missed`: at step 1, per band. `crps`, `ref_crps`, `ref_width`: means over all
    steps in log-return; the width, q10 .. q90 of the reference, is known at the origin."""

    missed: dict[int, Any]
    crps: Any
    ref_crps: Any
    ref_width: Any


class Capital:
    """The gambler's money, of one series or of N at once (`shape` [N]).

    `bands` [2, *shape]: capital of the bets on misses. `crps` [horizon + 1, *shape]: capital of the bet on the CRPS after
    each of the newest forecasts, the newest last.
    """

    def __init__(self, horizon: int, shape: tuple[int, ...] = ()) -> None:
        self.bands: Array = np.zeros((len(BANDS), *shape))
        self.crps: Array = np.zeros((horizon + 1, *shape))

    @property
    def horizon(self) -> int:
        """Number of steps of a forecast: how many forecasts overlap."""
        return len(self.crps) - 1

    def take(self, outcome: Outcome, limit: Limits, step_seconds: int) -> None:
        """Settle the bets on one forecast, the next one in time, and put in fresh money.

        Bets on step 1 are settled before the next is made. Those on the CRPS overlap: the stake on a forecast is a share
        of the capital that was settled when it was issued, `horizon` forecasts ago.
        """
        fresh = FRESH_A_YEAR * step_seconds / _YEAR_SECONDS
        for i, band in enumerate(BANDS):
            p = limit.misses[band]
            odds = np.where(outcome.missed[band], p**NARROWED / p, (1 - p**NARROWED) / (1 - p))
            self.bands[i] = np.minimum((self.bands[i] + FRESH[str(band)] * fresh) * odds, MAX_CAPITAL)
        excess = (outcome.crps - limit.crps_ratio * outcome.ref_crps) / (_CRPS_UNIT * outcome.ref_width)
        gain = self._stake(self.crps[0]) * np.clip(excess, -_CRPS_CLIP, _CRPS_CLIP)
        newest = np.minimum(self.crps[-1] + gain + FRESH["crps"] * fresh, MAX_CAPITAL)
        self.crps = np.concatenate([self.crps[1:], newest[None]])

    @property
    def evidence(self) -> dict[str, NDArray[np.float64]]:
        """The capital by bet, `80`, `90` and `crps`, with the stakes on forecasts not yet scored counted as lost."""
        open_stakes = self._stake(self.crps[1:-1]).sum(axis=0)
        sure = np.maximum(self.crps[-1] - _CRPS_CLIP * open_stakes, 0)
        return {**{str(band): self.bands[i] for i, band in enumerate(BANDS)}, "crps": sure}

    @property
    def total(self) -> NDArray[np.float64]:
        """The evidence against the promise: the sum over the bets."""
        return np.sum(list(self.evidence.values()), axis=0)

    def _stake(self, capital: Array) -> Array:
        return _CRPS_STAKE / self.horizon * capital
