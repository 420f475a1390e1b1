"""`lstm`: LSTM encoder and decoder with multi-head attention; keys and values are projected once per window."""

from __future__ import annotations

import torch
from torch import Tensor

from cpbmodels.arch.base import Architecture, Batch
from cpbmodels.draws import Draws, dropout
from cpbmodels.layers import attend, linear
from cpbmodels.recurrent import cell_params, input_gates, lstm, lstm_step
from cpbmodels.weights import Param, Weights, linear_params

State = list[tuple[Tensor, Tensor]]


class Lstm(Architecture):
    """Uses the fastest LSTM kernel of the device for the encoder; `lstm-manual` spells it out."""

    manual = False

    def names(self, part: str) -> list[str]:
        """Layer names of "encoder" or "decoder"."""
        return [f"{part}.{depth}" for depth in range(self.options.n_layers)]

    def params(self) -> list[Param]:
        H = self.options.hidden_dim
        out = []
        for part, inputs in (("encoder", self.inputs), ("decoder", 4)):
            for depth, name in enumerate(self.names(part)):
                out += cell_params(name, "lstm", H if depth else inputs, H)
        out += [*linear_params("query", H, H), *linear_params("memory", H, 2 * H)]
        return [*out, *linear_params("mix", H, H), *linear_params("out", 2 * H, self.head.size)]

    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        states, last = lstm(batch.inputs, w, self.names("encoder"), self.options.dropout, draws, self.manual)
        memory = self.project(states, w)
        taught, read, raws = self.taught(batch, draws), batch.start, []
        for step in range(self.head.steps):
            raw, last = self.decode(read, last, memory, w, draws)
            raws.append(raw)
            if step + 1 < self.head.steps:
                read = self.next_input(raw, step, batch, taught)
        return torch.stack(raws, 2)

    def project(self, states: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
        """Keys and values [K x B x heads, T, H / heads] of all encoder states [K, B, T, H]."""
        K, B, T, H = states.shape
        heads = self.options.n_heads
        both = linear(states.reshape(K, B * T, H), w, "memory").view(K, B, T, 2, heads, H // heads)
        both = both.permute(3, 0, 1, 4, 2, 5).reshape(2, K * B * heads, T, H // heads)
        keys, values = both.unbind(0)
        return keys, values

    def decode(
        self, read: Tensor, last: State, memory: tuple[Tensor, Tensor], w: Weights, draws: Draws | None
    ) -> tuple[Tensor, State]:
        """One step: candle read [K, B, 4] and states -> raw [K, B, size] and states."""
        x, states = read, []
        for depth, (name, state) in enumerate(zip(self.names("decoder"), last, strict=True)):
            x = dropout(x, self.options.dropout if depth else 0.0, draws)
            x, cell = lstm_step(input_gates(x, w, name), state, w, name)
            states.append((x, cell))
        K, B, H = x.shape
        heads = self.options.n_heads
        query = linear(x, w, "query").reshape(K * B * heads, 1, H // heads)
        found = linear(attend(query, *memory).view(K, B, H), w, "mix")
        return linear(torch.cat([x, found], -1), w, "out"), states


class LstmManual(Lstm):
    """Every gate written out, autograd through every step: the readable reference of `lstm`."""

    manual = True
