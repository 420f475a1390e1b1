"""The live record as stored for the web page, the API and the command line: a small file per market."""

from datetime import date, datetime
from typing import Literal

from schemas.handover import Record
from schemas.identity import Market

Kind = Literal["pooled", "recipe", "series", "version"]
"""Scope of an entry: all champions of a timeframe, the champions of a recipe or of a series, or a single version."""

TOO_FEW = "too few to tell"


class LedgerEntry(Record):
    """Scores of the forecasts in a row of the live record. None: unknown, or the divisor is zero.

    `recipe`: for entries of a version or recipe, `har/default/3f9a12c0d4e5`; "" if the version was issued before
    recipes were stored. `live`: forecasts made before their target candles closed; otherwise replays.

    `first`, `last`: UTC days of issue. `days`: number of complete days, scored to the last step; only complete days
    count in `crps_ratio` and its anytime-valid 95 % interval, which exists only if there are enough of them
    (`verdict`). `rows`: scored steps of the `forecasts` forecasts; `crps` and `ref_crps` are the means over these rows
    for the model and the reference (in log-return; None in entries of several coins, whose ratio is of losses in units
    of the reference's width at the origin). `tail_ratio`: ratio of the pinball losses at 5 and 95 %. `coverage_N`:
    share of closes within the central band of N %, `ref_coverage_N`: the same for the reference.
    `directional_accuracy`: share of moves whose sign the median predicted.
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
        """The verdict from the interval: better or worse than the random walk, no different, or too few to tell."""
        if self.crps_ratio_low is None or self.crps_ratio_high is None:
            return TOO_FEW
        if self.crps_ratio_high < 1:
            return "better than the random walk"
        return "worse than the random walk" if self.crps_ratio_low > 1 else "no different so far"


class LedgerSummary(Record):
    """The live record of a market, computed from the daily sums of all its series at `made_at` (UTC)."""

    market: Market
    made_at: datetime
    entries: tuple[LedgerEntry, ...] = ()


class KnownVersions(Record):
    """The recipe of each version that has issued forecasts of a series."""

    recipes: dict[str, str]
