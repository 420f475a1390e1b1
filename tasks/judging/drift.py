"""Evidence that a champion got worse than what its test span promised: one number per series, looked at every hour.

Two claims are tested: at the first step, whose targets do not overlap, the closes miss the central 50, 80 and 90 %
bands no more often than promised; and the CRPS over all steps is at most the promised share of the reference's. Each
has a tolerance, because real months differ. A gambler bets against each claim, at odds that are fair if it just holds.

A drift may begin at any time, so the gambler gets fresh money with every forecast, 1 in a year, and stakes it at once.
Where the claims hold, bets gain nothing in expectation: capital minus the money put in is a supermartingale. Whenever
and however often one looks, the capital of a series reaches `ALARM` for the first time within a year with probability
1 / `ALARM` at most, even if it sits right at the limit of what is tolerated; where the promise itself is kept, far more
seldom. This sum of e-processes over all starting times is an e-detector (Shin, Ramdas, Rinaldo, "E-detectors", arXiv
2203.03532). `research/drift.py`, which chose the constants, measures it on real blocks, where claims hold on average.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.reference import BANDS
from tasks.judging.scores import Array

ALARM = 10.0
"""Capital from which a champion has drifted."""
RECOVERED = 1.0
"""Capital below which a drifted champion keeps its promise again: what a year puts in."""
NOTICEABLE = 2.0
"""Capital from which a champion is worth watching."""
MAX_CAPITAL = 30.0
"""Capital of each bet; profits above are taken out, so that a drift that is over is forgotten."""

TOLERANCE_MISSES = {50: 0.0165, 80: 0.013, 90: 0.009}
"""Added to the promised share of misses of a band at step 1. Over 30 real days the share differs from the promise by
2.6, 1.8 and 1.2 points (standard deviation), of which 1.9, 1.5 and 1.1 are chance."""
TOLERANCE_CRPS = 0.02
"""Share by which the CRPS ratio may exceed the promise; real months differ by 0.9 % (standard deviation)."""

NARROWED = 0.8
"""The alternative bet on: a band promised to be missed with probability p is missed with p ** 0.8. Quantiles drawn to
the median by a fifth do that to hourly moves (0.20 -> 0.29, 0.10 -> 0.165)."""
FRESH = {"bands": 0.9, "crps": 0.1}
"""Fresh money of each bet in a year."""
_YEAR_SECONDS = 365.25 * 86_400

_APART = 0.01
_CRPS_UNIT = 0.2
"""Reference CRPS as a share of the reference's q10 .. q90 width: about this at every volatility."""
_CRPS_CLIP = 0.1
_CRPS_STAKE = 3.6
"""Share of the capital staked on the forecasts of one horizon, per unit; times the clip it stays below 1 / e. Then a
run of the worst outcomes, C[t] = C[t - 1] - a C[t - L] with a = clip x stake / L, never takes more than there is: its
solution falls without changing sign as long as a <= (L - 1)**(L - 1) / L**L, which is above 1 / (e L)."""


@dataclass(frozen=True)
class Limits:
    """What is tested, tolerance included: misses of the bands at step 1 (shares), and CRPS / reference's CRPS."""

    misses: dict[int, Any]
    crps_ratio: Any


def limits(coverage_step_1: dict[int, Any], crps_ratio: Any) -> Limits:
    """Return the limits for a promise: coverage of the bands (shares; a band without one is nominal), CRPS ratio.

    Promises of a short test span may be equal for two bands, or 1: limits lie at least `_APART` apart.
    """
    misses, inner = {}, np.asarray(1.0)
    for band in BANDS:
        promised = 1 - np.asarray(coverage_step_1.get(band, band / 100)) + TOLERANCE_MISSES[band]
        misses[band] = inner = np.clip(promised, _APART * (100 - band) / 10, inner - _APART)
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

    `bands` [*shape]: capital of the bet on misses. `crps` [horizon, *shape]: capital of the bet on the CRPS after
    each of the newest forecasts, the newest last.
    """

    def __init__(self, horizon: int, shape: tuple[int, ...] = ()) -> None:
        self.bands: Array = np.zeros(shape)
        self.crps: Array = np.zeros((horizon, *shape))

    @property
    def horizon(self) -> int:
        """Number of steps of a forecast: how many forecasts overlap."""
        return len(self.crps)

    def take(self, outcome: Outcome, limit: Limits, step_seconds: int) -> None:
        """Settle the bets on one forecast, the next one in time, and put in fresh money.

        Bets on step 1 are settled before the next is made. Those on the CRPS overlap: the stake on a forecast is a
        share of the capital that was settled when it was issued, `horizon` forecasts ago.
        """
        year = step_seconds / _YEAR_SECONDS
        odds = _odds(outcome.missed, limit.misses)
        self.bands = np.minimum((self.bands + FRESH["bands"] * year) * odds, MAX_CAPITAL)
        excess = (outcome.crps - limit.crps_ratio * outcome.ref_crps) / (_CRPS_UNIT * outcome.ref_width)
        gain = self._stake(self.crps[0]) * np.clip(excess, -_CRPS_CLIP, _CRPS_CLIP)
        newest = np.minimum(self.crps[-1] + gain + FRESH["crps"] * year, MAX_CAPITAL)
        self.crps = np.concatenate([self.crps[1:], newest[None]])

    @property
    def evidence(self) -> dict[str, NDArray[np.float64]]:
        """The capital by bet, `bands` and `crps`, with the stakes on forecasts not yet scored counted as lost."""
        open_stakes = self._stake(self.crps[:-1]).sum(axis=0)
        sure = np.maximum(self.crps[-1] - _CRPS_CLIP * open_stakes, 0)
        return {"bands": self.bands, "crps": sure}

    @property
    def total(self) -> NDArray[np.float64]:
        """The evidence against the promise: the sum over the bets."""
        return np.sum(list(self.evidence.values()), axis=0)

    def _stake(self, capital: Array) -> Array:
        return _CRPS_STAKE / self.horizon * capital


def _odds(missed: dict[int, Any], limit: dict[int, Any]) -> Array:
    """Return what a unit of money becomes: the outcome's likelihood under the alternative over that at the limit.

    The bands lie within one another, so an outcome is the number of bands missed. The ratio grows with it; its mean is
    1 where every band is missed exactly as often as its limit says, and less where they are missed less often.
    """
    beyond = [1.0, *(limit[band] for band in BANDS), 0.0]  # probability that the move goes beyond each band
    number = sum(np.asarray(missed[band], dtype=int) for band in BANDS)
    odds = np.zeros(np.shape(number))
    for k, (inner, outer) in enumerate(pairwise(beyond)):
        ratio = (inner**NARROWED - outer**NARROWED) / (inner - outer)
        odds = np.where(number == k, ratio, odds)
    return odds
