"""`transformer`: encoder and causal decoder, pre-norm, GELU. Decoding is parallel in training, cached in forecasting.

With `teacher_forcing` > 0 the decoder reads the candle before each step: the truth in training, its own median in
forecasting, a step at a time with cached keys and values. Without, each step reads the origin's candle and its own
position, and all steps are parallel in forecasting too. A distribution over the whole horizon needs the latter: a
decoder that reads the true path in training learns the spread of one step only.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.base import SEED_PRESET, SEED_TUNED, Architecture, ArchitectureSpec, Batch
from cpbmodels.arch.layers import (
    Draws,
    Param,
    Weights,
    attend,
    dropout,
    is_exactly,
    linear,
    linear_params,
    normalise,
)
from cpbmodels.arch.options import Preset

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values [K x B x heads, T, d / heads] per decoder layer."""


SEED_TRANSFORMER: dict[str, Any] = {
    **SEED_PRESET,
    "hidden_dim": 128,
    "n_heads": 8,
    "n_layers": 2,
    "ff_dim": 512,
    "dropout": 0.0,
    "teacher_forcing": 1.0,
    "batch_size": 128,
    "epochs": 50,
    "patience": 10,
    "max_train_rows": 5000,
}
SEED_PRESETS = {
    "seed-transformer": SEED_TRANSFORMER,
    "seed-transformer-tuned": {**SEED_TRANSFORMER, **SEED_TUNED, "lr": 5e-4, "schedule": "cosine"},
}


