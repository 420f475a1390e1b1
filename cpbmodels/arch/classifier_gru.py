"""`classifier-gru`: a GRU over the window and one linear map to up, flat or down over the next candle."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.base import Architecture, ArchitectureSpec, Batch
from cpbmodels.arch.gru import SEED_PRESETS
from cpbmodels.cells import GRU_GATES, cell_params
from cpbmodels.draws import Draws, dropout
from cpbmodels.layers import linear
from cpbmodels.recurrent import gru
from cpbmodels.weights import Param, Weights, linear_params


class ClassifierGru(Architecture):
    """Sequence classification from the encoder's last state. It has no decoder: H is 1 in its outputs."""

    spec = ArchitectureSpec(
        sizes=("hidden_dim", "n_layers", "dropout"),
        defaults={"hidden_dim": 48, "n_layers": 1, "dropout": 0.1},
        fixed={"head": "classes"},
        presets=SEED_PRESETS,
        default_preset="seed-gru",
        bf16_on_cpu=True,
    )

    def names(self) -> list[str]:
        """Layer names."""
        return [f"encoder.{depth}" for depth in range(self.options.n_layers)]

    @override
    def params(self) -> list[Param]:
        H = self.options.hidden_dim
        out = []
        for depth, name in enumerate(self.names()):
            out += cell_params(name, GRU_GATES, H if depth else self.inputs, H)
        return [*out, *linear_params("out", H, self.head.size)]

    @override
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        _, last = gru(batch.inputs, w, self.names(), self.options.dropout, draws)
        return linear(dropout(last[-1], self.options.dropout, draws), w, "out").unsqueeze(2)
