"""`line`, `walk` and `average`: the parts of the default model beside `har`.

`line` is the robust HAR on all columns (`cpbmodels.data.wide`), pooled, of the last two years; in closed form. Alone it
scores like `har` (docs/log.md); its errors differ from `har`'s, so the mean of both is better. It learns from the last
24 months (27 at candles under an hour) and takes its quantiles from the last 12: all history since 2020 was worse by
.0009, quantiles of 60 days by .0016. A forecast from one coin's candles alone has no columns of the market. Each of
them is then replaced by its linear forecast from the coin's own columns, fitted on the training origins.

`walk` is a small network that starts at the `line` and learns what the line misses of the scale and of the tails. Per
step it adds to the line's log-scale and bends its quantiles: a positive bend widens the tails against the middle. With
`location_share` it also learns a location per step, of which a forecast keeps that share, within `MAX_LOCATION`. Half
of it lowered the CRPS on past data, and on later data at 15m; at 1h, where it failed later, the preset `default` has
none. The walk learns for a fixed number of steps, a few seconds, so it needs no validation; two copies with seeds of
their own are averaged within the model.

    loss      pinball of the 19 levels in units of sigma sqrt(h), weighted by (sigma / the coin's mean)^.5
    limits    standardised inputs at 4, targets at 8
    steps     350 of 1,024 windows, on few candles no more than four passes: AdamW 1e-3, decay .01, warm-up over 50,
              then cosine; weights averaged at .02 a step

`average` has models of other architectures as members, and their mean quantiles. Each is trained as it would be alone,
with the same preset, seeds and scope. Models whose errors differ lose when averaged less than each: `har` and `walk`
together score .1 % better than `har` (docs/log.md). Mean quantiles ascend like each member's, and the mean of valid
median candles is a valid candle whose close is the mean median.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from cpbmodels.arch import find
from cpbmodels.arch.base import Architecture, ArchitectureSpec, Batch
from cpbmodels.arch.har import FITTED, HAR_COLUMNS, OfOneCandle, fitted_weights, with_candle
from cpbmodels.arch.heads import BENDING_BY_LEVEL, COPIES, MAX_BEND, bent, outputs_of_copy
from cpbmodels.arch.layers import Draws, Layout, Param, Weights, embed, linear, linear_params
from cpbmodels.arch.options import SIZES, Preset
from cpbmodels.arch.task import MemberData
from cpbmodels.data.ranges import RangeModel, TrainingOrigins, fit_ranges, solve_ridge
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.data.wide import MARKET_COLUMNS, NO_MARKET, OWN_COLUMNS, QUARTER, QUARTERS_PER_DAY
from cpbmodels.errors import ModelError

DAY_US = 86_400_000_000
DAYS, DAYS_WITHIN_THE_HOUR, SHAPE_DAYS = 730, 822, 365
OWN = (*HAR_COLUMNS, *OWN_COLUMNS)
FEATURES = (*OWN, *MARKET_COLUMNS, NO_MARKET, QUARTER)

WIDTH = 64
INPUT_CLIP, TARGET_CLIP, WEIGHT_POWER, MAX_PASSES = 4.0, 8.0, 0.5, 4
LEVELS, BENDING = (torch.as_tensor(values).float() for values in (QUANTILES, BENDING_BY_LEVEL))
STEPS, BATCH, RATE_WARMUP, RATE, DECAY, AVERAGING = 350, 1024, 50, 1e-3, 0.01, 0.02
AVERAGE = "average"


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
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        return self.line(self.columns(batch, w), batch.inputs[..., -1, -1], w)

    def columns(self, batch: Batch, w: Weights) -> Tensor:
        """[K, B, D]: the own columns, and the market's columns or their forecast from the own columns."""
        coin, market, unknown, _ = batch.inputs.flatten(2).split([len(OWN), len(MARKET_COLUMNS), 1, 1], -1)
        return torch.cat([coin, torch.where(unknown > 0.5, linear(coin, w, "market"), market)], -1)

    def line(self, columns: Tensor, quarter: Tensor, w: Weights) -> Tensor:
        """[K, B, H, 4]: open, log-scale, high and low, from columns [K, B, D] and the quarter's code [K, B]."""
        return with_candle(linear(columns, w, "out") + embed(quarter, w["quarter"]), w)

    @override
    def solve(self, data: MemberData) -> dict[str, np.ndarray]:
        return self.solved(*self.fitted(data))

    def fitted(self, data: MemberData) -> tuple[RangeModel, TrainingOrigins]:
        """The line, and the origins it was fitted on."""
        origins = data.origins()
        market = [(series, rows[series.columns((NO_MARKET,))[rows, 0] == 0]) for series, rows in origins]
        if any(len(rows) for _, rows in market):  # origins whose market is known, unless it is known for none
            origins = market
        training = last_days(origins, DAYS, DAYS_WITHIN_THE_HOUR)
        options, names = self.options, (*OWN, *MARKET_COLUMNS)
        # Twelve months of the twenty-four: quantiles of 60 days were worse by .0016.
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
    times = [
        series.times[origins] for series, origins in training if series.times is not None and len(origins)
    ]
    if not times or any(series.times is None for series, _ in training):
        return training
    span = days if training[0][0].step_seconds >= 3600 else days_within_the_hour
    first = max(int(instants[-1]) for instants in times) - span * DAY_US
    return [
        (series, origins[series.times[origins] >= first])
        for series, origins in training
        if series.times is not None
    ]


