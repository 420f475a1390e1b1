"""A model without its weights: options -> layout, and (weights, windows) -> raw outputs and loss; device and precision.

Shapes: K members, B windows, C candles of context, H steps of horizon, F input columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cpbmodels.arch import find
from cpbmodels.arch.base import Batch
from cpbmodels.arch.heads import HEADS, to_feedback
from cpbmodels.arch.layers import Draws, Layout, Param, Weights, embed, is_exactly
from cpbmodels.arch.options import Preset
from cpbmodels.arch.torch_private import bf16_in_cpu_hardware
from cpbmodels.data import RETURNS
from cpbmodels.data.columns import SCALED
from cpbmodels.errors import ModelError
from cpbmodels.fleet.bank import Bank, Scaling, bank_columns

CALENDAR_CODES = 168
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Window:
    """Windows of a batch: scaled inputs, the hour's code, the origin's candle, and (if requested) the true candles."""

    inputs: Tensor  # [K, B, C, F]
    codes: Tensor | None  # [K, B], 0 .. 167 as floats
    start: Tensor  # [K, B, 4] in volatilities, relative to the origin's close
    truth: Tensor | None  # [K, B, H, 4] ln(price / last close) in volatilities x sqrt(step)


class Net:
    """Architecture and head of one preset, for any number of members.

    kernels: dtype of the products that run on `cpbmodels.kernels`; None: all run on torch's path.
    """

    def __init__(
        self,
        architecture: str,
        options: Preset,
        device: torch.device,
        dtype: torch.dtype,
        kernels: torch.dtype | None = None,
    ) -> None:
        self.options, self.name, self.kernels = options, architecture, kernels
        self.columns = bank_columns(options)
        last = len(self.columns) - bool(options.calendar)  # the calendar's codes are the bank's last column
        first = 0 if any(name in RETURNS for name in options.features) else len(RETURNS)
        self.span = (first, last)  # the inputs' columns: the returns stand first, but may be targets only
        inputs = last - first + (options.calendar_dim if options.calendar else 0)
        self.head = HEADS[options.head](options, device, dtype)
        self.architecture = find(architecture)(options, self.head, inputs)
        params = [*self.architecture.params(), *self.head.params()]
        if options.calendar:
            # A row per hour of the week: an embedding beside the inputs, or (calendar_dim 0) the log-scale's shift.
            width, spread = (options.calendar_dim, 0.1) if options.calendar_dim else (options.horizon, 0.0)
            params.append(Param("calendar", (CALENDAR_CODES, width), spread))
        self.layout = Layout(tuple(params))
        # Made once: a tensor made inside a step would be a copy to the device, which a CUDA graph cannot capture.
        C, H = options.context, options.horizon
        self.past = torch.arange(1 - C, 1, device=device)
        self.whole = torch.arange(1 - C, H + 1, device=device)
        self.unit = torch.arange(1, H + 1, device=device).to(dtype).rsqrt()[:, None]
        self.scaled = torch.tensor(
            [float(name in SCALED) for name in self.columns], device=device, dtype=dtype
        )

    def with_rows(self, values: dict[str, Tensor]) -> Net:
        """The same net for members that differ in these options, a tensor [K] each (`arch.options.IN_STEP`)."""
        options = replace(self.options, **cast(dict[str, Any], values))
        return Net(self.name, options, self.unit.device, self.unit.dtype, self.kernels)

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Names of the F input columns, without the calendar."""
        return self.columns[slice(*self.span)]

    def gather(self, bank: Bank, origins: Tensor, scaling: Scaling, *, future: bool) -> Window:
        """Windows that end at `origins` [K, B]: one gather by index, nothing materialised beyond the batch."""
        places = origins.unsqueeze(-1) + (self.whole if future else self.past)  # [K, B, C (+ H)]
        return self.window(bank.rows[places], bank.inverse_sigma[origins], scaling, future=future)

    def window(self, rows: Tensor, inverse_sigma: Tensor, scaling: Scaling, *, future: bool) -> Window:
        """Windows from their rows [K, B, C (+ H), columns] and the origins' inverse volatility [K, B]."""
        C, (first, last) = self.options.context, self.span
        inverse = inverse_sigma[..., None, None]
        # The factor is 1 / sigma for returns (scaled 1) and 1 for other columns (scaled 0).
        rows = rows * torch.addcmul(1 - self.scaled, inverse, self.scaled)
        mean, spread = scaling.mean[:, None, None, first:last], scaling.inverse[:, None, None, first:last]
        clip = self.options.input_clip
        inputs = ((rows[:, :, :C, first:last] - mean) * spread).clamp(-clip, clip)
        codes = rows[:, :, C - 1, -1] if self.options.calendar else None
        origin = rows[:, :, C - 1, :4]
        truth = self._truth(rows[:, :, C:, :4]) if future else None
        return Window(inputs, codes, (origin - origin[..., 3:]).clamp(-clip, clip), truth)

    def _truth(self, returns: Tensor) -> Tensor:
        """One-candle log-returns [K, B, H, 4] -> ln(x / last close) in volatilities x sqrt(step), clipped.

        A candle's returns are relative to the close before it, which lies the sum of all earlier closes' returns
        above the last close of the context.
        """
        close = returns[..., 3:]
        before = close.cumsum(2) - close
        return ((returns + before) * self.unit).clamp(-self.options.target_clip, self.options.target_clip)

    def raw(self, window: Window, w: Weights, draws: Draws | None) -> Tensor:
        """Raw outputs [K, B, H, head.size] in the dtype of the truth; products run in the weights' dtype."""
        kind = next(iter(w.values())).dtype
        inputs = window.inputs.to(kind)
        if window.codes is not None and self.options.calendar_dim:
            code = embed(window.codes, w["calendar"]).unsqueeze(2)
            inputs = torch.cat([inputs, code.expand(-1, -1, inputs.shape[2], -1)], -1)
        forced = draws is not None and not is_exactly(self.options.teacher_forcing, 0)
        truth = to_feedback(window.truth).to(kind) if forced and window.truth is not None else None
        batch = Batch(inputs, to_feedback(window.start).to(kind), truth)
        if self.options.checkpoint_gradients and draws is not None:
            raw = self._recomputed(batch, w, draws)
        else:
            raw = self._forward(batch, w, draws)
        raw = raw.to(window.start.dtype)
        if window.codes is None or self.options.calendar_dim:
            return raw
        shift = embed(window.codes, w["calendar"]).to(raw.dtype).unsqueeze(-1)
        return torch.cat([raw[..., :1], raw[..., 1:2] + shift, raw[..., 2:]], -1)  # output 1 is the log-scale

    def _forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        if batch.inputs.dtype != self.kernels:
            return self.architecture.forward(batch, w, draws)
        from cpbmodels.kernels.forward import forward  # imports triton

        return forward(self.architecture, batch, w, draws)

    def _recomputed(self, batch: Batch, w: Weights, draws: Draws) -> Tensor:
        """Keep no activations: the backward pass runs the forward pass again, with the same random draws."""
        layer = draws.layer

        def forward() -> Tensor:
            draws.layer = layer
            return self._forward(batch, w, draws)

        raw: Tensor = checkpoint(forward, use_reentrant=False, preserve_rng_state=False)
        return raw

    def loss(self, window: Window, w: Weights, draws: Draws | None) -> Tensor:
        """Loss of each window [K, B]; `draws` None is evaluation: no dropout, no teacher forcing.

        The head's weights enter in the dtype of the outputs, which is the master's, not that of the products.
        """
        assert window.truth is not None
        head = {name: value.to(window.start.dtype) for name, value in w.items() if name.startswith("head.")}
        return self.head.loss(self.raw(window, w, draws), window.truth, head or w)


