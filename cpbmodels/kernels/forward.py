"""An architecture's forward pass over the kernels, in the place of its own `forward`."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from cpbmodels.arch.base import Architecture, Batch
from cpbmodels.arch.gru import Gru
from cpbmodels.arch.layers import Draws, Weights
from cpbmodels.arch.lstm import Lstm
from cpbmodels.arch.transformer import Transformer
from cpbmodels.kernels.decoder import gru_forward, lstm_forward
from cpbmodels.kernels.transformer import transformer_forward

_FORWARD: Mapping[type[Architecture], Callable[[Any, Batch, Weights, Draws | None], Tensor]] = {
    Gru: gru_forward,
    Lstm: lstm_forward,
    Transformer: transformer_forward,
}
"""By the class itself: a subclass may compute something else."""


def forward(model: Architecture, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
    """Raw outputs as of `model.forward`, where `model.no_kernels` has no objection."""
    return _FORWARD[type(model)](model, batch, w, draws)
