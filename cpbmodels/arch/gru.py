"""`gru`: GRU encoder, GRU decoder with attention over the encoder, keys projected once per window."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.base import Architecture, Batch
from cpbmodels.cells import Tied, TiedAttention, cell_params, gru_cell, step_params
from cpbmodels.draws import Draws
from cpbmodels.layers import linear
from cpbmodels.recurrent import gru
from cpbmodels.weights import Param, Weights, linear_params


class Gru(Architecture):
    """The decoder reads a candle a step: the origin's first, then its own median, or the truth when taught."""

    def names(self, part: str) -> list[str]:
        """Layer names of "encoder" or "decoder"."""
        return [f"{part}.{depth}" for depth in range(self.options.n_layers)]

    @override
    def params(self) -> list[Param]:
        H = self.options.hidden_dim
        out = []
        for part, inputs in (("encoder", self.inputs), ("decoder", 4)):
            for depth, name in enumerate(self.names(part)):
                out += cell_params(name, "gru", H if depth else inputs, H)
        return [*out, *linear_params("key", H, H), *step_params("out", 2 * H, self.head.size)]

    @override
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        states, last = gru(batch.inputs, w, self.names("encoder"), self.options.dropout, draws)
        K, B, T, H = states.shape
        states = states.reshape(K, B * T, H)
        keys = linear(states, w, "key").view(K * B, T, H)
        memory = TiedAttention(keys, states.view(K * B, T, H))
        maps, masks = self.tie(w), self.decoder_masks(last[-1], draws)
        taught, read, raws = self.taught(batch, draws), batch.start, []
        for step in range(self.head.steps):
            raw, last = self.decode(read, last, memory, maps, masks[step])
            raws.append(raw)
            if step + 1 < self.head.steps:
                read = self.next_input(raw, step, batch, taught)
        return torch.stack(raws, 2)

    def tie(self, w: Weights) -> dict[str, Tied]:
        """The decoder's maps, each used at every step."""
        maps = {"out": Tied(w["out.weight"], w["out.bias"])}
        for name in self.names("decoder"):
            for side in ("ih", "hh"):
                maps[f"{name}.{side}"] = Tied(w[f"{name}.w_{side}"], w[f"{name}.b_{side}"])
        return maps

    def decode(
        self,
        read: Tensor,
        last: list[Tensor],
        memory: TiedAttention,
        maps: dict[str, Tied],
        factors: list[Tensor | None],
    ) -> tuple[Tensor, list[Tensor]]:
        """One step: candle read [K, B, 4] and states -> raw [K, B, size] and states."""
        x, states = read, []
        for depth, (name, h) in enumerate(zip(self.names("decoder"), last, strict=True)):
            factor = factors[depth]
            x = x if factor is None else x * factor
            x = gru_cell(maps[f"{name}.ih"](x), maps[f"{name}.hh"](h), h)
            states.append(x)
        K, B, H = x.shape
        found = memory(x.reshape(K * B, 1, H)).view(K, B, H)
        return maps["out"](torch.cat([x, found], -1)), states