def pick_device(name: str) -> torch.device:
    """The torch device for "auto", "cpu", "cuda" or "cuda:1"; ModelError if there is no such device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ModelError(f"device {name!r} is unknown: choose auto, cpu, cuda or a GPU as in cuda:1.")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModelError(
            f"device {name!r} is not available here (see `cpb doctor`): use device='cpu' or 'auto'."
        )
    return device


def windows_in_flight(context: int, device: torch.device) -> int:
    """How many windows validation and forecasts process at a time, over all members together.

    On a CPU their activations should stay in the cache: with 16,384 windows of 30 candles a transformer validated at
    two thirds of the speed and in five times the memory. On a GPU larger products are faster.
    """
    return 16_384 if device.type == "cuda" else min(max(32_768 // context, 256), 4_096)


def compute_dtype(
    options: Preset, architecture: str, device: torch.device, master: torch.dtype
) -> torch.dtype:
    """Dtype of the products: the master's, or bf16 / fp16 in mixed precision."""
    wanted = options.mixed_precision
    if wanted == "off" or master == torch.float64:
        return master
    if wanted in ("bf16", "fp16"):
        return torch.bfloat16 if wanted == "bf16" else torch.float16
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if find(architecture).spec.bf16_on_cpu and bf16_in_cpu_hardware() else master
