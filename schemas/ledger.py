"""Records of how well models forecast: on their test span, and live.

`reference.json` in a model's folder: the reference random walk, and the model's test metrics. Judging fits the
reference on the training origins only. Each later forecast of the model can then be stored with the reference's
forecast for the same origin, and the live record can be compared with the test span.

`ledger/summary.json`: the live record for page, API and command line, a small file per market. Also what the steps
`score` and `watch` hand over.
"""

from collections.abc import Mapping
from datetime import date, datetime
from typing import ClassVar, Literal

from pydantic import Field

from schemas.base import Record
from schemas.failure import Failure
from schemas.identity import Market, SeriesId

BANDS = (50, 80, 90)
"""Central bands whose coverage is recorded, in per cent."""

Kind = Literal["pooled", "series", "version"]
"""Scope of an entry: all champions of a timeframe, the champions of a series, or a single version with its weights."""

TOO_FEW = "too few to tell"


class JudgedMetrics(Record):
    """Metrics of a model on its test span. `n`: number of origins; targets of neighbouring origins overlap.

    `crps_ratio`: model / reference, both mean losses over all steps, with its 95 % interval. `tail_ratio`: ratio of the
    pinball losses at 5 and 95 %. `coverage`: share of closes within each band of `BANDS`, over all steps;
    `coverage_step_1`: at the first step only, whose targets do not overlap; `reference_coverage_step_1`: of the
    reference's bands on the same origins.
    """

    n: int
    crps_ratio: float
    crps_ratio_low: float
    crps_ratio_high: float
    tail_ratio: float
    coverage: dict[int, float]
    coverage_step_1: dict[int, float] = Field(default_factory=dict)
    reference_coverage_step_1: dict[int, float] = Field(default_factory=dict)

    @classmethod
    def of(
        cls,
        metrics: Mapping[str, float],
        coverage_step_1: Mapping[int, float],
        reference_coverage_step_1: Mapping[int, float],
    ) -> "JudgedMetrics":
        """Return them from a member's metrics (`test_…`)."""
        return cls(
            n=int(metrics["test_n"]),
            **{f"crps_ratio{end}": metrics[f"test_crps_ratio{end}"] for end in ("", "_low", "_high")},
            tail_ratio=metrics["test_tail_pinball_ratio"],
            coverage={band: metrics[f"test_coverage_{band}"] for band in BANDS},
            coverage_step_1=dict(coverage_step_1),
            reference_coverage_step_1=dict(reference_coverage_step_1),
        )


class SettledMonth(Record):
    """A month of forecasts in which no row is left that could be scored.

    `forecasts`, `scores`: the numbers of rows in its files. `first`, `last`: its first origin and last target, UTC.
    `candles`: a digest of the stored candles of that time. It is opened again when one of them changes.
    """

    forecasts: int
    scores: int
    first: datetime
    last: datetime
    candles: str


class Settled(Record):
    """The settled months of a series, by name: `ledger/interval=1h/symbol=BTCUSDT/settled.json`."""

    months: dict[str, SettledMonth]


class Reference(Record):
    """The reference of a model: random walk with EWMA volatility, fitted on the training origins of its series.

    `table` [H][19]: quantiles 0.05 … 0.95 of the cumulative log-return, in units of EWMA σ at the origin × √step.
    `decay`: λ of the EWMA. `origins`: number of origins the table is fitted on; `span`: open times (µs UTC) of the
    first and the last origin. `promised`: None if the model was never judged.
    """

    version: ClassVar[int] = 2

    series: SeriesId
    table: tuple[tuple[float, ...], ...]
    decay: float
    origins: int
    span: tuple[int, int]
    promised: JudgedMetrics | None = None

    @property
    def horizon(self) -> int:
        """Number of steps ahead."""
        return len(self.table)


class LedgerEntry(Record):
    """Scores of the forecasts in a row of the live record. None: unknown, or the divisor is zero.

    `live`: forecasts made before their target candles closed; otherwise replays.

    `weights_sha256`: of a version's weights; "" if its rows do not name them, as those of before.

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
    weights_sha256: str = ""
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


class Score(Record):
    """The number of forecast rows scored after their candles closed, and the series that could not be scored."""

    rows: int = 0
    failures: tuple[Failure, ...] = ()


class Alarm(Record):
    """Result of the drift watch for a champion.

    `state`: `fine`; `watch` (some evidence); `drifted`. `evidence`: by claim, summed:
    `bands` (misses at step 1) and `crps`; the champion has drifted once the sum reaches `threshold`, at time `since`.
    `forecasts`: how many forecasts were used.
    """

    series: SeriesId
    state: Literal["fine", "watch", "drifted"]
    reason: str
    model_version: str
    evidence: dict[str, float]
    threshold: float
    forecasts: int = 0
    since: datetime | None = None

    @property
    def total(self) -> float:
        """Sum of the evidence over all claims."""
        return sum(self.evidence.values())

    def __str__(self) -> str:
        """Return the alarm as a sentence."""
        since = f" since {self.since:%Y-%m-%d %H:%M} UTC" if self.since else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.series} is {self.state}{since}{why}"


class Watching(Record):
    """Results of the drift watch for all champions, and the series that could not be checked."""

    alarms: tuple[Alarm, ...] = ()
    failures: tuple[Failure, ...] = ()
