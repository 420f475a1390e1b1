"""What the fleet is measured against: one model after another, as somebody who knows torch would write it.

All windows on the device once, batches by index, no `.item()` before the end of an epoch, a fused optimizer; a
transformer decodes its ten training steps in one causal pass, and keys and values are projected once per window. In
float32 or under autocast to bf16 (`WAYS`). Nothing is slowed down on purpose: the layers are torch's own. Sizes,
dropout, windows, optimizers and batch sizes are those of the seed presets. (The loop of tutorials, with a DataLoader
and an `.item()` per batch, was measured too, at a6dc485d: benchmarks/RESULTS.md.)
"""

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from cpbmodels.data.series import Series

CONTEXT, HORIZON = 30, 10
COLUMNS = ("r_open", "r_high", "r_low", "r_close")
INPUTS, CHANNELS = len(COLUMNS), 4  # what is read; what is forecast: open, high, low, close


@dataclass(frozen=True)
class Recipe:
    """A seed preset as far as the loop needs it."""

    width: int
    layers: int
    heads: int
    batch: int
    dropout: float
    weight_decay: float = 0.0
    adamw: bool = False


RECIPES = {
    "transformer": Recipe(128, 2, 8, 128, 0.0, weight_decay=1e-2, adamw=True),
    "gru": Recipe(128, 2, 1, 64, 0.3),
    "lstm": Recipe(256, 2, 4, 32, 0.3, weight_decay=1e-5),
}
WAYS: dict[str, dict[str, bool]] = {"competent fp32": {}, "competent bf16": {"autocast": True}}
"""Options of `train_one` for every way it is measured."""


