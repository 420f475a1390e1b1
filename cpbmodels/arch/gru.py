"""`gru`: GRU encoder, GRU decoder with attention over the encoder, keys projected once per window.

`classifier-gru`: a GRU over the window and one linear map to up, flat or down over the next candle.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.base import SEED_PRESET, SEED_TUNED, Architecture, ArchitectureSpec, Batch
from cpbmodels.arch.decoder import (
    GRU_GATES,
    DeferredAttention,
    DeferredLinear,
    gru_cell,
    stacked_params,
    step_params,
)
from cpbmodels.arch.layers import Draws, Param, Weights, dropout, linear, linear_params
from cpbmodels.arch.options import Preset
from cpbmodels.arch.recurrent import gru, no_kernels

SEED_GRU: dict[str, Any] = {
    **SEED_PRESET,
    "hidden_dim": 128,
    "n_layers": 2,
    "dropout": 0.3,
    "optimizer": "adam",
    "weight_decay": 0.0,
    "batch_size": 64,
    "epochs": 100,
    "patience": 15,
    "max_train_rows": 5000,
}
SEED_PRESETS = {"seed-gru": SEED_GRU, "seed-gru-tuned": {**SEED_GRU, **SEED_TUNED}}


class Gru(Architecture):
    """The decoder reads a candle a step: the origin's first, then its own median, or the truth when forced."""

    spec = ArchitectureSpec(
        sizes=("hidden_dim", "n_layers", "dropout"),
        defaults={"hidden_dim": 48, "n_layers": 1, "dropout": 0.1},
        presets=SEED_PRESETS,
        default_preset="seed-gru",
        dropout_between_layers=True,
        bf16_on_cpu=True,
    )

    @override
    def params(self) -> list[Param]:
        H = self.options.hidden_dim
        encoder = stacked_params(self.layers("encoder"), GRU_GATES, self.inputs, H)
        decoder = stacked_params(self.layers("decoder"), GRU_GATES, 4, H)
        return [*encoder, *decoder, *linear_params("key", H, H), *step_params("out", 2 * H, self.head.size)]

    @classmethod
    @override
    def no_kernels(cls, options: Preset) -> str:
        return no_kernels(options, 1)

    @override
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        states, last = gru(batch.inputs, w, self.layers("encoder"), self.options.dropout, draws)
        K, B, T, H = states.shape
        states = states.reshape(K, B * T, H)
        keys = linear(states, w, "key").view(K * B, T, H)
        memory = DeferredAttention(keys, states.view(K * B, T, H))  # the states themselves are the values
        uses, masks = self.head.steps, self.decoder_masks(last[-1], draws)
        # The weights are the same at every step, so their gradients are formed once, after the last step.
        maps = {"out": DeferredLinear(w["out.weight"], w["out.bias"], uses)}
        for name in self.layers("decoder"):
            for side in ("ih", "hh"):
                maps[f"{name}.{side}"] = DeferredLinear(w[f"{name}.w_{side}"], w[f"{name}.b_{side}"], uses)
        forced, read, raws = self.teacher_steps(batch, draws), batch.start, []
        for step in range(self.head.steps):
            raw, last = self.decode(read, last, memory, maps, masks[step])
            raws.append(raw)
            if step + 1 < self.head.steps:
                read = self.next_input(raw, step, batch, forced)
        return torch.stack(raws, 2)

    def decode(
        self,
        read: Tensor,
        last: list[Tensor],
        memory: DeferredAttention,
        maps: dict[str, DeferredLinear],
        factors: list[Tensor | None],
    ) -> tuple[Tensor, list[Tensor]]:
        """One step: candle read [K, B, 4] and states [K, B, H] per layer -> raw [K, B, size] and states."""
        x, states = read, []
        for depth, (name, h) in enumerate(zip(self.layers("decoder"), last, strict=True)):
            factor = factors[depth]
            x = x if factor is None else x * factor
            x = gru_cell(maps[f"{name}.ih"](x), maps[f"{name}.hh"](h), h)
            states.append(x)
        K, B, H = x.shape
        attended = memory(x.reshape(K * B, 1, H)).view(K, B, H)
        return maps["out"](torch.cat([x, attended], -1)), states


class ClassifierGru(Architecture):
    """Sequence classification from the encoder's last state. It has no decoder: H is 1 in its outputs."""

    spec = replace(Gru.spec, fixed={"head": "classes"}, dropout_between_layers=False)

    @override
    def params(self) -> list[Param]:
        H = self.options.hidden_dim
        encoder = stacked_params(self.layers("encoder"), GRU_GATES, self.inputs, H)
        return [*encoder, *linear_params("out", H, self.head.size)]

    @override
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        _, last = gru(batch.inputs, w, self.layers("encoder"), self.options.dropout, draws)
        return linear(dropout(last[-1], self.options.dropout, draws), w, "out").unsqueeze(2)
