"""Heads: what the raw outputs of an architecture mean. Raw is [K, B, H, size]; units are volatility x sqrt(step).

K members, B windows, H steps, L = 19 quantile levels. Targets y are [K, B, H, 4]: ln(open, high, low, close / last
close) in those units. A head's open is free; its high and low are the candle's body plus positive wicks, so the
candle is valid by construction. All but `Classes` and `Scaled` put open, upper wick and lower wick last.

A table [K, H, L] holds the quantiles of the standardised error per member and step. It is computed once when training
ends (from the degrees of freedom, from validation residuals, or fitted) and stored with the model.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.layers import Param, Weights, by_row, is_exactly
from cpbmodels.arch.options import Preset
from cpbmodels.arch.torch_private import softplus_backward
from cpbmodels.data.ranges import MAX_LOG_SCALE
from cpbmodels.data.student_t import QUANTILES, t_quantiles
from cpbmodels.errors import ModelError

MIN_DF, MAX_DF, START_DF = 2.05, 200.0, 5.0  # degrees of freedom; up to 2 a t distribution has no variance
START_SCALE = 0.75  # of a unit-variance t with 5 degrees of freedom: sqrt(3 / 5) = 0.77
MAX_STUDENT_LOG_SCALE = 6.0  # a Student-t scale lies within exp(-6) .. exp(6) units
LEVELS = len(QUANTILES)
MEDIAN = LEVELS // 2  # place of the level 0.5

COPIES, MAX_BEND, MAX_LOCATION = 2, 0.5, 0.1
BENDING_BY_LEVEL = np.abs(np.arange(LEVELS) - MEDIAN) / MEDIAN * 2 - 1
"""By level, how a bend acts on the log of a quantile: -1 at the median .. 1 at 0.05 and 0.95."""


def candle(open_: Tensor, close: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """[..., 4] open high low close from body and raw wicks; low <= min(open, close), high >= max(open, close).

    A wick is softplus(raw - 1): positive, and 0.31 units where a new model's raw output is near 0.
    """
    high = torch.maximum(open_, close) + F.softplus(up - 1)
    low = torch.minimum(open_, close) - F.softplus(down - 1)
    return torch.stack([open_, high, low, close], -1)


def to_feedback(candles: Tensor) -> Tensor:
    """[..., 4] open high low close -> close, open, upper wick, lower wick: a candle as decoders read it."""
    open_, high, low, close = candles.unbind(-1)  # four of shape [...]
    return torch.stack(
        [close, open_, high - torch.maximum(open_, close), torch.minimum(open_, close) - low], -1
    )


def pinball(error: Tensor, levels: Tensor) -> Tensor:
    """Quantile loss [..., L] of truth minus quantile [..., L] at `levels` [L]."""
    # Where the truth lies above the quantile (error > 0) the first term is the larger, below it the second.
    return torch.maximum(levels * error, (levels - 1) * error)


class Head(ABC):
    """Outputs per step, loss, what a decoder is fed back, and quantiles."""

    size: int
    """Raw outputs per step."""
    has_log_scale: ClassVar[bool] = False
    """Raw output 1 is the logarithm of a scale, which the hour of the week can shift."""
    is_classifier: ClassVar[bool] = False
    """Its forecast is probabilities of classes; it has no quantiles and no candle."""
    is_reserved: ClassVar[bool] = False
    """Only architectures that name it in `spec.fixed` can have it."""
    required_options: ClassVar[Mapping[str, Any]] = {}
    """Options that must have these values with this head."""
    needs_residuals: ClassVar[bool] = False
    """`table` needs the residuals of the validation windows."""

    def __init__(self, options: Preset, device: torch.device, dtype: torch.dtype) -> None:
        self.options = options
        self.levels = torch.as_tensor(QUANTILES).to(device, dtype)

    @property
    def steps(self) -> int:
        """Steps the architecture must put out."""
        return self.options.horizon

    def params(self) -> list[Param]:
        """Weights of the head itself, beyond the map that makes the raw outputs."""
        return []

    @abstractmethod
    def loss(self, raw: Tensor, y: Tensor, w: Weights) -> Tensor:
        """Loss of each window [K, B] from raw [K, B, H, size] and targets y [K, B, H, 4]."""

    def median(self, raw: Tensor) -> Tensor:
        """Median candle [..., 4] from raw [..., size]."""
        return candle(raw[..., -3], self.location(raw)[..., 0], raw[..., -2], raw[..., -1])

    def location(self, raw: Tensor) -> Tensor:
        """Median close [..., 1]."""
        return raw[..., :1]

    def feedback(self, raw: Tensor) -> Tensor:
        """What an autoregressive decoder reads next, as `to_feedback` of the median candle."""
        # The wicks of `candle` are what `to_feedback` would subtract again, so no candle is built here.
        return torch.cat([self.location(raw), raw[..., -3:-2], F.softplus(raw[..., -2:] - 1)], -1)

    def table(self, w: Weights, residuals: np.ndarray | None) -> np.ndarray:
        """float64 [K, H, 19]: quantiles of the standardised error per step, fixed when training ends."""
        rows = next(iter(w.values())).shape[0]
        return np.zeros((rows, self.steps, LEVELS))

    @abstractmethod
    def quantiles(self, raw: Tensor, table: Tensor) -> Tensor:
        """[K, B, H, 19] ascending quantiles of the close."""

    def forecast(self, raw: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        """Quantiles [K, B, H, 19] and the median candle [K, B, H, 4] whose close is the middle quantile."""
        q = self.quantiles(raw, table)
        parts = self.candle_parts(raw)
        return q, candle(parts[0], q[..., MEDIAN], parts[1], parts[2])

    def candle_parts(self, raw: Tensor) -> tuple[Tensor, ...]:
        """Raw open, upper wick, lower wick: the last three outputs."""
        return raw[..., -3:].unbind(-1)

    def candle_loss(self, raw: Tensor, close: Tensor, y: Tensor) -> Tensor:
        """Absolute error of open, high and low [K, B], minimal at the median of each; `close` [K, B, H] is given."""
        open_, up, down = self.candle_parts(raw)
        forecast = candle(open_, close, up, down)  # [K, B, H, 4]
        return (forecast[..., :3] - y[..., :3]).abs().mean((-1, -2))  # over steps and open, high, low


class StudentT(Head):
    """Location (shrunk), scale per window and step, degrees of freedom per step. The head with the best skill.

    Raw: location, log-scale, open, upper wick, lower wick. The degrees of freedom are weights of the head, not outputs.
    """

    size = 5
    has_log_scale = True

    def __init__(self, options: Preset, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(options, device, dtype)
        self.start_quantiles = torch.as_tensor(t_quantiles(np.array(START_DF))).to(device, dtype)

    @override
    def params(self) -> list[Param]:
        if self.options.loss == "crps":  # with fixed degrees of freedom: it has no gradient for them
            return []
        start = math.log(math.expm1(START_DF - MIN_DF))  # softplus(start) = START_DF - MIN_DF, see _df
        return [Param("head.df", (1, self.options.horizon), 0.0, start)]

    def _df(self, w: Weights) -> Tensor:
        return (MIN_DF + F.softplus(w["head.df"])).clamp(max=MAX_DF)

    @override
    def location(self, raw: Tensor) -> Tensor:
        return raw[..., :1] * by_row(self.options.location_shrink, raw)

    def _log_scale(self, raw: Tensor) -> Tensor:
        return (raw[..., 1] + math.log(START_SCALE)).clamp(-MAX_STUDENT_LOG_SCALE, MAX_STUDENT_LOG_SCALE)

    @override
    def loss(self, raw: Tensor, y: Tensor, w: Weights) -> Tensor:
        location, log_scale = self.location(raw)[..., 0], self._log_scale(raw)  # [K, B, H] each
        z = (y[..., 3] - location) * torch.exp(-log_scale)
        close = self._crps(z, log_scale) if self.options.loss == "crps" else self._nll(z, log_scale, w)
        if is_exactly(self.options.candle_weight, 0):
            return close
        # The candle must not move the close, which the likelihood alone decides.
        candles = self.candle_loss(raw, location.detach(), y)
        return close + by_row(self.options.candle_weight, candles) * candles

    def _nll(self, z: Tensor, log_scale: Tensor, w: Weights) -> Tensor:
        """Negative log-likelihood [K, B], mean over the steps, of z = (y - location) / scale [K, B, H].

        -ln p = lnGamma(v / 2) - lnGamma((v + 1) / 2) + ln(v pi) / 2 + ln(scale) + (v + 1) / 2 ln(1 + z^2 / v).
        """
        df = self._df(w)  # [K, 1, H]: per member and step, the same for all windows
        norm = torch.lgamma(df / 2) - torch.lgamma((df + 1) / 2) + 0.5 * torch.log(df * math.pi)
        return (norm + log_scale + (df + 1) / 2 * torch.log1p(z * z / df)).mean(-1)

    def _crps(self, z: Tensor, log_scale: Tensor) -> Tensor:
        """Mean pinball loss over the 19 levels, the project's CRPS, of a t with `START_DF` degrees of freedom.

        Computed on z, where the quantiles are constants, and multiplied by the scale: pinball is homogeneous.
        """
        error = z.unsqueeze(-1) - self.start_quantiles  # [K, B, H, L]
        return (pinball(error, self.levels).mean(-1) * torch.exp(log_scale)).mean(-1)

    @override
    def table(self, w: Weights, residuals: np.ndarray | None) -> np.ndarray:
        if "head.df" not in w:
            return super().table(w, residuals) + t_quantiles(np.array(START_DF))
        return t_quantiles(self._df(w)[:, 0].detach().double().cpu().numpy())

    @override
    def quantiles(self, raw: Tensor, table: Tensor) -> Tensor:
        scale = torch.exp(self._log_scale(raw))  # [K, B, H]; the table [K, H, L] gets an axis for the windows
        return self.location(raw) + scale.unsqueeze(-1) * table.unsqueeze(1)


class Point(Head):
    """Mean squared error on the scaled candle; its quantiles are those of the validation residuals."""

    size = 4
    needs_residuals = True

    def __init__(self, options: Preset, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(options, device, dtype)
        self.wicks = torch.tensor([False, False, True, True], device=device)

    @override
    def feedback(self, raw: Tensor) -> Tensor:
        """As for every head, in one node: autograd would fill a tensor with zeros for each slice or branch."""
        return _PointFeedback.apply(raw, self.wicks)

    @override
    def loss(self, raw: Tensor, y: Tensor, w: Weights) -> Tensor:
        return (self.median(raw) - y).square().mean((-1, -2))

    def table(self, w: Weights, residuals: np.ndarray | None) -> np.ndarray:
        """Empirical quantiles per step of residuals [K, N, H] (NaN: no such window)."""
        if residuals is None:
            raise ModelError(
                "The point head needs validation residuals for its quantiles: keep a validation split."
            )
        table = np.nanquantile(residuals, QUANTILES, axis=1)  # [L, K, H]: numpy puts the levels first
        return np.moveaxis(np.nan_to_num(table), 0, -1)

    @override
    def quantiles(self, raw: Tensor, table: Tensor) -> Tensor:
        return raw[..., 0].unsqueeze(-1) + table.unsqueeze(1)


class _PointFeedback(torch.autograd.Function):
    """close, open and softplus(raw - 1) of both wicks; `wicks` [4] says which are."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, wicks: Tensor) -> Tensor:
        shifted = raw - 1
        ctx.save_for_backward(shifted, wicks)
        return torch.where(wicks, F.softplus(shifted), raw)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        shifted, wicks = ctx.saved_tensors
        return torch.where(wicks, softplus_backward(grad, shifted, 1, 20), grad), None


