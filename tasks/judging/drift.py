"""Evidence that a champion has become worse than on its test span: a number per series, checked every hour.

Two claims are tested. Of the first step, whose targets do not overlap: the closes miss the central 50, 80 and 90 %
bands no more often than promised by the test span, or no more often relative to the reference's bands than there.
Either is enough, as a market that moves makes both models miss: the evidence is the smaller of two bets. And the CRPS
over all steps is at most the promised share of the reference's. Each claim has a tolerance, because real months
differ. A gambler bets against each claim, at odds that are fair if it just holds.

A drift may begin at any time, so the gambler receives new money with every forecast, 1 per year, and bets it
immediately. If the claims hold, bets gain nothing in expectation: capital minus the money received is a
supermartingale. However often the capital is checked, it reaches `ALARM` for the first time within a year with
probability 1 / `ALARM` at most, even if the forecasts are exactly at the limit of the tolerance; if the promise itself
holds, far less often. This sum of e-processes over all starting times is an e-detector (Shin, Ramdas, Rinaldo,
"E-detectors", arXiv 2203.03532). `research/drift.py` of commit a6dc485d, which chose the constants, measured it on real
blocks, where claims hold on average.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.ledger import BANDS
from tasks.judging.scores import Array

ALARM = 10.0
"""Capital at which a champion has drifted."""
RECOVERED = 1.0
"""Capital below which a drifted champion has recovered: the money received in a year."""
NOTICEABLE = 2.0
"""Capital at which a champion's state becomes `watch`."""
MAX_CAPITAL = 30.0
"""Maximum capital of each bet; the excess is removed, so that the capital falls soon after a drift has ended."""

TOLERANCE_MISSES = {50: 0.01, 80: 0.008, 90: 0.0055}
"""Added to the promised share of misses of a band at step 1. Over 30 real days the share differs from the promise by
2.6, 1.8 and 1.2 points (standard deviation), of which 1.9, 1.5 and 1.1 are chance."""
TOLERANCE_EXCESS = 0.08
"""Added to the promised excess: the mean number of these three bands that the model misses at step 1 less the number
that the reference misses. Real months differ from the promise by 0.045 (standard deviation), of which 0.015 is chance;
bands a fifth too narrow add 0.24."""
TOLERANCE_CRPS = 0.02
"""Share by which the CRPS ratio may exceed the promise; real months differ by 0.9 % (standard deviation)."""

NARROWED = 0.8
"""The alternative hypothesis of the bet: a band promised to be missed with probability p is missed with p ** 0.8.
Quantiles a fifth closer to the median have this effect on hourly moves (0.20 -> 0.29, 0.10 -> 0.165)."""
FRESH = {"bands": 0.9, "crps": 0.1}
"""New money of each bet per year."""
_YEAR_SECONDS = 365.25 * 86_400

_EXCESS_STAKE = 0.25
"""Share of the capital bet on a forecast, per band of excess. The excess is 3 at most and its limit 0.5 at most, so a
bet never takes more than the capital."""
_MAX_EXCESS = 0.5
_APART = 0.01
_CRPS_UNIT = 0.2
"""Reference CRPS as a share of the reference's q10 .. q90 width: about this at every volatility."""
_CRPS_CLIP = 0.1
_CRPS_STAKE = 3.6
"""Share of the capital bet on the forecasts of a horizon, per unit; times the clip it stays below 1 / e. Then a
series of worst outcomes, C[t] = C[t - 1] - a C[t - L] with a = clip x stake / L, never takes more than the capital:
the solution decreases without changing sign if a <= (L - 1)**(L - 1) / L**L, which is above 1 / (e L)."""


@dataclass(frozen=True)
class Limits:
    """Tested limits, including tolerance: misses of the bands at step 1 (shares), their number less the reference's
    (mean), and CRPS / reference's CRPS."""

    misses: dict[int, Any]
    excess: Any
    crps_ratio: Any


def limits(
    coverage_step_1: dict[int, Any], crps_ratio: Any, reference_step_1: dict[int, Any] | None = None
) -> Limits:
    """Return the limits for a promise: coverage of both models' bands (shares; default: nominal), and CRPS ratio.

    After a short test span the promises of two bands may be equal, or 1: limits differ by at least `_APART`.
    """
    # Bands are nested: a wider band cannot be missed more often than a narrower, and the odds divide by the
    # difference of their limits.
    misses, inner = {}, np.asarray(1.0)
    for band in BANDS:
        promised = 1 - np.asarray(coverage_step_1.get(band, band / 100)) + TOLERANCE_MISSES[band]
        misses[band] = inner = np.clip(promised, _APART * (100 - band) / 10, inner - _APART)
    excess = sum(
        np.asarray((reference_step_1 or {}).get(band, band / 100)) - coverage_step_1.get(band, band / 100)
        for band in BANDS
    )
    excess = np.clip(excess + TOLERANCE_EXCESS, -_MAX_EXCESS, _MAX_EXCESS)
    return Limits(misses, excess, np.asarray(crps_ratio) * (1 + TOLERANCE_CRPS))


