"""The usual way, written plainly: what the fleet is measured against.

One model after another; every window materialised and served by a DataLoader; each batch copied to the
device and its loss fetched with `.item()`; ten decoder passes per training step; keys and values of the
attention projected anew in each pass. Nothing is slowed down on purpose: the layers are torch's own.
Sizes, windows, optimizers and batch sizes are those of the seed presets.
"""

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cpbmodels.series import Series

CONTEXT, HORIZON = 30, 10
COLUMNS = ("r_open", "r_high", "r_low", "r_close", "log_sigma")
INPUTS, CHANNELS = len(COLUMNS), 4  # what is read; what is forecast: open, high, low, close


@dataclass(frozen=True)
class Recipe:
    """A seed preset as far as the naive loop needs it."""

    width: int
    layers: int
    heads: int
    batch: int
    dropout: float
    weight_decay: float = 0.0
    adamw: bool = False


RECIPES = {
    "transformer": Recipe(128, 2, 8, 128, 0.1, weight_decay=1e-2, adamw=True),
    "gru": Recipe(128, 2, 1, 64, 0.3),
    "lstm": Recipe(256, 2, 4, 32, 0.3, weight_decay=1e-5),
}


class NaiveTransformer(nn.Module):
    """Encoder-decoder; each step runs the decoder over the whole prefix and keeps its last output."""

    def __init__(self, r: Recipe) -> None:
        super().__init__()
        self.embed_in, self.embed_out = nn.Linear(INPUTS, r.width), nn.Linear(CHANNELS, r.width)
        self.position = nn.Parameter(torch.randn(CONTEXT + HORIZON, r.width) * 0.02)
        shape = (r.width, r.heads, 4 * r.width, r.dropout, "gelu")
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(*shape, batch_first=True), r.layers)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*shape, batch_first=True), r.layers)
        self.out = nn.Linear(r.width, CHANNELS)

    def forward(self, x: Tensor, y: Tensor | None) -> Tensor:
        """[B, 30, 5] -> [B, 10, 4]; `y` (the truth) is fed back in training, the own outputs otherwise."""
        memory = self.encoder(self.embed_in(x) + self.position[:CONTEXT])
        prefix, outputs = x[:, -1:, :CHANNELS], []
        for step in range(HORIZON):
            length = prefix.shape[1]
            mask = nn.Transformer.generate_square_subsequent_mask(length, device=x.device)
            hidden = self.embed_out(prefix) + self.position[CONTEXT : CONTEXT + length]
            last = self.out(self.decoder(hidden, memory, tgt_mask=mask)[:, -1:])
            outputs.append(last)
            prefix = torch.cat([prefix, y[:, step : step + 1] if y is not None else last], dim=1)
        return torch.cat(outputs, dim=1)


class MultiHead(nn.Module):
    """torch's multi-head attention: projects keys and values of the whole memory at every call."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        """[B, 1, d], [B, 30, d] -> [B, 1, d]."""
        return self.attend(query, memory, memory, need_weights=False)[0]


class General(nn.Module):
    """Luong's general attention as tutorials write it: the keys are projected inside, at every call."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, width)

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        """[B, 1, d], [B, 30, d] -> [B, 1, d]."""
        scores = query @ self.key(memory).transpose(1, 2) / memory.shape[-1] ** 0.5
        return torch.softmax(scores, dim=-1) @ memory


class NaiveRecurrent(nn.Module):
    """Encoder, then ten decoder steps with attention over it; a coin per step decides what is fed."""

    def __init__(self, r: Recipe, cell: type[nn.GRU] | type[nn.LSTM]) -> None:
        super().__init__()
        self.encoder = cell(INPUTS, r.width, r.layers, batch_first=True, dropout=r.dropout)
        self.decoder = cell(CHANNELS, r.width, r.layers, batch_first=True, dropout=r.dropout)
        self.attention = MultiHead(r.width, r.heads) if r.heads > 1 else General(r.width)
        self.out = nn.Linear(2 * r.width, CHANNELS)

    def forward(self, x: Tensor, y: Tensor | None) -> Tensor:
        """[B, 30, 5] -> [B, 10, 4]; with `y`, teacher forcing with probability one half."""
        memory, state = self.encoder(x)
        fed, outputs = x[:, -1:, :CHANNELS], []
        for step in range(HORIZON):
            hidden, state = self.decoder(fed, state)
            outputs.append(self.out(torch.cat([hidden, self.attention(hidden, memory)], dim=-1)))
            forced = y is not None and random.random() < 0.5
            fed = y[:, step : step + 1] if forced and y is not None else outputs[-1]
        return torch.cat(outputs, dim=1)


def build(architecture: str, recipe: Recipe | None = None) -> nn.Module:
    """The naive model of "transformer", "gru" or "lstm"."""
    r = recipe or RECIPES[architecture]
    if architecture == "transformer":
        return NaiveTransformer(r)
    return NaiveRecurrent(r, nn.GRU if architecture == "gru" else nn.LSTM)


def windows(series: Series, split: str) -> tuple[Tensor, Tensor]:
    """All windows of a split, materialised: inputs [N, 30, 5] and targets [N, 10, 4], float32."""
    origins = series.origins(split, CONTEXT, HORIZON)
    columns = [series.names.index(name) for name in COLUMNS]
    rows = origins[:, None] + np.arange(-CONTEXT + 1, 1)
    scale = series.volatility[origins][:, None, None]
    x = series.features[:, columns][rows]
    x[:, :, :CHANNELS] /= scale
    x[:, :, CHANNELS:] -= x[:, :, CHANNELS:].mean(axis=1, keepdims=True)
    future = np.log(series.prices[origins[:, None] + np.arange(1, HORIZON + 1)])
    y = future - np.log(series.prices[origins, 3])[:, None, None]
    y = y / (scale * np.sqrt(np.arange(1, HORIZON + 1))[None, :, None])
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def train_one(
    series: Series, architecture: str, *, epochs: int, seed: int, device: str, recipe: Recipe | None = None
) -> list[dict[str, float]]:
    """Train one model on one series; per epoch the mean training and validation loss."""
    r = recipe or RECIPES[architecture]
    torch.manual_seed(seed)
    random.seed(seed)
    model = build(architecture, r).to(device)
    kind = torch.optim.AdamW if r.adamw else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=1e-3, weight_decay=r.weight_decay)
    train = DataLoader(TensorDataset(*windows(series, "train")), batch_size=r.batch, shuffle=True)
    validation = DataLoader(TensorDataset(*windows(series, "validation")), batch_size=r.batch)
    history = []
    for _ in range(epochs):
        losses = [train_batch(model, optimizer, x.to(device), y.to(device)) for x, y in train]
        history.append(
            {"train_loss": float(np.mean(losses)), "val_loss": _validate(model, validation, device)}
        )
    return history


def train_batch(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """One step of the usual loop."""
    model.train()
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x, y), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


@torch.no_grad()
def _validate(model: nn.Module, loader: DataLoader, device: str) -> float:
    model.eval()
    losses = [nn.functional.mse_loss(model(x.to(device), None), y.to(device)).item() for x, y in loader]
    return float(np.mean(losses)) if losses else float("nan")


def train_naive(
    series: list[Series], architecture: str, *, epochs: int, device: str = "cpu", recipe: Recipe | None = None
) -> list[list[dict[str, float]]]:
    """One model after another; the histories in the order of the series."""
    return [
        train_one(s, architecture, epochs=epochs, seed=k, device=device, recipe=recipe)
        for k, s in enumerate(series)
    ]