class Quantile(Head):
    """19 free quantiles: a median and positive gaps on both sides, so they cannot cross. Pinball loss.

    Raw: median, 9 gaps upwards from the median, 9 downwards, then open, upper wick, lower wick.
    """

    size = LEVELS + 3

    @override
    def loss(self, raw: Tensor, y: Tensor, w: Weights) -> Tensor:
        q = self.quantiles(raw, raw)  # [K, B, H, L]; this head reads no table
        close = pinball(y[..., 3:] - q, self.levels).mean((-1, -2))
        candles = self.candle_loss(raw, raw[..., 0].detach(), y)
        return close + by_row(self.options.candle_weight, candles) * candles

    @override
    def quantiles(self, raw: Tensor, table: Tensor) -> Tensor:
        middle = raw[..., :1]
        gaps = F.softplus(raw[..., 1:LEVELS] - 2)  # 0.13 at raw = 0: 18 gaps then span 2.3 units
        # Sums of positive gaps grow, so the levels ascend for any raw outputs.
        up = middle + gaps[..., :MEDIAN].cumsum(-1)
        down = middle - gaps[..., MEDIAN:].cumsum(-1)
        return torch.cat([down.flip(-1), middle, up], -1)


class Classes(Head):
    """Up, flat or down over the next candle; cross-entropy. `quantiles` are empty: use `probabilities`."""

    size = 3
    is_classifier = True
    is_reserved = True

    @override
    @property
    def steps(self) -> int:
        return 1

    def truth(self, y: Tensor) -> Tensor:
        """Class [K, B] of the next close: 0 up, 1 flat, 2 down."""
        move, band = y[:, :, 0, 3], self.options.flat_band
        return torch.where(move > band, 0, torch.where(move < -band, 2, 1))

    @override
    def loss(self, raw: Tensor, y: Tensor, w: Weights) -> Tensor:
        logits = torch.log_softmax(raw[:, :, 0], -1)  # [K, B, 3]
        return -logits.gather(-1, self.truth(y).unsqueeze(-1)).squeeze(-1)

    def probabilities(self, raw: Tensor) -> Tensor:
        """[K, B, 3]: up, flat, down."""
        return torch.softmax(raw[:, :, 0], -1)

    @override
    def median(self, raw: Tensor) -> Tensor:
        return raw.new_zeros(*raw.shape[:-1], 4)

    @override
    def quantiles(self, raw: Tensor, table: Tensor) -> Tensor:
        return raw.new_zeros(*raw.shape[:2], 0, LEVELS)

    @override
    def forecast(self, raw: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        return self.quantiles(raw, table), raw.new_zeros(*raw.shape[:2], 0, 4)


class Scaled(Head):
    """A scale per step times fixed standardised quantiles; raw is open, log-scale, high, low. Fitted in closed form.

    For architectures that `ranges.fit_ranges` fits: table and candle are weights, the loss is only reported. The hour
    must shift the log-scale, not be embedded.
    """

    size = 4
    has_log_scale = True
    is_reserved = True
    required_options: ClassVar[Mapping[str, Any]] = {"calendar_dim": 0}

    @override
    def params(self) -> list[Param]:
        return [Param("head.table", (self.options.horizon, LEVELS))]

    @override
    def loss(self, raw: Tensor, y: Tensor, w: Weights) -> Tensor:
        return pinball(y[..., 3:] - self.quantiles(raw, w["head.table"]), self.levels).mean((-1, -2))

    @override
    def table(self, w: Weights, residuals: np.ndarray | None) -> np.ndarray:
        return w["head.table"].detach().double().cpu().numpy()

    @override
    def quantiles(self, raw: Tensor, table: Tensor) -> Tensor:
        return self.scale(raw).unsqueeze(-1) * table.unsqueeze(1)

    def scale(self, raw: Tensor) -> Tensor:
        """The scale [K, B, H]."""
        return torch.exp(raw[..., 1].clamp(-MAX_LOG_SCALE, MAX_LOG_SCALE))

    @override
    def forecast(self, raw: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        q = self.quantiles(raw, table)
        (open_, high, low), close = self._other_prices(raw), q[..., MEDIAN]
        high = torch.maximum(high, torch.maximum(open_, close))  # the fit is valid, rounding may not be
        return q, torch.stack([open_, high, torch.minimum(low, torch.minimum(open_, close)), close], -1)

    def _other_prices(self, raw: Tensor) -> tuple[Tensor, ...]:
        """Medians [K, B, H] of open, high and low."""
        scale = self.scale(raw)
        return raw[..., 0] * scale, raw[..., 2] * scale, raw[..., 3] * scale


def bent(log_scale: Tensor, bend: Tensor, table: Tensor) -> Tensor:
    """Quantiles [..., H, L] of log-scale and bend [..., H]: a positive bend widens the tails against the middle."""
    scale = log_scale.clamp(-MAX_LOG_SCALE, MAX_LOG_SCALE).unsqueeze(-1)
    bending = torch.as_tensor(BENDING_BY_LEVEL).to(bend)
    return torch.exp(scale + bend.clamp(-MAX_BEND, MAX_BEND).unsqueeze(-1) * bending) * table


def outputs_of_copy(options: Preset) -> int:
    """Raw outputs per step and copy of `Bent`: addition, bend, and a location if the forecast keeps a share of it."""
    return 3 if options.location_share else 2


class Bent(Scaled):
    """`Scaled`, and per copy what it adds to the log-scale and how it bends the quantiles; their mean is the forecast.

    Raw: open, log-scale, high, low, then of each copy addition, bend and, with `location_share`, location.
    """

    def __init__(self, options: Preset, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(options, device, dtype)
        self.size = 4 + COPIES * outputs_of_copy(options)

    def _of_copies(self, raw: Tensor) -> Tensor:
        """[K, B, H, COPIES, 2 or 3]."""
        return raw[..., 4:].unflatten(-1, (COPIES, -1))

    @override
    def scale(self, raw: Tensor) -> Tensor:
        added = self._of_copies(raw)[..., 0]
        return torch.exp((raw[..., 1:2] + added).clamp(-MAX_LOG_SCALE, MAX_LOG_SCALE)).mean(-1)

    @override
    def location(self, raw: Tensor) -> Tensor:
        """What a forecast keeps of the copies' mean location, [..., 1], at most `MAX_LOCATION`; 0 without one."""
        mean = self._of_copies(raw)[..., 2:].mean(-2)
        return (self.options.location_share * mean.sum(-1, keepdim=True)).clamp(-MAX_LOCATION, MAX_LOCATION)

    @override
    def quantiles(self, raw: Tensor, table: Tensor) -> Tensor:
        copies = [
            bent(raw[..., 1] + of[..., 0], of[..., 1], table.unsqueeze(1))
            for of in self._of_copies(raw).unbind(-2)
        ]
        # A strong bend could let neighbours cross; sorting never raises the pinball loss (Chernozhukov et al. 2010).
        return torch.stack(copies).mean(0).sort(-1).values + self.location(raw)

    @override
    def _other_prices(self, raw: Tensor) -> tuple[Tensor, ...]:
        moved = self.location(raw)[..., 0]
        # A candle opens at the close before it, whose unit is sqrt(h - 1) instead of sqrt(h) volatilities.
        before = torch.arange(self.steps).to(moved)
        opens = F.pad(moved, (1, -1)) * (before / (before + 1)).sqrt()
        open_, high, low = super()._other_prices(raw)
        return open_ + opens, high + moved, low + moved


HEADS: dict[str, type[Head]] = {
    "student-t": StudentT,
    "point": Point,
    "quantile": Quantile,
    "classes": Classes,
    "scaled": Scaled,
    "bent": Bent,
}
