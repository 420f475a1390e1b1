"""`lstm`: LSTM encoder and decoder with multi-head attention; keys and values are projected once per window."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.base import Architecture, Batch
from cpbmodels.cells import State, Tied, TiedAttention, cell_params, lstm_cell, lstm_cell_by_hand, step_params
from cpbmodels.draws import Draws
from cpbmodels.layers import linear
from cpbmodels.recurrent import lstm
from cpbmodels.weights import Param, Weights, linear_params


class Lstm(Architecture):
    """Uses the fastest LSTM kernel of the device for the encoder; `lstm-manual` spells it out."""

    manual = False

    def names(self, part: str) -> list[str]:
        """Layer names of "encoder" or "decoder"."""
        return [f"{part}.{depth}" for depth in range(self.options.n_layers)]

    @override
    def params(self) -> list[Param]:
        H = self.options.hidden_dim
        out = []
        for part, inputs in (("encoder", self.inputs), ("decoder", 4)):
            for depth, name in enumerate(self.names(part)):
                out += cell_params(name, "lstm", H if depth else inputs, H)
        out += [*step_params("query", H, H), *linear_params("memory", H, 2 * H)]
        return [*out, *step_params("mix", H, H), *step_params("out", 2 * H, self.head.size)]

    @override
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        states, last = lstm(batch.inputs, w, self.names("encoder"), self.options.dropout, draws, self.manual)
        memory = self.project(states, w)
        maps, masks = self.tie(w), self.decoder_masks(last[-1][0], draws)
        taught, read, raws = self.taught(batch, draws), batch.start, []
        for step in range(self.head.steps):
            raw, last = self.decode(read, last, memory, maps, masks[step])
            raws.append(raw)
            if step + 1 < self.head.steps:
                read = self.next_input(raw, step, batch, taught)
        return torch.stack(raws, 2)

    def project(self, states: Tensor, w: Weights) -> TiedAttention:
        """Keys and values [K x B x heads, T, H / heads] of all encoder states [K, B, T, H]."""
        K, B, T, H = states.shape
        heads = self.options.n_heads
        both = linear(states.reshape(K, B * T, H), w, "memory").view(K, B, T, 2, heads, H // heads)
        both = both.permute(3, 0, 1, 4, 2, 5).reshape(2, K * B * heads, T, H // heads)
        return TiedAttention(*both.unbind(0))

    def tie(self, w: Weights) -> dict[str, Tied]:
        """The decoder's maps, each used at every step."""
        maps = {name: Tied(w[f"{name}.weight"], w[f"{name}.bias"]) for name in ("query", "mix", "out")}
        for name in self.names("decoder"):
            for side in ("ih", "hh"):
                maps[f"{name}.{side}"] = Tied(w[f"{name}.w_{side}"], w[f"{name}.b_{side}"])
        return maps

    def decode(
        self,
        read: Tensor,
        last: list[State],
        memory: TiedAttention,
        maps: dict[str, Tied],
        factors: list[Tensor | None],
    ) -> tuple[Tensor, list[State]]:
        """One step: candle read [K, B, 4] and states -> raw [K, B, size] and states."""
        cell_of = lstm_cell_by_hand if self.manual else lstm_cell
        x, states = read, []
        for depth, (name, (h, c)) in enumerate(zip(self.names("decoder"), last, strict=True)):
            factor = factors[depth]
            x = x if factor is None else x * factor
            x, c = cell_of(maps[f"{name}.ih"](x), maps[f"{name}.hh"](h), c)
            states.append((x, c))
        K, B, H = x.shape
        heads = self.options.n_heads
        query = maps["query"](x).reshape(K * B * heads, 1, H // heads)
        found = maps["mix"](memory(query).view(K, B, H))
        return maps["out"](torch.cat([x, found], -1)), states


class LstmManual(Lstm):
    """Every gate written out, autograd through every step: the readable reference of `lstm`."""

    manual = True
