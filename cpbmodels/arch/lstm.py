"""`lstm`: LSTM encoder and decoder with multi-head attention; keys and values are projected once per window."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.base import SEED_PRESET, SEED_TUNED, Architecture, ArchitectureSpec, Batch
from cpbmodels.arch.decoder import (
    LSTM_GATES,
    DeferredAttention,
    DeferredLinear,
    lstm_step,
    stacked_params,
    step_params,
)
from cpbmodels.arch.layers import Draws, Param, Weights, linear, linear_params
from cpbmodels.arch.options import Preset
from cpbmodels.arch.recurrent import lstm, no_kernels

SEED_LSTM: dict[str, Any] = {
    **SEED_PRESET,
    "hidden_dim": 256,
    "n_layers": 2,
    "n_heads": 4,
    "dropout": 0.3,
    "optimizer": "adam",
    "weight_decay": 1e-5,
    "batch_size": 32,
    "epochs": 200,
    "patience": 20,
    "max_train_rows": 7000,
}
SEED_PRESETS = {
    "seed-lstm": SEED_LSTM,
    "seed-lstm-tuned": {**SEED_LSTM, **SEED_TUNED, "schedule": "step"},
}


class Lstm(Architecture):
    """Uses the fastest LSTM kernel of the device for the encoder; `lstm-manual` spells it out."""

    spec = ArchitectureSpec(
        sizes=("hidden_dim", "n_layers", "n_heads", "dropout"),
        defaults={"hidden_dim": 48, "n_layers": 1, "n_heads": 4, "dropout": 0.1},
        presets=SEED_PRESETS,
        default_preset="seed-lstm",
        dropout_between_layers=True,
        bf16_on_cpu=True,
    )
    manual = False

    @override
    def params(self) -> list[Param]:
        H = self.options.hidden_dim
        encoder = stacked_params(self.layers("encoder"), LSTM_GATES, self.inputs, H)
        decoder = stacked_params(self.layers("decoder"), LSTM_GATES, 4, H)
        attention = [
            *step_params("query", H, H),
            *linear_params("memory", H, 2 * H),
            *step_params("mix", H, H),
        ]
        return [*encoder, *decoder, *attention, *step_params("out", 2 * H, self.head.size)]

    @classmethod
    @override
    def no_kernels(cls, options: Preset) -> str:
        return "every gate is written out" if cls.manual else no_kernels(options, options.n_heads)

    @override
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        states, last = lstm(
            batch.inputs, w, self.layers("encoder"), self.options.dropout, draws, manual=self.manual
        )
        memory = self.project(states, w)
        uses = self.head.steps
        # The weights are the same at every step, so their gradients are formed once, after the last step.
        maps = {
            name: DeferredLinear(w[f"{name}.weight"], w[f"{name}.bias"], uses)
            for name in ("query", "mix", "out")
        }
        cells = [lstm_step(w, name, uses, manual=self.manual) for name in self.layers("decoder")]
        masks = self.decoder_masks(last[-1][0], draws)
        forced, read, raws = self.teacher_steps(batch, draws), batch.start, []
        for step in range(self.head.steps):
            x, before, last = read, last, []
            for cell, (h, c), factor in zip(cells, before, masks[step], strict=True):
                last.append(cell(x if factor is None else x * factor, h, c))
                x = last[-1][0]
            raw = self.output(x, memory, maps)
            raws.append(raw)
            # After the last step nothing reads a candle any more.
            if step + 1 < self.head.steps:
                read = self.next_input(raw, step, batch, forced)
        return torch.stack(raws, 2)

    def project(self, states: Tensor, w: Weights) -> DeferredAttention:
        """Keys and values [K x B x heads, T, H / heads] of all encoder states [K, B, T, H]."""
        K, B, T, H = states.shape
        heads = self.options.n_heads
        both = linear(states.reshape(K, B * T, H), w, "memory").view(K, B, T, 2, heads, H // heads)
        both = both.permute(3, 0, 1, 4, 2, 5).reshape(2, K * B * heads, T, H // heads)
        return DeferredAttention(*both.unbind(0))

    def output(self, x: Tensor, memory: DeferredAttention, maps: dict[str, DeferredLinear]) -> Tensor:
        """Raw [K, B, size] from the top state [K, B, H] and what its query attends to."""
        K, B, H = x.shape
        heads = self.options.n_heads
        query = maps["query"](x).reshape(K * B * heads, 1, H // heads)
        attended = maps["mix"](memory(query).view(K, B, H))
        return maps["out"](torch.cat([x, attended], -1))


class LstmManual(Lstm):
    """Every gate written out, autograd through every step: the readable reference of `lstm`."""

    spec = replace(Lstm.spec, bf16_on_cpu=False)
    manual = True
