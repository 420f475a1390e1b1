"""`line`: the robust HAR on all columns (`cpbmodels.data.wide`), pooled, of the last two years; in closed form.

Alone it scores like `har` (docs/log.md); its errors differ from `har`'s, so the mean of both is better
(`average`). It learns from the last 24 months (27 at candles under an hour) and takes its quantiles from the last 12:
all history since 2020 was worse by .0009, quantiles of 60 days by .0016.

A forecast from one coin's candles alone has no columns of the market. Each is then replaced by its linear forecast from
the coin's own columns, fitted on the training origins: what the line would have been without columns of the market.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.base import ArchitectureSpec, Batch, MemberData
from cpbmodels.arch.draws import Draws
from cpbmodels.arch.har import FITTED, HAR_COLUMNS, OfOneCandle, fitted_weights, with_candle
from cpbmodels.arch.layers import Param, embed, linear, linear_params
from cpbmodels.arch.layers import Weights as Views
from cpbmodels.arch.options import Preset
from cpbmodels.data.ranges import RangeModel, TrainingOrigins, fit_ranges, solve_ridge
from cpbmodels.data.wide import MARKET_COLUMNS, NO_MARKET, OWN_COLUMNS, QUARTER, QUARTERS_PER_DAY

DAY_US = 86_400_000_000
DAYS, DAYS_WITHIN_THE_HOUR, SHAPE_DAYS = 730, 822, 365
OWN = (*HAR_COLUMNS, *OWN_COLUMNS)
FEATURES = (*OWN, *MARKET_COLUMNS, NO_MARKET, QUARTER)


class Line(OfOneCandle):
    """One linear map to the log of the coming range, the hour of the week and the quarter of the day."""

    spec = ArchitectureSpec(
        defaults={"features": FEATURES, "calendar": "hour_of_week_ny", "input_clip": 100.0},
        fixed=FITTED,
        closed_form=True,
    )

    @override
    @classmethod
    def conflict(cls, name: str, options: Preset) -> str:
        if options.features != FEATURES or not options.calendar:
            return f"features and calendar define {name}: leave them out, or choose robust-har."
        return super().conflict(name, options)

    @override
    def params(self) -> list[Param]:
        steps = self.head.steps
        return [
            *linear_params("out", len(OWN) + len(MARKET_COLUMNS), steps, bound=0),
            *linear_params("market", len(OWN), len(MARKET_COLUMNS), bound=0),
            Param("quarter", (QUARTERS_PER_DAY, steps)),
            Param("candle", (3, steps)),  # open, high, low in units of the scale
        ]

    @override
    def forward(self, batch: Batch, w: Views, draws: Draws | None) -> Tensor:
        return self.line(self.columns(batch, w), batch.inputs[..., -1, -1], w)

    def columns(self, batch: Batch, w: Views) -> Tensor:
        """[K, B, D]: the own columns, and the market's columns or their forecast from the own columns."""
        own, market, unknown, _ = batch.inputs.flatten(2).split([len(OWN), len(MARKET_COLUMNS), 1, 1], -1)
        return torch.cat([own, torch.where(unknown > 0.5, linear(own, w, "market"), market)], -1)

    def line(self, columns: Tensor, quarter: Tensor, w: Views) -> Tensor:
        """[K, B, H, 4]: open, log-scale, high and low, from columns [K, B, D] and the quarter's code [K, B]."""
        return with_candle(linear(columns, w, "out") + embed(quarter, w["quarter"]), w)

    @override
    def solve(self, data: MemberData) -> dict[str, np.ndarray]:
        return self.solved(*self.fitted(data))

    def fitted(self, data: MemberData) -> tuple[RangeModel, TrainingOrigins]:
        """The line, and the origins it was fitted on."""
        training = last_days(_with_market(data.origins()), DAYS, DAYS_WITHIN_THE_HOUR)
        options, names = self.options, (*OWN, *MARKET_COLUMNS)
        shape = last_days(training, SHAPE_DAYS, SHAPE_DAYS)
        model = fit_ranges(
            training, names, options.calendar, options.horizon, options.input_clip, QUARTER, shape
        )
        return model, training

    def solved(self, model: RangeModel, training: TrainingOrigins) -> dict[str, np.ndarray]:
        """The weights of a fitted line by name."""
        market = _market_from_own(model, training)
        return fitted_weights(model) | {
            "market.weight": market[1:],
            "market.bias": market[:1],
            "quarter": model.quarters,
            "calendar": model.hours,
        }


def last_days(training: TrainingOrigins, days: int, days_within_the_hour: int) -> TrainingOrigins:
    """The origins of the last days before the newest origin; all origins of a series without times."""
    times = [one.times[origins] for one, origins in training if one.times is not None and len(origins)]
    if not times or any(one.times is None for one, _ in training):
        return training
    span = days if training[0][0].step_seconds >= 3600 else days_within_the_hour
    first = max(int(own[-1]) for own in times) - span * DAY_US
    return [(one, origins[one.times[origins] >= first]) for one, origins in training if one.times is not None]


def _with_market(training: TrainingOrigins) -> TrainingOrigins:
    """The origins whose market is known; all origins if it is known for none."""
    known = [(one, origins[one.columns((NO_MARKET,))[origins, 0] == 0]) for one, origins in training]
    return known if any(len(origins) for _, origins in known) else training


def _market_from_own(model: RangeModel, training: TrainingOrigins) -> np.ndarray:
    """[1 + own, market]: intercept and slopes of each market column on the own columns, by ridge regression."""
    own, market = 1 + len(OWN), len(MARKET_COLUMNS)
    gram, moment = np.zeros((own, own)), np.zeros((own, market))
    for one, origins in training:
        rows = model.inputs(one)[origins]
        design = np.column_stack([np.ones(len(rows)), rows[:, : len(OWN)]])
        gram += design.T @ design
        moment += design.T @ rows[:, len(OWN) :]
    return solve_ridge(gram, moment)