class NaiveTransformer(nn.Module):
    """Encoder-decoder; where the truth is given all steps are one causal pass, else each step decodes the prefix."""

    def __init__(self, r: Recipe) -> None:
        super().__init__()
        self.embed_in, self.embed_out = nn.Linear(INPUTS, r.width), nn.Linear(CHANNELS, r.width)
        self.position = nn.Parameter(torch.randn(CONTEXT + HORIZON, r.width) * 0.02)
        shape = (r.width, r.heads, 4 * r.width, r.dropout, "gelu")
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(*shape, batch_first=True), r.layers)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*shape, batch_first=True), r.layers)
        self.out = nn.Linear(r.width, CHANNELS)

    def forward(self, x: Tensor, y: Tensor | None) -> Tensor:
        """[B, 30, 4] -> [B, 10, 4]; `y` (the truth) is fed back in training, the own outputs otherwise."""
        memory = self.encoder(self.embed_in(x) + self.position[:CONTEXT])
        prefix = x[:, -1:, :CHANNELS]
        if y is not None:
            return self._decoded(torch.cat([prefix, y[:, :-1]], dim=1), memory)
        for _ in range(HORIZON):
            prefix = torch.cat([prefix, self._decoded(prefix, memory)[:, -1:]], dim=1)
        return prefix[:, 1:]

    def _decoded(self, prefix: Tensor, memory: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(prefix.shape[1], device=prefix.device)
        hidden = self.embed_out(prefix) + self.position[CONTEXT : CONTEXT + prefix.shape[1]]
        return self.out(self.decoder(hidden, memory, tgt_mask=mask))


class MultiHead(nn.Module):
    """Multi-head attention in two halves: `project` the memory, then look with a query."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.pair, self.out = (nn.Linear(width, n * width) for n in (1, 2, 1))

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """[B, 30, d] -> keys and values [B, heads, 30, d / heads]."""
        keys, values = self.pair(memory).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return keys, values

    def forward(self, query: Tensor, projected: tuple[Tensor, Tensor]) -> Tensor:
        """[B, 1, d] -> [B, 1, d]."""
        q = self.query(query).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        seen = nn.functional.scaled_dot_product_attention(q, *projected)
        return self.out(seen.transpose(1, 2).flatten(2))


class General(nn.Module):
    """Luong's general attention, in the same halves; the states themselves are the values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, width)

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """[B, 30, d] -> keys and values [B, 30, d]."""
        return self.key(memory), memory

    def forward(self, query: Tensor, projected: tuple[Tensor, Tensor]) -> Tensor:
        """[B, 1, d] -> [B, 1, d]."""
        keys, values = projected
        return torch.softmax(query @ keys.transpose(1, 2) / values.shape[-1] ** 0.5, dim=-1) @ values


class NaiveRecurrent(nn.Module):
    """Encoder, then ten decoder steps with attention over it; a coin per step decides what is fed."""

    def __init__(self, r: Recipe, cell: type[nn.GRU] | type[nn.LSTM]) -> None:
        super().__init__()
        self.encoder = cell(INPUTS, r.width, r.layers, batch_first=True, dropout=r.dropout)
        self.decoder = cell(CHANNELS, r.width, r.layers, batch_first=True, dropout=r.dropout)
        self.attention = MultiHead(r.width, r.heads) if r.heads > 1 else General(r.width)
        self.out = nn.Linear(2 * r.width, CHANNELS)

    def forward(self, x: Tensor, y: Tensor | None) -> Tensor:
        """[B, 30, 4] -> [B, 10, 4]; with `y`, teacher forcing with probability one half."""
        memory, state = self.encoder(x)
        projected = self.attention.project(memory)
        fed, outputs = x[:, -1:, :CHANNELS], []
        for step in range(HORIZON):
            hidden, state = self.decoder(fed, state)
            outputs.append(self.out(torch.cat([hidden, self.attention(hidden, projected)], dim=-1)))
            fed = y[:, step : step + 1] if y is not None and random.random() < 0.5 else outputs[-1]
        return torch.cat(outputs, dim=1)


def build(
    architecture: str, recipe: Recipe | None = None, device: str = "cpu"
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The single model of "transformer", "gru" or "lstm" with its optimizer."""
    r = recipe or RECIPES[architecture]
    if architecture == "transformer":
        model: nn.Module = NaiveTransformer(r)
    else:
        model = NaiveRecurrent(r, nn.GRU if architecture == "gru" else nn.LSTM)
    kind = torch.optim.AdamW if r.adamw else torch.optim.Adam
    model = model.to(device)
    return model, kind(model.parameters(), lr=1e-3, weight_decay=r.weight_decay, fused=True)


def windows(series: Series, split: str) -> tuple[Tensor, Tensor]:
    """All windows of a split, materialised: inputs [N, 30, 4] and targets [N, 10, 4], float32."""
    origins = series.origins(split, CONTEXT, HORIZON)
    columns = [series.names.index(name) for name in COLUMNS]
    rows = origins[:, None] + np.arange(-CONTEXT + 1, 1)
    scale = series.volatility[origins][:, None, None]
    x = series.features[:, columns][rows] / scale
    future = np.log(series.prices[origins[:, None] + np.arange(1, HORIZON + 1)])
    y = future - np.log(series.prices[origins, 3])[:, None, None]
    y = y / (scale * np.sqrt(np.arange(1, HORIZON + 1))[None, :, None])
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def train_one(
    series: Series,
    architecture: str,
    *,
    epochs: int,
    seed: int,
    device: str,
    recipe: Recipe | None = None,
    autocast: bool = False,
) -> list[dict[str, float]]:
    """Train one model on one series; per epoch the mean training and validation loss. `autocast`: products in bf16."""
    torch.manual_seed(seed)
    random.seed(seed)
    batch = (recipe or RECIPES[architecture]).batch
    model, optimizer = build(architecture, recipe, device)
    (x, y), (val_x, val_y) = (
        [part.to(device) for part in windows(series, split)] for split in ("train", "validation")
    )
    history = []
    for _ in range(epochs):
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=autocast):
            order = torch.randperm(len(x), device=device).split(batch)
            losses = [train_step(model, optimizer, x[rows], y[rows]) for rows in order]
            model.eval()
            with torch.no_grad():
                checks = [
                    nn.functional.mse_loss(model(part, None), truth) * len(part)
                    for part, truth in zip(val_x.split(1024), val_y.split(1024), strict=True)
                ]
        history.append(
            {
                "train_loss": torch.stack(losses).mean().item(),
                "val_loss": (torch.stack(checks).sum() / len(val_x)).item(),
            }
        )
    return history


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """One step without a sync; returns the loss, on the device."""
    model.train()
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x, y), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def train_naive(series: list[Series], architecture: str, *, epochs: int, autocast: bool) -> None:
    """One model after another, on the CPU."""
    for k, coin in enumerate(series):
        train_one(coin, architecture, epochs=epochs, seed=k, device="cpu", autocast=autocast)
