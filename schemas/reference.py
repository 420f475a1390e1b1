"""The record `reference.json` in a model's folder: the reference random walk, and the model's test metrics.

Judging fits the reference on the training origins only. Each later forecast of the model can then be stored with the
reference's forecast for the same origin, and the live record can be compared with the test span.
"""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from schemas.handover import Record
from schemas.identity import SeriesId

BANDS = (50, 80, 90)
"""Central bands whose coverage is recorded, in per cent."""


class Promise(Record):
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
        cls, metrics: Mapping[str, float], coverage_step_1: Mapping[int, float],
        reference_coverage_step_1: Mapping[int, float],
    ) -> "Promise":  # fmt: skip
        """Return the promise from a member's metrics (`test_…`)."""
        return cls(
            n=int(metrics["test_n"]),
            crps_ratio=metrics["test_crps_ratio"],
            crps_ratio_low=metrics["test_crps_ratio_low"],
            crps_ratio_high=metrics["test_crps_ratio_high"],
            tail_ratio=metrics["test_tail_pinball_ratio"],
            coverage={band: metrics[f"test_coverage_{band}"] for band in BANDS},
            coverage_step_1=dict(coverage_step_1),
            reference_coverage_step_1=dict(reference_coverage_step_1),
        )


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
    promised: Promise | None = None

    @property
    def horizon(self) -> int:
        """Number of steps ahead."""
        return len(self.table)