def _market_from_own(model: RangeModel, training: TrainingOrigins) -> np.ndarray:
    """[1 + own, market]: intercept and slopes of each market column on the own columns, by ridge regression."""
    coin, market = 1 + len(OWN), len(MARKET_COLUMNS)
    gram, moment = np.zeros((coin, coin)), np.zeros((coin, market))
    for series, origins in training:
        rows = model.inputs(series)[origins]
        design = np.column_stack([np.ones(len(rows)), rows[:, : len(OWN)]])
        gram += design.T @ design
        moment += design.T @ rows[:, len(OWN) :]
    return solve_ridge(gram, moment)


class Walk(Line):
    """The line, and `COPIES` perceptrons on its standardised columns."""

    spec = replace(
        Line.spec,
        sizes=("location_share",),
        fixed={**Line.spec.fixed, "head": "bent"},
        by_timeframe={("default", "15m"): {"location_share": 0.5}},
    )

    @override
    def params(self) -> list[Param]:
        inputs = len(OWN) + len(MARKET_COLUMNS)
        scaling = [Param("walk.mean", (1, inputs)), Param("walk.inverse", (1, inputs))]
        return [*super().params(), *scaling, *(p for copy in range(COPIES) for p in self._network(copy))]

    def _network(self, copy: int) -> list[Param]:
        return [
            *linear_params(f"walk.{copy}.first", len(OWN) + len(MARKET_COLUMNS), WIDTH),
            *linear_params(f"walk.{copy}.second", WIDTH, WIDTH),
            *linear_params(
                f"walk.{copy}.out", WIDTH, outputs_of_copy(self.options) * self.head.steps, bound=0.01
            ),
        ]

    @override
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        columns = self.columns(batch, w)
        inputs = ((columns - w["walk.mean"]) * w["walk.inverse"]).clamp(-INPUT_CLIP, INPUT_CLIP)
        added = [_added(inputs, w, copy, self.head.steps) for copy in range(COPIES)]
        return torch.cat([self.line(columns, batch.inputs[..., -1, -1], w), *added], -1)

    @override
    def solve(self, data: MemberData) -> dict[str, np.ndarray]:
        model, training = self.fitted(data)
        mean, inverse = _scaling(model, training)
        weights = self.solved(model, training) | {"walk.mean": mean[None], "walk.inverse": inverse[None]}
        for copy in range(COPIES):
            layout = Layout(tuple(self._network(copy)))
            windows = _windows(model, training, mean, inverse, seed=copy + 1)
            weights |= _learn(layout, windows, torch.as_tensor(model.table).float(), copy)
        return weights


def _added(inputs: Tensor, w: Weights, copy: int, steps: int) -> Tensor:
    """What a copy adds to the log-scale, its bend, and its location if it learns one: [K, B, H, 2 or 3] from inputs
    [K, B, D]."""
    x = F.gelu(linear(inputs, w, f"walk.{copy}.first"))
    x = F.gelu(linear(x, w, f"walk.{copy}.second"))
    return linear(x, w, f"walk.{copy}.out").unflatten(-1, (steps, -1))


def _scaling(model: RangeModel, training: TrainingOrigins) -> tuple[np.ndarray, np.ndarray]:
    """Mean and inverse standard deviation [D] of the columns at the training origins; 1 for a constant column."""
    count, total, squares = 0, np.zeros(len(model.names)), np.zeros(len(model.names))
    for series, origins in training:
        rows = model.inputs(series)[origins]
        count, total, squares = count + len(rows), total + rows.sum(0), squares + (rows**2).sum(0)
    mean = total / count
    spread = np.sqrt(np.maximum(squares / count - mean**2, 0))
    # The sums' difference rounds: a constant column has a spread of about 1e-8, which must not become a factor.
    return mean, np.where(spread > 1e-6, 1 / np.maximum(spread, 1e-6), 1.0)


