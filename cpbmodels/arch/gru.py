"""`gru`: GRU encoder, GRU decoder with attention over the encoder, keys projected once per window."""

from __future__ import annotations

import torch
from torch import Tensor

from cpbmodels.arch.base import Architecture, Batch
from cpbmodels.draws import Draws, dropout
from cpbmodels.layers import attend, linear
from cpbmodels.recurrent import cell_params, gru, gru_step, input_gates
from cpbmodels.weights import Param, Weights, linear_params


class Gru(Architecture):
    """The decoder reads a candle a step: the origin's first, then its own median, or the truth when taught."""

    def names(self, part: str) -> list[str]:
        """Layer names of "encoder" or "decoder"."""
        return [f"{part}.{depth}" for depth in range(self.options.n_layers)]

    def params(self) -> list[Param]:
        H = self.options.hidden_dim
        out = []
        for part, inputs in (("encoder", self.inputs), ("decoder", 4)):
            for depth, name in enumerate(self.names(part)):
                out += cell_params(name, "gru", H if depth else inputs, H)
        return [*out, *linear_params("key", H, H), *linear_params("out", 2 * H, self.head.size)]

    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        states, last = gru(batch.inputs, w, self.names("encoder"), self.options.dropout, draws)
        K, B, T, H = states.shape
        states = states.reshape(K, B * T, H)
        keys = linear(states, w, "key").view(K * B, T, H)
        memory = (keys, states.view(K * B, T, H))
        taught, read, raws = self.taught(batch, draws), batch.start, []
        for step in range(self.head.steps):
            raw, last = self.decode(read, last, memory, w, draws)
            raws.append(raw)
            if step + 1 < self.head.steps:
                read = self.next_input(raw, step, batch, taught)
        return torch.stack(raws, 2)

    def decode(
        self, read: Tensor, last: list[Tensor], memory: tuple[Tensor, Tensor], w: Weights, draws: Draws | None
    ) -> tuple[Tensor, list[Tensor]]:
        """One step: candle read [K, B, 4] and states -> raw [K, B, size] and states."""
        x, states = read, []
        for depth, (name, h) in enumerate(zip(self.names("decoder"), last, strict=True)):
            x = dropout(x, self.options.dropout if depth else 0.0, draws)
            x = gru_step(input_gates(x, w, name), h, w, name)
            states.append(x)
        K, B, H = x.shape
        found = attend(x.reshape(K * B, 1, H), *memory).view(K, B, H)
        return linear(torch.cat([x, found], -1), w, "out"), states
