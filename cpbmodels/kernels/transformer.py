"""The transformer of `cpbmodels.arch.transformer` over kernels: the same function, weights and steps.

A block hands on the sum so far and its LayerNorm: the kernel that adds a product to the sum also normalises it. Shapes:
K members, B windows, C candles of context and S steps of horizon (both at most 64), d columns (a power of 2 up to 256).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cpbmodels.arch.base import Batch
from cpbmodels.arch.layers import Weights
from cpbmodels.kernels.attention import cross_attention, one_query, self_attention
from cpbmodels.kernels.blocks import add_norm, bias_gelu
from cpbmodels.kernels.support import product

if TYPE_CHECKING:
    from cpbmodels.arch.transformer import Transformer


def forward(model: Transformer, batch: Batch, w: Weights, parallel: bool) -> Tensor:
    """Raw outputs [K, B, S, size]; `parallel`: all steps at once, else a step at a time, without gradient."""
    (K, B, C, _), heads, layers = batch.inputs.shape, model.options.n_heads, model.options.n_layers
    x, normed = add_norm(_placed(batch.inputs, w, "embed", w["position"]))
    for depth in range(layers):
        name = f"encoder.{depth}"
        qkv = torch.bmm(normed, w[f"{name}.qkv.weight"])
        x, normed = _add(
            x, self_attention(qkv, w[f"{name}.qkv.bias"], C, heads, causal=False), w, f"{name}.mix"
        )
        x, normed = _feed(x, normed, w, name)
    # Keys and values of all decoder layers, [K, B x C, 2d] each, from one product with the encoder's output.
    memory = _Memories.apply(normed, w["memory.weight"], layers)
    # [K, 1, 2d] by layer: added where attention reads the product
    biases = w["memory.bias"].chunk(layers, -1)
    if not parallel:
        return _stepwise(model, batch.start, memory, biases, w)
    S = model.head.steps
    if batch.truth is None:
        reads = batch.start.unsqueeze(2).expand(-1, -1, S, -1)
    else:
        # Step s reads the candle before it: [K, B, S, 4], the last known candle first.
        reads = torch.cat([batch.start.unsqueeze(2), batch.truth[:, :, :-1]], 2)
    x, normed = add_norm(_placed(reads, w, "read", w["step"]))
    for depth, (kv, bias) in enumerate(zip(memory, biases, strict=True)):
        name = f"decoder.{depth}"
        qkv = torch.bmm(normed, w[f"{name}.qkv.weight"])
        x, normed = _add(
            x, self_attention(qkv, w[f"{name}.qkv.bias"], S, heads, causal=True), w, f"{name}.mix"
        )
        query = torch.bmm(normed, w[f"{name}.query.weight"])
        attended = cross_attention(query, w[f"{name}.query.bias"], kv, bias, S, heads)
        x, normed = _feed(*_add(x, attended, w, f"{name}.found"), w, name)
    return _out(normed, w).view(K, B, S, model.head.size)


def _placed(x: Tensor, w: Weights, name: str, places: Tensor) -> Tensor:
    """x [K, B, T, F] -> x W + b + places [K, B x T, d], places [K, T, d]: one pass over the large product.

    A kernel of its own would save that pass, about 2 % of a step's time, and takes 100 lines: see docs/decisions.md.
    """
    mapped = product(x.flatten(1, 2), w[f"{name}.weight"]).unflatten(1, x.shape[1:3])  # [K, B, T, d]
    return (mapped + (w[f"{name}.bias"] + places).unsqueeze(1)).flatten(1, 2)


def _out(normed: Tensor, w: Weights) -> Tensor:
    """normed [K, N, d] -> [K, N, size]."""
    return product(normed, w["out.weight"]) + w["out.bias"]


def _add(x: Tensor, y: Tensor, w: Weights, name: str) -> tuple[Tensor, Tensor]:
    """x + y W + b [K, N, d], and its LayerNorm."""
    return add_norm(x, torch.bmm(y, w[f"{name}.weight"]), w[f"{name}.bias"])


def _feed(x: Tensor, normed: Tensor, w: Weights, name: str) -> tuple[Tensor, Tensor]:
    up = bias_gelu(torch.bmm(normed, w[f"{name}.up.weight"]), w[f"{name}.up.bias"])
    return _add(x, up, w, f"{name}.down")


def _stepwise(
    model: Transformer, start: Tensor, memory: tuple[Tensor, ...], biases: tuple[Tensor, ...], w: Weights
) -> Tensor:
    """A step at a time, each reading the previous step's median; queries, keys and values of all steps are kept."""
    (K, B, _), S, heads, d = start.shape, model.head.steps, model.options.n_heads, model.options.hidden_dim
    past = [start.new_empty(K, B, S, 3 * d) for _ in memory]  # [q, k, v] of the steps so far, without biases
    read, raws = start, []
    for step in range(S):
        x, normed = add_norm(_placed(read.unsqueeze(2), w, "read", w["step"][:, step : step + 1]))
        for depth, (kv, bias) in enumerate(zip(memory, biases, strict=True)):
            name, projected = f"decoder.{depth}", past[depth]
            projected[:, :, step] = torch.bmm(normed, w[f"{name}.qkv.weight"])
            bias_q, bias_kv = w[f"{name}.qkv.bias"].split([d, 2 * d], -1)
            attended = one_query(
                projected[:, :, step, :d], projected[..., d:], bias_q, bias_kv, step + 1, heads
            )
            x, normed = _add(x, attended, w, f"{name}.mix")
            query, T = torch.bmm(normed, w[f"{name}.query.weight"]), kv.shape[1] // B
            attended = one_query(query, kv.unflatten(1, (B, T)), w[f"{name}.query.bias"], bias, T, heads)
            x, normed = _feed(*_add(x, attended, w, f"{name}.found"), w, name)
        raws.append(_out(normed, w))
        read = model.head.feedback(raws[-1])
    return torch.stack(raws, 2)


class _Memories(torch.autograd.Function):
    """encoded [K, N, d] times weight [K, d, layers x 2d] -> by layer [K, N, 2d], views of one product."""

    @staticmethod
    def forward(ctx: Any, encoded: Tensor, weight: Tensor, layers: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward(encoded, weight)
        return torch.bmm(encoded, weight).chunk(layers, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Products layer by layer, without copying the layers' gradients beside each other."""
        encoded, weight = ctx.saved_tensors
        parts, d_weight = weight.chunk(len(grads), -1), weight.new_empty(weight.shape)
        d_encoded = torch.bmm(grads[0], parts[0].transpose(1, 2))
        for depth, (grad, part, out) in enumerate(
            zip(grads, parts, d_weight.chunk(len(grads), -1), strict=True)
        ):
            if depth:  # the sum over layers in place: no bias, no copy
                d_encoded.baddbmm_(grad, part.transpose(1, 2))
            torch.bmm(encoded.transpose(1, 2), grad, out=out)
        return d_encoded, d_weight, None
