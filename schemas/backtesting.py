"""Options of `cpb backtest`."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from schemas.base import names_in
from schemas.errors import UsageError
from schemas.fleets import base_of
from schemas.run import RunSpec

BASELINES = ("random-walk", "robust-har")
"""Baselines that a backtest can compare the models with."""


class BacktestSpec(RunSpec):
    """Options of `cpb backtest` in addition to those of a run."""

    timeframes: str = Field("1h", description="Binance intervals, as in 15m,1h")
    folds: int = Field(4, ge=1, le=24, description="test periods, the newest last")
    baselines: str = Field("random-walk,robust-har", description=f"any of {', '.join(BASELINES)}")
    check_lookahead: bool = Field(False, description="recompute everything without the future")
    out: str | None = Field(
        None, description="folder for tables, verdicts, forecast rows and the report; default: none"
    )
    gate: bool = Field(
        False,
        description="submit the recipes to the gate: the best that passes replaces the champions' at the next training",
    )
    trials: int = Field(
        1, ge=1, description="with --gate: the search trials on these candles that each recipe is the best of"
    )

    @field_validator("baselines")
    @classmethod
    def _known_baselines(cls, text: str) -> str:
        if unknown := [name for name in names_in(text) if name not in BASELINES]:
            raise UsageError(
                f"baselines {text!r}: unknown {', '.join(unknown)}; choose from {', '.join(BASELINES)}",
                code="baselines",
            )
        return text

    @model_validator(mode="after")
    def _only_what_folds_can_judge(self) -> Self:
        import cpbmodels

        names = dict.fromkeys(fleet.architecture for fleet in self.fleets)
        # classes have no quantiles: neither CRPS nor a baseline's forecast to set beside them
        if classifiers := [name for name in names if cpbmodels.architecture(base_of(name)).classifier]:
            raise UsageError(
                f"architectures: a backtest judges forecasts of prices; leave {', '.join(classifiers)} out",
                code="classifier",
                field="architectures",
            )
        return self

    @model_validator(mode="after")
    def _only_what_the_gate_can_judge(self) -> Self:
        # a switch is of one timeframe, and its evidence is pooled over that one's coins
        if self.gate and len(self.intervals) != 1:
            raise UsageError("gate: it decides on one timeframe; name one", code="gate", field="timeframes")
        if self.trials > 1 and not self.gate:
            raise UsageError("trials: only the gate counts them; add --gate", code="gate", field="trials")
        return self

    @property
    def baseline_names(self) -> tuple[str, ...]:
        """The baselines to judge, without duplicates."""
        return names_in(self.baselines)
