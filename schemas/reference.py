"""The record `reference.json` of a model's folder: the random walk it is measured against, and what it promised.

Fitted by judging on the training origins alone, so that every later forecast of the model can be stored beside the
reference's for the same origin, and its live record compared with its test span.
"""

from collections.abc import Mapping

from pydantic import Field

from schemas.handover import Record
from schemas.identity import SeriesId

BANDS = (50, 80, 90)
"""Central bands whose coverage is promised, in per cent."""


class Promise(Record):
    """Figures of a model's test span. `n`: origins, neighbours overlapping.

    `crps_ratio` (model / reference, both mean losses over all steps) with its 95 % interval, `tail_ratio`: of the
    pinball losses at 5 and 95 %. `coverage`: share of closes within each band of `BANDS`, over all steps;
    `coverage_step_1`: at the first step alone, whose targets do not overlap.
    """

    n: int
    crps_ratio: float
    crps_ratio_low: float
    crps_ratio_high: float
    tail_ratio: float
    coverage: dict[int, float]
    coverage_step_1: dict[int, float] = Field(default_factory=dict)

    @classmethod
    def of(cls, metrics: Mapping[str, float], coverage_step_1: Mapping[int, float]) -> "Promise":
        """Return the promise in a member's metrics (`test_…`)."""
        return cls(
            n=int(metrics["test_n"]),
            crps_ratio=metrics["test_crps_ratio"],
            crps_ratio_low=metrics["test_crps_ratio_low"],
            crps_ratio_high=metrics["test_crps_ratio_high"],
            tail_ratio=metrics["test_tail_pinball_ratio"],
            coverage={band: metrics[f"test_coverage_{band}"] for band in BANDS},
            coverage_step_1=dict(coverage_step_1),
        )


class Reference(Record):
    """The reference of one model: random walk with EWMA volatility, fitted on the training origins of its series.

    `table` [H][19]: quantiles 0.05 … 0.95 of the cumulative log-return, in units of EWMA σ at the origin × √step.
    `decay`: λ of the EWMA. `origins`: how many the table is fitted on; `span`: open times (µs UTC) of the first and
    the last of them. `deciles`: per column that the model reads, the nine inner deciles over those origins, and
    `shares` [10], how many of the origins lie in each bin (bin i holds deciles[i - 1] <= x < deciles[i]): a tenth,
    unless values repeat, as hours do. `promised`: None where the model was never judged.
    """

    series: SeriesId
    table: tuple[tuple[float, ...], ...]
    decay: float
    origins: int
    span: tuple[int, int]
    deciles: dict[str, tuple[float, ...]]
    shares: dict[str, tuple[float, ...]]
    promised: Promise | None = None

    @property
    def horizon(self) -> int:
        """Number of steps ahead."""
        return len(self.table)
