"""The live record as it is kept for page, API and command line: one small file for each market."""

from datetime import date, datetime
from typing import Literal

from schemas.handover import Record
from schemas.identity import Market

Kind = Literal["pooled", "recipe", "series", "version"]
"""What an entry is about: all champions of a timeframe, those of one recipe, those of one series, or one version."""

TOO_FEW = "too few to tell"


class LedgerEntry(Record):
    """What came true of some forecasts, those of one row of the record. None: not known, or nothing to divide by.

    `recipe`: of a version's or recipe's entry, `har/default/3f9a12c0d4e5`; "" where the version was issued before it
    was kept. `live`: made before the candles closed that they are about; else replays.

    `first`, `last`: UTC days of issue. `days`: how many of them are complete, that is scored to the last step; only
    these count in `crps_ratio` and its anytime-valid 95 % interval, and only while there are enough of them is there an
    interval (`verdict`). `rows`: scored steps, of so many `forecasts`; `crps` and `ref_crps` are their means for the
    model and for the reference (in log-return; None in entries of several coins, whose ratio is of losses in units of
    the reference's width at the origin). `tail_ratio`: of the pinball losses at 5 and 95 %. `coverage_N`: share of
    closes within the central band of N %, `ref_coverage_N`: that of the reference. `directional_accuracy`: share of
    moves whose sign the median had.
    """

    kind: Kind
    timeframe: str
    symbol: str = ""
    role: str = ""
    model_version: str = ""
    recipe: str = ""
    live: bool

    first: date
    last: date
    days: int
    forecasts: int
    rows: int
    crps: float | None
    ref_crps: float | None
    crps_ratio: float | None
    crps_ratio_low: float | None
    crps_ratio_high: float | None
    tail_ratio: float | None
    coverage_50: float
    coverage_80: float
    coverage_90: float
    ref_coverage_50: float | None
    ref_coverage_80: float | None
    ref_coverage_90: float | None
    directional_accuracy: float | None

    @property
    def verdict(self) -> str:
        """What the interval says: better or worse than the random walk, no different so far, or too few to tell."""
        if self.crps_ratio_low is None or self.crps_ratio_high is None:
            return TOO_FEW
        if self.crps_ratio_high < 1:
            return "better than the random walk"
        return "worse than the random walk" if self.crps_ratio_low > 1 else "no different so far"


class LedgerSummary(Record):
    """The live record of a market, made from the daily sums of all its series at `made_at` (UTC)."""

    market: Market
    made_at: datetime
    entries: tuple[LedgerEntry, ...] = ()


class DailyState(Record):
    """Of which month files a series' daily sums are: `months` maps each to the digests of its forecasts and scores.

    `digest`: sha256 of the file with the sums.
    """

    digest: str
    months: dict[str, tuple[str, str]]


class KnownVersions(Record):
    """The recipe of each version that has issued forecasts of a series."""

    recipes: dict[str, str]