class Transformer(Architecture):
    """LayerNorms carry no weights: the linear map after each absorbs them (same functions, fewer launches)."""

    spec = ArchitectureSpec(
        sizes=("hidden_dim", "n_layers", "n_heads", "ff_dim", "dropout"),
        defaults={"hidden_dim": 64, "n_layers": 2, "n_heads": 4, "ff_dim": 128, "dropout": 0.1, "lr": 5e-4},
        presets=SEED_PRESETS,
        default_preset="seed-transformer",
        bf16_on_cpu=True,
        threads_from_width=128,
    )

    @classmethod
    @override
    def no_kernels(cls, options: Preset) -> str:
        d, heads = options.hidden_dim, options.n_heads
        if not is_exactly(options.dropout, 0):
            return "a transformer with dropout"
        if options.calendar:
            return "a calendar"
        if max(options.context, options.horizon, d // heads) > 64:
            return "more than 64 candles of context or horizon, or columns of a head"
        if not 16 <= d <= 256 or d & (d - 1) or heads & (heads - 1) or options.ff_dim % 16:
            return "hidden_dim (16 to 256) and n_heads must be powers of 2, ff_dim a multiple of 16"
        return ""

    @override
    def params(self) -> list[Param]:
        d, C, S = self.options.hidden_dim, self.options.context, self.head.steps
        out = [*linear_params("embed", self.inputs, d), Param("position", (C, d), 0.05)]
        out += [*linear_params("read", 4, d), Param("step", (S, d), 0.05)]
        for depth in range(self.options.n_layers):
            out += self._block(f"encoder.{depth}") + self._block(f"decoder.{depth}")
            out += linear_params(f"decoder.{depth}.query", d, d) + linear_params(
                f"decoder.{depth}.found", d, d
            )
        out += linear_params("memory", d, 2 * d * self.options.n_layers)
        return [*out, *linear_params("out", d, self.head.size)]

    def _block(self, name: str) -> list[Param]:
        d, ff = self.options.hidden_dim, self.options.ff_dim
        out = linear_params(f"{name}.qkv", d, 3 * d) + linear_params(f"{name}.mix", d, d)
        return out + linear_params(f"{name}.up", d, ff) + linear_params(f"{name}.down", ff, d)

    @override
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        memory = self.memories(self.encode(batch, w, draws), w)
        if is_exactly(self.options.teacher_forcing, 0):
            # The steps differ by their positions alone, so that all are forecast at once.
            reads = [batch.start] * self.head.steps
        elif batch.truth is not None and draws is not None:
            reads = [batch.start, *batch.truth[:, :, :-1].unbind(2)]
        else:
            return self.decode_stepwise(batch.start, memory, w)
        return self.decode(torch.stack(reads, 2), memory, w, draws)

    def encode(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        """[K, B, C, F] -> [K, B x C, d]."""
        K, B, C, _ = batch.inputs.shape
        x = self._place(linear(batch.inputs.reshape(K, B * C, -1), w, "embed"), w["position"], B)
        x = dropout(x, self.options.dropout, draws)
        for depth in range(self.options.n_layers):
            name = f"encoder.{depth}"
            q, k, v = self._split(linear(normalise(x), w, f"{name}.qkv"), B, 3)
            x = self._add(x, self._join(attend(q, k, v), K, B), w, f"{name}.mix", draws)
            x = self._feed(x, w, name, draws)
        # Pre-norm blocks add to an x that no block has normalised, so the last one is followed by a norm.
        return normalise(x)

    def memories(self, encoded: Tensor, w: Weights) -> Cache:
        """Keys and values of the encoder for every decoder layer: one product for all, once per window."""
        B = encoded.shape[1] // self.options.context
        parts = self._split(linear(encoded, w, "memory"), B, 2 * self.options.n_layers)
        return list(zip(parts[::2], parts[1::2], strict=True))

    def decode(self, reads: Tensor, memory: Cache, w: Weights, draws: Draws | None) -> Tensor:
        """All steps at once: candles read [K, B, S, 4] -> raw [K, B, S, size].

        `mask` is added to the scores: -inf above the diagonal, so no step attends to a later one.
        """
        K, B, S, _ = reads.shape
        mask = torch.full((S, S), -torch.inf, device=reads.device, dtype=reads.dtype).triu(1)
        x = self._place(linear(reads.reshape(K, B * S, 4), w, "read"), w["step"], B)
        x = dropout(x, self.options.dropout, draws)
        for depth, (keys, values) in enumerate(memory):
            name = f"decoder.{depth}"
            q, k, v = self._split(linear(normalise(x), w, f"{name}.qkv"), B, 3)
            x = self._add(x, self._join(attend(q, k, v, mask), K, B), w, f"{name}.mix", draws)
            x = self._cross(x, keys, values, w, name, draws)
            x = self._feed(x, w, name, draws)
        return linear(normalise(x), w, "out").view(K, B, S, self.head.size)

    def decode_stepwise(self, start: Tensor, memory: Cache, w: Weights) -> Tensor:
        """A step at a time, each reading the median of the previous step; earlier keys and values are cached."""
        K, B, _ = start.shape
        cache: list[list[tuple[Tensor, Tensor]]] = [[] for _ in memory]
        read, raws = start, []
        for step in range(self.head.steps):
            x = linear(read, w, "read") + w["step"][:, step : step + 1]
            for depth, (keys, values) in enumerate(memory):
                name = f"decoder.{depth}"
                q, k, v = self._split(linear(normalise(x), w, f"{name}.qkv"), B, 3)
                cache[depth].append((k, v))
                # No mask: the cache holds this step and those before, and nothing later.
                past_k, past_v = (torch.cat(part, -2) for part in zip(*cache[depth], strict=True))
                x = self._add(x, self._join(attend(q, past_k, past_v), K, B), w, f"{name}.mix", None)
                x = self._cross(x, keys, values, w, name, None)
                x = self._feed(x, w, name, None)
            raws.append(linear(normalise(x), w, "out"))
            read = self.head.feedback(raws[-1])
        return torch.stack(raws, 2)

    def _cross(
        self, x: Tensor, keys: Tensor, values: Tensor, w: Weights, name: str, draws: Draws | None
    ) -> Tensor:
        K = x.shape[0]
        B = keys.shape[0] // (K * self.options.n_heads)
        (query,) = self._split(linear(normalise(x), w, f"{name}.query"), B, 1)
        return self._add(x, self._join(attend(query, keys, values), K, B), w, f"{name}.found", draws)

    def _feed(self, x: Tensor, w: Weights, name: str, draws: Draws | None) -> Tensor:
        return self._add(x, F.gelu(linear(normalise(x), w, f"{name}.up")), w, f"{name}.down", draws)

    def _add(self, x: Tensor, y: Tensor, w: Weights, name: str, draws: Draws | None) -> Tensor:
        return x + dropout(linear(y, w, name), self.options.dropout, draws)

    def _place(self, x: Tensor, positions: Tensor, B: int) -> Tensor:
        """Add positions [K, T, d] to x [K, B x T, d]."""
        K, T, d = positions.shape
        return (x.view(K, B, T, d) + positions.unsqueeze(1)).view(K, B * T, d)

    def _split(self, x: Tensor, B: int, parts: int) -> tuple[Tensor, ...]:
        """[K, B x T, parts x d] -> `parts` tensors [K x B x heads, T, d / heads]."""
        K, heads = x.shape[0], self.options.n_heads
        width = self.options.hidden_dim // heads
        x = x.view(K, B, -1, parts, heads, width).permute(3, 0, 1, 4, 2, 5)
        return x.reshape(parts, K * B * heads, -1, width).unbind(0)

    def _join(self, x: Tensor, K: int, B: int) -> Tensor:
        """[K x B x heads, T, d / heads] -> [K, B x T, d]."""
        heads, (T, width) = self.options.n_heads, x.shape[-2:]
        return x.view(K, B, heads, T, width).transpose(2, 3).reshape(K, B * T, heads * width)