def _windows(
    model: RangeModel, training: TrainingOrigins, mean: np.ndarray, inverse: np.ndarray, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The windows that one copy sees, in its order: inputs [N, D], the line's log-scale [N, H], targets [N, H] and
    weights [N, 1], float32. N is a multiple of BATCH; origins repeat after all were drawn."""
    counts = [len(origins) for _, origins in training]
    random = np.random.default_rng(seed)
    needed = min(STEPS, -(-MAX_PASSES * sum(counts) // BATCH)) * BATCH
    passes = -(-needed // sum(counts))
    drawn = np.concatenate([random.permutation(sum(counts)) for _ in range(passes)])[:needed]
    # `drawn` counts all origins through; the owner is the series in whose share a number lies.
    owner = np.searchsorted(np.cumsum(counts), drawn, side="right")
    first = np.cumsum([0, *counts])
    steps = np.arange(1, len(model.level) + 1)
    inputs = np.empty((needed, len(model.names)), np.float32)
    base, targets = (np.empty((needed, len(steps)), np.float32) for _ in range(2))
    weight = np.empty((needed, 1), np.float32)
    for index, (series, origins) in enumerate(training):
        at = np.flatnonzero(owner == index)
        if not len(at):  # a coin without an origin in these years
            continue
        rows = origins[drawn[at] - first[index]]
        sigma, close = series.volatility[rows][:, None], np.log(series.prices[:, 3])
        inputs[at] = ((model.inputs(series)[rows] - mean) * inverse).clip(-INPUT_CLIP, INPUT_CLIP)
        base[at] = np.log(model.scale(series, rows) / (sigma * np.sqrt(steps)))
        moves = close[rows[:, None] + steps] - close[rows][:, None]
        targets[at] = (moves / (sigma * np.sqrt(steps))).clip(-TARGET_CLIP, TARGET_CLIP)
        weight[at] = (sigma / series.volatility[origins].mean()) ** WEIGHT_POWER
    return (
        torch.from_numpy(inputs),
        torch.from_numpy(base),
        torch.from_numpy(targets),
        torch.from_numpy(weight),
    )


@torch.enable_grad()
def _learn(
    layout: Layout, windows: tuple[Tensor, Tensor, Tensor, Tensor], table: Tensor, copy: int
) -> Mapping[str, np.ndarray]:
    """The averaged weights of one copy by name, without the member axis."""
    row = torch.as_tensor(layout.initial(copy + 1)).float()[None].requires_grad_()  # [1, P]
    averaged = row.detach().clone()
    optimizer, steps = torch.optim.AdamW([row], lr=RATE, weight_decay=DECAY), len(windows[0]) // BATCH
    for step, (inputs, base, targets, weight) in enumerate(
        zip(*(tensor.split(BATCH) for tensor in windows), strict=True)
    ):
        rise, fall = (
            (step + 1) / RATE_WARMUP,
            0.5 + 0.5 * math.cos(math.pi * (step - RATE_WARMUP) / max(steps - RATE_WARMUP, 1)),
        )
        optimizer.param_groups[0]["lr"] = RATE * (rise if step < RATE_WARMUP else fall)
        added = _added(inputs[None], layout.views(row), copy, base.shape[-1])[0]  # [B, H, 2 or 3]
        optimizer.zero_grad()
        added.backward(_gradient(added.detach(), base, targets, weight, table))
        optimizer.step()
        # The mean over about 1 / .02 = 50 steps: the noise of the last batches cancels.
        averaged.lerp_(row.detach(), AVERAGING)
    return {name: view[0].double().numpy() for name, view in layout.views(averaged).items()}


def _gradient(added: Tensor, base: Tensor, targets: Tensor, weight: Tensor, table: Tensor) -> Tensor:
    """[B, H, 2 or 3]: of the mean weighted pinball loss by what a copy adds; autograd took three times as long.

    A quantile is location + q, q = table exp(base + a + bend x bending), so its derivative is q by a, q x bending by
    bend, where that is inside its limits, and 1 by the location; the pinball loss of level p has 1[y < quantile] - p.
    """
    q = bent(base + added[..., 0], added[..., 1], table)  # [B, H, L]
    location = added[..., 2:].sum(-1, keepdim=True)  # [B, H, 1], 0 without one
    below = targets[..., None] < q + location
    by_quantile = torch.where(below, 1 - LEVELS, -LEVELS)
    slope = by_quantile * q
    bend = (slope @ BENDING) * (added[..., 1].abs() < MAX_BEND)
    of = [slope.sum(-1), bend, by_quantile.sum(-1)][: added.shape[-1]]
    return torch.stack(of, -1) * (weight / targets.numel() / len(LEVELS))[..., None]


class Average(Architecture):
    """Has no weights of its own: every member has those of its architecture."""

    spec = ArchitectureSpec(sizes=SIZES, defaults={"context": 1, "members": ("har", "walk")})

    @override
    @classmethod
    def conflict(cls, name: str, options: Preset) -> str:
        if len(options.members) < 2 or AVERAGE in options.members:
            return f"members of {name} must be two or more other architectures, as in har,walk."
        if any(find(member).is_classifier() for member in options.members):
            return f"members of {name} must forecast prices: leave out classifiers."
        return ""

    @override
    def params(self) -> list[Param]:
        return []

    @override
    def forward(self, batch: Batch, w: dict[str, Tensor], draws: Draws | None) -> Tensor:
        raise ModelError("an average has no outputs of its own: forecast with its members.")


def combined(options: Preset, members: list[Preset]) -> Preset:
    """The options of an average, as what it reads: every member's columns and the longest context."""
    return replace(
        options,
        context=max(member.context for member in members),
        features=tuple(dict.fromkeys(name for member in members for name in member.features)),
        calendar=next((member.calendar for member in members if member.calendar), ""),
    )
