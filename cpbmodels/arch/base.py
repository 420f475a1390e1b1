"""What an architecture is: facts about it, the weights it needs, and a map from windows to the head's raw outputs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cpbmodels.arch.heads import HEADS, Head
from cpbmodels.arch.layers import Draws, Param, Weights, is_exactly
from cpbmodels.arch.options import Preset
from cpbmodels.arch.task import MemberData
from cpbmodels.data import RETURNS

Masks = list[list[Tensor | None]]

SEED_PRESET: dict[str, Any] = {
    "features": RETURNS,
    "mixed_precision": "auto",
    "teacher_forcing": 0.5,
    "head": "point",
    "lr": 1e-3,
    "schedule": "constant",
}
"""What the presets with the hyper-parameters that the original notes state (`seed-*`) have in common."""

SEED_TUNED: dict[str, Any] = {"features": (*RETURNS, "log_sigma")}
"""What `seed-*-tuned` add to them: the level of volatility as a fifth input, and a schedule of their own."""


@dataclass(frozen=True)
class ArchitectureSpec:
    """Facts that the rest of the library asks an architecture for. They are declared in the architecture's own file.

    sizes: options of `options.SIZES` that it reads; the others are reported to the user as having no effect.
    defaults: options that differ from `Preset`'s own defaults; presets and profiles are applied on top.
    fixed: options that no preset or profile changes. An override can, unless `Architecture.conflict` refuses it.
        An architecture for one of the reserved heads (classes, scaled) names it here.
    presets: its own presets, by name; related architectures may share a preset.
    by_timeframe: (preset, timeframe) -> options that the preset has at this timeframe alone.
    default_preset: the preset `cpb train` takes when none is named.
    closed_form: solved by `Architecture.solve`, without optimizer, epochs or random numbers.
    dropout_between_layers: dropout acts between layers only, as torch's nn.GRU has it: none with one layer.
    bf16_on_cpu: bf16 products are worthwhile on a CPU that has them (measured: 1.5 to 2 times the windows per second,
        losses equal to four digits), so `mixed_precision="auto"` chooses them there.
    threads_from_width: `hidden_dim` from which one member's products are worth more than one CPU core; None: never.
        A step of many small products is slower with threads: on a recurrent net, two threads took 3.5 times as long.
    """

    sizes: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    by_timeframe: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    default_preset: str = "default"
    closed_form: bool = False
    dropout_between_layers: bool = False
    bf16_on_cpu: bool = False
    threads_from_width: int | None = None


@dataclass(frozen=True)
class Batch:
    """Windows of K members: inputs [K, B, C, F], and as decoders read them (`heads.to_feedback`) the origin's candle
    [K, B, 4] and, under teacher forcing, the true candles [K, B, H, 4]."""

    inputs: Tensor
    start: Tensor
    truth: Tensor | None = None


class Architecture(ABC):
    """Stateless: weights come in as views of the fleet's matrix. `inputs` is the number of input columns."""

    spec: ClassVar[ArchitectureSpec] = ArchitectureSpec()

    def __init__(self, options: Preset, head: Head, inputs: int) -> None:
        self.options, self.head, self.inputs = options, head, inputs

    @classmethod
    def is_classifier(cls) -> bool:
        """Whether it forecasts classes and no price."""
        return "head" in cls.spec.fixed and HEADS[cls.spec.fixed["head"]].is_classifier

    @classmethod
    def conflict(cls, name: str, options: Preset) -> str:
        """A sentence about options that this architecture, registered as `name`, cannot have; "" if all are fine."""
        if "n_heads" in cls.spec.sizes and options.hidden_dim % options.n_heads:
            return f"hidden_dim {options.hidden_dim} must be a multiple of n_heads {options.n_heads}."
        return ""

    @classmethod
    def no_kernels(cls, options: Preset) -> str:
        """Why `cpbmodels.kernels` cannot run it with these options; "" if `cpbmodels.kernels.forward` can."""
        return "the architecture has none"

    def layers(self, part: str) -> list[str]:
        """Names of the recurrent layers of "encoder" or "decoder"."""
        return [f"{part}.{depth}" for depth in range(self.options.n_layers)]

    @abstractmethod
    def params(self) -> list[Param]:
        """Every weight of one model. Order and shapes are the file format and decide the initial values."""

    @abstractmethod
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        """Raw outputs [K, B, H, head.size]. `draws` is None outside training; `batch.truth` is for teacher forcing."""

    def solve(self, data: MemberData) -> dict[str, np.ndarray]:
        """With `spec.closed_form`: all weights of one member by name, without the member axis, float64."""
        raise NotImplementedError(f"{type(self).__name__} has spec.closed_form and must implement solve()")

    def initial_weights(self, data: MemberData) -> dict[str, np.ndarray]:
        """Weights that start from a fit instead of random numbers, by name, without the member axis; none by default.

        An array shorter than its weight along the first axis replaces the first rows. The result depends on the
        member's series alone, not on its seed.
        """
        return {}

    def unroll(self, outputs: Tensor) -> Tensor:
        """[K, B, H x size] -> [K, B, H, size]; for architectures of others, as in docs/extending.md."""
        return outputs.view(*outputs.shape[:2], self.head.steps, self.head.size)

    def teacher_steps(self, batch: Batch, draws: Draws | None) -> list[Tensor] | None:
        """Per step, Bool [K, B, 1]: does the decoder read the true previous candle? None: never."""
        forced = self.forced_steps(batch, draws)
        return None if forced is None else list(forced.unsqueeze(-1).unbind(2))

    def forced_steps(self, batch: Batch, draws: Draws | None) -> Tensor | None:
        """`teacher_steps` as one Bool [K, B, H]."""
        # No draw where nothing is forced: each takes a key, and so would shift the masks of the layers behind it.
        if draws is None or batch.truth is None or is_exactly(self.options.teacher_forcing, 0):
            return None
        K, B = batch.start.shape[:2]
        shape = torch.Size([K, B, self.head.steps])
        if is_exactly(self.options.teacher_forcing, 1):
            return batch.start.new_ones(shape, dtype=torch.bool)
        # Of each window and step anew: a decoder that is only ever told the truth never meets errors of its own.
        return draws.below(self.options.teacher_forcing, shape)

    def next_input(self, raw: Tensor, step: int, batch: Batch, forced: list[Tensor] | None) -> Tensor:
        """The candle [K, B, 4] the decoder reads after `step`: its own median, or the truth where it is forced."""
        median = self.head.feedback(raw)
        if forced is None or batch.truth is None:
            return median
        return _Forced.apply(median, forced[step], batch.truth[:, :, step])

    def decoder_masks(self, like: Tensor, draws: Draws | None) -> Masks:
        """Dropout factors [K, B, H] per step and layer after the first, for a decoder with the state `like`."""
        factors = self.decoder_factors(like, draws)
        if factors is None:
            return [[None] * self.options.n_layers] * self.head.steps
        return [[None, *step.unbind(1)] for step in factors.unbind(1)]

    def decoder_factors(self, like: Tensor, draws: Draws | None) -> Tensor | None:
        """`decoder_masks` as one tensor [K, steps, layers - 1, B, H]; None if nothing is dropped."""
        rate, layers = self.options.dropout, self.options.n_layers
        if draws is None or is_exactly(rate, 0) or layers == 1:
            return None
        K, B, H = like.shape
        # All steps in one draw: a draw a step would be a launch a step, and take a key of the 64.
        return draws.factors(rate, torch.Size([K, self.head.steps, layers - 1, B, H]), like.dtype)


class _Forced(torch.autograd.Function):
    """The truth where it is forced, else `own`; autograd would also fill a tensor for the other branch's zero."""

    @staticmethod
    def forward(ctx: Any, median: Tensor, forced: Tensor, truth: Tensor) -> Tensor:
        ctx.save_for_backward(forced)
        return torch.where(forced, truth, median)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (forced,) = ctx.saved_tensors
        return torch.where(forced, _zero(grad.dtype, grad.device), grad), None, None


@cache
def _zero(dtype: torch.dtype, device: torch.device) -> Tensor:
    """A zero tensor, created once: given a number, `where` would create a tensor in every step."""
    return torch.zeros((), dtype=dtype, device=device)
