"""`classifier-gru`: a GRU over the window and one linear map to up, flat or down over the next candle."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.base import Architecture, Batch
from cpbmodels.cells import cell_params
from cpbmodels.draws import Draws, dropout
from cpbmodels.layers import linear
from cpbmodels.recurrent import gru
from cpbmodels.weights import Param, Weights, linear_params


class ClassifierGru(Architecture):
    """Sequence classification; the head is `classes`."""

    def names(self) -> list[str]:
        """Layer names."""
        return [f"encoder.{depth}" for depth in range(self.options.n_layers)]

    @override
    def params(self) -> list[Param]:
        H = self.options.hidden_dim
        out = []
        for depth, name in enumerate(self.names()):
            out += cell_params(name, "gru", H if depth else self.inputs, H)
        return [*out, *linear_params("out", H, self.head.size)]

    @override
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        _, last = gru(batch.inputs, w, self.names(), self.options.dropout, draws)
        return linear(dropout(last[-1], self.options.dropout, draws), w, "out").unsqueeze(2)
