"""A small perceptron that walks from a solved line: `research.columns` asks how much the line misses.

It adds to the line's log-scale of each step and bends the line's quantiles: a shape widens or narrows the tails against
the middle, and if asked a lean widens the upper half against the lower. There is no location. It starts as the line
exactly, learns for a fixed number of steps, and the weights of the second half of the steps are averaged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cpbmodels.arch.heads import pinball
from cpbmodels.data.ranges import RangeModel, TrainingOrigins
from cpbmodels.data.series import Series
from cpbmodels.data.student_t import QUANTILES
from tasks.judging.baselines import Rows, realised, step_scale
from tasks.judging.scores import Array

STEPS = len(QUANTILES)
INPUT_CLIP, TARGET_CLIP, MAX_LOG_SCALE, MAX_BEND = 4.0, 20.0, 3.0, 0.5
BATCH, WIDTH, EVERY, WARM_STEPS, LINE_RATE, MAX_WEIGHT = 1024, 64, 5, 20, 1e-4, 5.0
PLACES = "quarter_of_day_"  # columns for the line alone

TAIL = torch.as_tensor(
    np.abs(np.arange(STEPS) - STEPS // 2) * 4 / (STEPS - 1) - 1
).float()  # -1 middle .. 1 ends
SIDE = torch.as_tensor(np.sign(np.arange(STEPS) - STEPS // 2)).float()
LEVELS = torch.as_tensor(QUANTILES).float()


@dataclass(frozen=True)
class Walk:
    """How far it walks: `lean` bends the halves apart as well; the forecasts of the `seeds` are averaged.

    `in_returns`: the loss is in log-return, as the score is, and not in units of the volatility.
    """

    steps: int
    rate: float
    lean: bool = False
    in_returns: bool = False
    seeds: tuple[int, ...] = (1, 2, 3)


class _Net(torch.nn.Module):
    def __init__(self, line: RangeModel, mean: Array, spread: Array, walk: Walk) -> None:
        super().__init__()
        free = torch.tensor([not name.startswith(PLACES) for name in line.names])
        horizon, self.outputs = len(line.level), 3 if walk.lean else 2
        self.register_buffer("free", free)
        self.first = torch.nn.Linear(int(free.sum()), WIDTH)
        self.second = torch.nn.Linear(WIDTH, WIDTH)
        self.out = torch.nn.Linear(WIDTH, self.outputs * horizon)
        torch.nn.init.zeros_(self.out.weight)
        torch.nn.init.zeros_(self.out.bias)
        self.slopes = _weight(line.slopes * spread[:, None])
        self.level = _weight(line.level + mean @ line.slopes)
        self.hours = _weight(line.hours)
        self.register_buffer("table", torch.as_tensor(line.table).float())

    def forward(self, inputs: Tensor, hours: Tensor) -> Tensor:
        """Quantiles [B, H, 19] in units of the volatility x sqrt(step)."""
        x = inputs[:, self.free].clamp(-INPUT_CLIP, INPUT_CLIP)
        x = F.gelu(self.second(F.gelu(self.first(x))))
        added, *bends = self.out(x).view(len(x), self.outputs, -1).unbind(1)
        scale = inputs @ self.slopes + self.level + self.hours[hours] + added
        exponent = scale.clamp(-MAX_LOG_SCALE, MAX_LOG_SCALE).unsqueeze(-1)
        for bend, along in zip(bends, (TAIL, SIDE), strict=False):
            exponent = exponent + bend.clamp(-MAX_BEND, MAX_BEND).unsqueeze(-1) * along
        return torch.exp(exponent) * self.table


def fit_walk(line: RangeModel, training: TrainingOrigins, walk: Walk) -> Callable[[Series, Rows], Array]:
    """Learn on the origins the line was solved on; return what forecasts quantiles [N, H, 19] of the log-return."""
    inputs = np.concatenate([line.inputs(one)[rows] for one, rows in training])
    mean, spread = inputs.mean(axis=0), inputs.std(axis=0)
    places = np.array([name.startswith(PLACES) for name in line.names]) | (spread < 1e-9)
    mean, spread = np.where(places, 0, mean), np.where(places, 1, spread)
    scaled = torch.as_tensor((inputs - mean) / spread, dtype=torch.float32)
    hours = torch.as_tensor(np.concatenate([line.hour(one, rows) for one, rows in training]))
    horizon = len(line.level)
    moves = [realised(one, rows, horizon) / step_scale(one, rows, horizon) for one, rows in training]
    truth = torch.as_tensor(np.concatenate(moves), dtype=torch.float32).clamp(-TARGET_CLIP, TARGET_CLIP)
    sizes = np.concatenate([step_scale(one, rows, horizon) for one, rows in training])
    weight = (
        torch.as_tensor(sizes / sizes.mean(axis=0), dtype=torch.float32).clamp(max=MAX_WEIGHT).unsqueeze(-1)
    )
    known = (scaled, hours, truth, weight if walk.in_returns else torch.ones_like(weight))
    nets = []
    for seed in walk.seeds:
        torch.manual_seed(seed)
        nets.append(_learn(_Net(line, mean, spread, walk), known, walk, seed))

    def quantiles(one: Series, rows: Rows) -> Array:
        own = torch.as_tensor((line.inputs(one)[rows] - mean) / spread, dtype=torch.float32)
        codes = torch.as_tensor(line.hour(one, rows))
        with torch.no_grad():
            found = torch.stack([net(own, codes) for net in nets]).mean(0)
        return found.double().numpy() * step_scale(one, rows, horizon)[..., None]

    return quantiles


def _learn(net: _Net, known: tuple[Tensor, Tensor, Tensor, Tensor], walk: Walk, seed: int) -> _Net:
    inputs, hours, truth, weight = known
    own = [net.slopes, net.level, net.hours]
    rest = [weight for name, weight in net.named_parameters() if "." in name]
    optimizer = torch.optim.AdamW(
        [
            {"params": rest, "lr": walk.rate, "weight_decay": 1e-2},
            {"params": own, "lr": LINE_RATE, "weight_decay": 0.0},
        ]
    )
    rise = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / WARM_STEPS))
    average = torch.optim.swa_utils.AveragedModel(net)
    for step, rows in enumerate(islice(_batches(len(truth), seed), walk.steps), 1):
        error = truth[rows].unsqueeze(-1) - net(inputs[rows], hours[rows])
        optimizer.zero_grad()
        (2 * (pinball(error, LEVELS) * weight[rows]).mean()).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        rise.step()
        if step > walk.steps / 2 and step % EVERY == 0:
            average.update_parameters(net)
    module: _Net = average.module
    return module


def _batches(count: int, seed: int) -> Any:
    random = np.random.default_rng(seed)
    while True:
        order = torch.as_tensor(random.permutation(count))
        yield from (part for part in order.split(BATCH) if len(part) == BATCH or count < BATCH)


def _weight(values: Array) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.as_tensor(values, dtype=torch.float32))
