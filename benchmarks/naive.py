"""What the fleet is measured against: one model after another, by the usual loop and by a competent one.

Usual: every window materialised and served by a DataLoader; each batch copied to the device and its loss fetched with
`.item()`; ten decoder passes per training step; keys and values of the attention projected anew in each pass.

Competent: what somebody who knows torch would write for a single model. All windows on the device once, batches by
index, no `.item()` before the end of an epoch, a fused optimizer; a transformer decodes its ten training steps in one
causal pass, and keys and values are projected once per window.

Both in float32 or under autocast to bf16 (`WAYS`). Nothing is slowed down on purpose: the layers are torch's own.
Sizes, dropout, windows, optimizers and batch sizes are those of the seed presets; the same weights give the same
outputs in both (tests/benchmarks/test_bench_naive.py).
"""

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cpbmodels.data.series import Series

CONTEXT, HORIZON = 30, 10
COLUMNS = ("r_open", "r_high", "r_low", "r_close")
INPUTS, CHANNELS = len(COLUMNS), 4  # what is read; what is forecast: open, high, low, close


@dataclass(frozen=True)
class Recipe:
    """A seed preset as far as the loops need it."""

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
WAYS: dict[str, dict[str, bool]] = {
    "usual fp32": {},
    "usual bf16": {"autocast": True},
    "competent fp32": {"competent": True},
    "competent bf16": {"competent": True, "autocast": True},
}
"""Options of `train_one` for every way it is measured."""


class NaiveTransformer(nn.Module):
    """Encoder-decoder; each step runs the decoder over the whole prefix and keeps its last output.

    `competent`: where the truth is given, all steps are one causal pass.
    """

    def __init__(self, r: Recipe, competent: bool = False) -> None:
        super().__init__()
        self.competent = competent
        self.embed_in, self.embed_out = nn.Linear(INPUTS, r.width), nn.Linear(CHANNELS, r.width)
        self.position = nn.Parameter(torch.randn(CONTEXT + HORIZON, r.width) * 0.02)
        shape = (r.width, r.heads, 4 * r.width, r.dropout, "gelu")
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(*shape, batch_first=True), r.layers)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*shape, batch_first=True), r.layers)
        self.out = nn.Linear(r.width, CHANNELS)

    def forward(self, x: Tensor, y: Tensor | None) -> Tensor:
        """[B, 30, 5] -> [B, 10, 4]; `y` (the truth) is fed back in training, the own outputs otherwise."""
        memory = self.encoder(self.embed_in(x) + self.position[:CONTEXT])
        if self.competent and y is not None:
            read = torch.cat([x[:, -1:, :CHANNELS], y[:, :-1]], dim=1)
            mask = nn.Transformer.generate_square_subsequent_mask(HORIZON, device=x.device)
            return self.out(
                self.decoder(self.embed_out(read) + self.position[CONTEXT:], memory, tgt_mask=mask)
            )
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
    """torch's multi-head attention, in two halves: `project` the memory, then `look` with a query."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """[B, 30, d] -> keys and values [B, heads, 30, d / heads]."""
        d = memory.shape[-1]
        both = nn.functional.linear(memory, self.attend.in_proj_weight[d:], self.attend.in_proj_bias[d:])
        keys, values = both.unflatten(-1, (2, self.attend.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return keys, values

    def look(self, query: Tensor, projected: tuple[Tensor, Tensor]) -> Tensor:
        """[B, 1, d] -> [B, 1, d]."""
        d, heads = query.shape[-1], self.attend.num_heads
        q = nn.functional.linear(query, self.attend.in_proj_weight[:d], self.attend.in_proj_bias[:d])
        found = nn.functional.scaled_dot_product_attention(
            q.unflatten(-1, (heads, -1)).transpose(1, 2), *projected
        )
        return self.attend.out_proj(found.transpose(1, 2).flatten(2))

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        """[B, 1, d], [B, 30, d] -> [B, 1, d], keys and values of the whole memory projected at every call."""
        return self.attend(query, memory, memory, need_weights=False)[0]


class General(nn.Module):
    """Luong's general attention, in the same halves; the states themselves are the values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, width)

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """[B, 30, d] -> keys and values [B, 30, d]."""
        return self.key(memory), memory

    def look(self, query: Tensor, projected: tuple[Tensor, Tensor]) -> Tensor:
        """[B, 1, d] -> [B, 1, d]."""
        keys, values = projected
        return torch.softmax(query @ keys.transpose(1, 2) / values.shape[-1] ** 0.5, dim=-1) @ values

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        """[B, 1, d], [B, 30, d] -> [B, 1, d], as tutorials write it: the keys are projected inside, at every call."""
        return self.look(query, self.project(memory))