@dataclass(frozen=True)
class Outcome:
    """A completely scored forecast. `missed`, `ref_missed`: at step 1, per band. `crps`, `ref_crps`, `ref_width`: means
    over all steps in log-return; the width, q10 .. q90 of the reference, is known at the origin."""

    missed: dict[int, Any]
    ref_missed: dict[int, Any]
    crps: Any
    ref_crps: Any
    ref_width: Any


class Capital:
    """The gambler's money for a series, or for N series together (`shape` [N]).

    `bands` [*shape]: capital of the bet on misses; `excess` [*shape]: on misses relative to the reference's. `crps`
    [horizon, *shape]: capital of the bet on the CRPS after
    each of the last `horizon` forecasts, newest last.
    """

    def __init__(self, horizon: int, shape: tuple[int, ...] = ()) -> None:
        self.bands: Array = np.zeros(shape)
        self.excess: Array = np.zeros(shape)
        self.crps: Array = np.zeros((horizon, *shape))

    @property
    def horizon(self) -> int:
        """Number of steps of a forecast, and of overlapping forecasts."""
        return len(self.crps)

    def update(self, outcome: Outcome, limit: Limits, step_seconds: int) -> None:
        """Settle the bets on the next forecast in time, and add new money.

        A bet on step 1 is settled before the next bet. Bets on the CRPS overlap: the stake on a forecast is a share of
        the capital that was settled when the forecast was issued, `horizon` forecasts ago.
        """
        # New money is counted per time, not per forecast: a champion at 15m gets four times the bets of one at 1h,
        # and must not raise four times the false alarms.
        year = step_seconds / _YEAR_SECONDS
        odds = _odds(outcome.missed, limit.misses)
        self.bands = np.minimum((self.bands + FRESH["bands"] * year) * odds, MAX_CAPITAL)
        beyond = sum(np.asarray(outcome.missed[b], dtype=int) - outcome.ref_missed[b] for b in BANDS)
        odds = 1 + _EXCESS_STAKE * (beyond - limit.excess)
        self.excess = np.minimum((self.excess + FRESH["bands"] * year) * odds, MAX_CAPITAL)
        excess = (outcome.crps - limit.crps_ratio * outcome.ref_crps) / (_CRPS_UNIT * outcome.ref_width)
        # The capital of `horizon` forecasts ago: a stake must not know anything of this forecast's outcome, which
        # begins to show with the next candle.
        gain = self._stake(self.crps[0]) * np.clip(excess, -_CRPS_CLIP, _CRPS_CLIP)
        newest = np.minimum(self.crps[-1] + gain + FRESH["crps"] * year, MAX_CAPITAL)
        self.crps = np.concatenate([self.crps[1:], newest[None]])

    @property
    def evidence(self) -> dict[str, NDArray[np.float64]]:
        """The evidence by claim, `bands` (the smaller of both bets on misses) and `crps`.

        Stakes on unscored forecasts count as lost.
        """
        # Evidence must never be taken back: the worst outcome of the open bets is assumed, so a capital that is
        # reported is safe.
        open_stakes = self._stake(self.crps[:-1]).sum(axis=0)
        sure = np.maximum(self.crps[-1] - _CRPS_CLIP * open_stakes, 0)
        return {"bands": np.minimum(self.bands, self.excess), "crps": sure}

    def _stake(self, capital: Array) -> Array:
        return _CRPS_STAKE / self.horizon * capital


def _odds(missed: dict[int, Any], limit: dict[int, Any]) -> Array:
    """Return the factor on the capital: the outcome's likelihood under the alternative over that at the limit.

    The bands are nested, so an outcome is the number of missed bands. The ratio grows with it; its mean is 1 if every
    band is missed exactly as often as its limit allows, and lower if the bands are missed less often.
    """
    beyond = [1.0, *(limit[band] for band in BANDS), 0.0]  # probability that the move is outside each band
    number = sum(np.asarray(missed[band], dtype=int) for band in BANDS)
    odds = np.zeros(np.shape(number))
    for k, (inner, outer) in enumerate(pairwise(beyond)):
        ratio = (inner**NARROWED - outer**NARROWED) / (inner - outer)
        odds = np.where(number == k, ratio, odds)
    return odds