class NaiveRecurrent(nn.Module):
    """Encoder, then ten decoder steps with attention over it; a coin per step decides what is fed.

    `competent`: keys and values are projected once, before the steps.
    """

    def __init__(self, r: Recipe, cell: type[nn.GRU] | type[nn.LSTM], competent: bool = False) -> None:
        super().__init__()
        self.competent = competent
        self.encoder = cell(INPUTS, r.width, r.layers, batch_first=True, dropout=r.dropout)
        self.decoder = cell(CHANNELS, r.width, r.layers, batch_first=True, dropout=r.dropout)
        self.attention = MultiHead(r.width, r.heads) if r.heads > 1 else General(r.width)
        self.out = nn.Linear(2 * r.width, CHANNELS)

    def forward(self, x: Tensor, y: Tensor | None) -> Tensor:
        """[B, 30, 5] -> [B, 10, 4]; with `y`, teacher forcing with probability one half."""
        memory, state = self.encoder(x)
        projected = self.attention.project(memory) if self.competent else None
        fed, outputs = x[:, -1:, :CHANNELS], []
        for step in range(HORIZON):
            hidden, state = self.decoder(fed, state)
            look = (self.attention, memory) if projected is None else (self.attention.look, projected)
            found = look[0](hidden, look[1])
            outputs.append(self.out(torch.cat([hidden, found], dim=-1)))
            forced = y is not None and random.random() < 0.5
            fed = y[:, step : step + 1] if forced and y is not None else outputs[-1]
        return torch.cat(outputs, dim=1)


def build(architecture: str, recipe: Recipe | None = None, competent: bool = False) -> nn.Module:
    """The single model of "transformer", "gru" or "lstm"."""
    r = recipe or RECIPES[architecture]
    if architecture == "transformer":
        return NaiveTransformer(r, competent)
    return NaiveRecurrent(r, nn.GRU if architecture == "gru" else nn.LSTM, competent)


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
    series: Series,
    architecture: str,
    *,
    epochs: int,
    seed: int,
    device: str,
    recipe: Recipe | None = None,
    competent: bool = False,
    autocast: bool = False,
) -> list[dict[str, float]]:
    """Train one model on one series; per epoch the mean training and validation loss. `autocast`: products in bf16."""
    r = recipe or RECIPES[architecture]
    torch.manual_seed(seed)
    random.seed(seed)
    model = build(architecture, r, competent).to(device)
    kind = torch.optim.AdamW if r.adamw else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=1e-3, weight_decay=r.weight_decay, fused=competent or None)
    run = _competent_epoch if competent else _usual_epoch
    train = TensorDataset(*windows(series, "train"))
    validation = TensorDataset(*windows(series, "validation"))
    if competent:
        train, validation = (
            TensorDataset(*(t.to(device) for t in part.tensors)) for part in (train, validation)
        )
    history = []
    for _ in range(epochs):
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=autocast):
            loss, val_loss = run(model, optimizer, train, validation, r.batch, device)
        history.append({"train_loss": loss, "val_loss": val_loss})
    return history


def _usual_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    train: TensorDataset,
    validation: TensorDataset,
    batch: int,
    device: str,
) -> tuple[float, float]:
    """Mean losses of an epoch as tutorials write it: a DataLoader, and a sync per batch."""
    loader = DataLoader(train, batch_size=batch, shuffle=True)
    losses = [train_batch(model, optimizer, x.to(device), y.to(device)) for x, y in loader]
    return float(np.mean(losses)), _validate(model, DataLoader(validation, batch_size=batch), device)


def _competent_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    train: TensorDataset,
    validation: TensorDataset,
    batch: int,
    device: str,
) -> tuple[float, float]:
    """The same from tensors on the device, batches by index, one sync for all losses of the epoch."""
    x, y = train.tensors
    losses = [
        train_step(model, optimizer, x[rows], y[rows])
        for rows in torch.randperm(len(x), device=device).split(batch)
    ]
    model.eval()
    checks = []
    with torch.no_grad():
        for own_x, own_y in zip(*(t.split(1024) for t in validation.tensors), strict=True):
            checks.append(nn.functional.mse_loss(model(own_x, None), own_y) * len(own_x))
    val = torch.stack(checks).sum() / len(validation) if checks else torch.tensor(float("nan"))
    return torch.stack(losses).mean().item(), val.item()


def train_batch(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """One step of the usual loop."""
    return train_step(model, optimizer, x, y).item()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """One step without a sync; returns the loss, on the device."""
    model.train()
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x, y), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def _validate(model: nn.Module, loader: DataLoader, device: str) -> float:
    model.eval()
    losses = [nn.functional.mse_loss(model(x.to(device), None), y.to(device)).item() for x, y in loader]
    return float(np.mean(losses)) if losses else float("nan")


def train_naive(
    series: list[Series],
    architecture: str,
    *,
    epochs: int,
    device: str = "cpu",
    recipe: Recipe | None = None,
    **how: bool,
) -> list[list[dict[str, float]]]:
    """One model after another; the histories in the order of the series. `how`: one of `WAYS`."""
    return [
        train_one(s, architecture, epochs=epochs, seed=k, device=device, recipe=recipe, **how)
        for k, s in enumerate(series)
    ]
