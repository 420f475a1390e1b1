"""The transformer of `cpbmodels.arch.transformer` over kernels: the same function, weights and steps.

What lies between its products (bias, residual, LayerNorm, GELU) comes first. No product adds a bias of its own:
broadcast into `baddbmm` it costs 1.7 to 4 times the product on an H100, so the kernel that reads the product adds it.
A block hands on the sum so far and its LayerNorm: the kernel that adds a product to the sum also normalises it.

Shapes: K members, B windows, C candles of context and S steps of horizon (both at most 64), N rows (windows x steps), d
columns, a power of 2 up to 256 where a program holds whole rows; bias [K, 1, d]. Everything is contiguous but biases
and weights, whose members may lie apart. Values are loaded from, and stored in, the dtype of the products; all
arithmetic and all partial sums are float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cpbmodels.arch.base import Batch
from cpbmodels.arch.layers import Draws, Weights, is_exactly
from cpbmodels.arch.transformer import Transformer
from cpbmodels.kernels.attention import cross_attention, one_query, self_attention
from cpbmodels.kernels.support import launch, partial_sums, product, summed

EPSILON = 1e-5  # torch's layer_norm
ROWS = 32  # rows of a program; 16 and 64 were slower by 3 and 0.5 % of a step on an H100
COLUMNS = 128  # of a program of `bias_gelu`


# --- residual + bias + LayerNorm --------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=["N"])
def _tile(N, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """Places [R, BD] of this program's rows in [K, N, D], and which of them exist; program axes: member, rows."""
    k = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * R + tl.arange(0, R)
    cols = tl.arange(0, BD)
    return (k * N + rows)[:, None] * D + cols[None, :], (rows < N)[:, None] & (cols < D)[None, :], cols


@triton.jit
def _centred(v, mask, D: tl.constexpr, EPS: tl.constexpr):
    """Rows less their mean, and 1 / standard deviation [R]; torch's biased variance."""
    c = tl.where(mask, v - (tl.sum(v, 1) / D)[:, None], 0.0)
    return c, 1 / tl.sqrt(tl.sum(c * c, 1) / D + EPS)


@triton.jit(do_not_specialize=["N"])
def _add_norm(
    x,
    y,
    bias,
    total,
    normed,
    N,
    s_bias,
    ADDS: tl.constexpr,
    EPS: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    R: tl.constexpr,
):
    """x, y, total, normed [K, N, D], bias [K, D] s_bias apart. total = x + y + bias; normed = its LayerNorm."""
    at, mask, cols = _tile(N, R, D, BD)
    # [R, BD]: whole rows, so the mean needs no second pass
    v = tl.load(x + at, mask, other=0.0).to(tl.float32)
    if ADDS:
        v += tl.load(y + at, mask, other=0.0).to(tl.float32)
        b = tl.load(bias + tl.program_id(0).to(tl.int64) * s_bias + cols, cols < D, other=0.0)
        kept = tl.where(mask, v + b.to(tl.float32)[None, :], 0.0).to(total.dtype.element_ty)
        tl.store(total + at, kept, mask)
        v = kept.to(tl.float32)  # as the backward pass will read it
    c, inverse = _centred(v, mask, D, EPS)
    tl.store(normed + at, (c * inverse[:, None]).to(normed.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["N"])
def _add_norm_backward(
    total,
    d_normed,
    d_total,
    d_x,
    part,
    N,
    RESIDUAL: tl.constexpr,
    ADDS: tl.constexpr,
    EPS: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    R: tl.constexpr,
):
    """Gradient of x, of y and, as part [K, programs, D] by program, of the bias: all three are added up.

    With n = normed, g = dL/dn and means over D: dL/dx = (g - mean(g) - n mean(g n)) / std + dL/dtotal.
    """
    at, mask, cols = _tile(N, R, D, BD)
    c, inverse = _centred(tl.load(total + at, mask, other=0.0).to(tl.float32), mask, D, EPS)
    n = c * inverse[:, None]
    g = tl.load(d_normed + at, mask, other=0.0).to(tl.float32)
    out = (g - (tl.sum(g, 1) / D)[:, None] - n * (tl.sum(g * n, 1) / D)[:, None]) * inverse[:, None]
    if RESIDUAL:
        out += tl.load(d_total + at, mask, other=0.0).to(tl.float32)
    tl.store(d_x + at, out.to(d_x.dtype.element_ty), mask)
    if ADDS:
        # [R, BD] over this program's rows; the places of partial sums are [K, programs of a member, D].
        place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
        tl.store(part + place * D + cols, tl.sum(tl.where(mask, out, 0.0), 0), cols < D)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        K, N, D = x.shape
        x = x.contiguous()
        ctx.adds = y is not None and bias is not None
        total = torch.empty_like(x) if ctx.adds else x
        normed = torch.empty_like(x)
        more = (y.contiguous(), bias) if y is not None and bias is not None else (x, x)
        launch(
            _add_norm,
            (K, triton.cdiv(N, ROWS)),
            x,
            *more,
            total,
            normed,
            N,
            more[1].stride(0),
            ADDS=ctx.adds,
            EPS=EPSILON,
            D=D,
            BD=triton.next_power_of_2(D),
            R=ROWS,
            num_warps=4,
        )
        ctx.save_for_backward(total)
        ctx.set_materialize_grads(False)
        return total if ctx.adds else x.view_as(x), normed

    @staticmethod
    def backward(ctx: Any, d_total: Tensor | None, d_normed: Tensor) -> tuple[Tensor | None, ...]:
        (total,) = ctx.saved_tensors
        K, N, D = total.shape
        d_x, d_normed = torch.empty_like(total), d_normed.contiguous()
        grid = (K, triton.cdiv(N, ROWS))
        part = partial_sums(total, grid[1]) if ctx.adds else total
        residual = d_normed if d_total is None else d_total.contiguous()
        launch(
            _add_norm_backward,
            grid,
            total,
            d_normed,
            residual,
            d_x,
            part,
            N,
            RESIDUAL=d_total is not None,
            ADDS=ctx.adds,
            EPS=EPSILON,
            D=D,
            BD=triton.next_power_of_2(D),
            R=ROWS,
            num_warps=4,
        )
        return (d_x, d_x, summed(part, total)) if ctx.adds else (d_x, None, None)


add_norm: Any = _AddNorm.apply
"""x, y [K, N, d], bias [K, 1, d] or None -> (x + y + bias, its LayerNorm without scale and shift); d <= 256."""


# --- bias + GELU ------------------------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=["N"])
def _gelu_tile(x, bias, N, s_bias, D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr):
    """x + bias [R, BD] of this program (member, rows, columns), its places, which exist, and its columns."""
    k = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * R + tl.arange(0, R)
    cols = tl.program_id(2) * BD + tl.arange(0, BD)
    mask = (rows < N)[:, None] & (cols < D)[None, :]
    at = (k * N + rows)[:, None] * D + cols[None, :]
    b = tl.load(bias + k * s_bias + cols, cols < D, other=0.0).to(tl.float32)
    return tl.load(x + at, mask, other=0.0).to(tl.float32) + b[None, :], at, mask, cols


@triton.jit(do_not_specialize=["N"])
def _bias_gelu(x, bias, out, N, s_bias, D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr):
    """x, out [K, N, D], bias [K, D] s_bias apart: out = v / 2 (1 + erf(v / sqrt 2)) with v = x + bias."""
    v, at, mask, _cols = _gelu_tile(x, bias, N, s_bias, D, BD, R)
    tl.store(out + at, (0.5 * v * (1 + tl.erf(v * 0.7071067811865476))).to(out.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["N"])
def _bias_gelu_backward(
    x, bias, d_out, d_x, part, N, s_bias, D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr
):
    """d_x = d_out (Phi(v) + v phi(v)), Phi and phi the normal distribution and density; part [K, programs, D]."""
    v, at, mask, cols = _gelu_tile(x, bias, N, s_bias, D, BD, R)
    # d/dv v Phi(v) = Phi(v) + v phi(v); the constants are 1 / sqrt 2 and 1 / sqrt(2 pi).
    slope = 0.5 * (1 + tl.erf(v * 0.7071067811865476)) + v * 0.3989422804014327 * tl.exp(-0.5 * v * v)
    out = tl.load(d_out + at, mask, other=0.0).to(tl.float32) * slope
    tl.store(d_x + at, out.to(d_x.dtype.element_ty), mask)
    place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(part + place * D + cols, tl.sum(out, 0), cols < D)


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        K, N, D = x.shape
        ctx.save_for_backward(x, bias)
        out = torch.empty_like(x)
        grid = (K, triton.cdiv(N, ROWS), triton.cdiv(D, COLUMNS))
        launch(_bias_gelu, grid, x, bias, out, N, bias.stride(0), D=D, BD=COLUMNS, R=ROWS, num_warps=4)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor]:
        x, bias = ctx.saved_tensors
        K, N, D = x.shape
        d_x = torch.empty_like(x)
        grid = (K, triton.cdiv(N, ROWS), triton.cdiv(D, COLUMNS))
        part = partial_sums(x, grid[1])
        launch(
            _bias_gelu_backward,
            grid,
            x,
            bias,
            d_out.contiguous(),
            d_x,
            part,
            N,
            bias.stride(0),
            D=D,
            BD=COLUMNS,
            R=ROWS,
            num_warps=4,
        )
        return d_x, summed(part, x)


bias_gelu: Any = _BiasGelu.apply
"""x [K, N, d], bias [K, 1, d] -> gelu(x + bias), by the error function; any d."""


def transformer_forward(model: Transformer, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
    """`Transformer.forward` over the kernels: raw outputs [K, B, S, size]."""
    (K, B, C, _), heads, layers = batch.inputs.shape, model.options.n_heads, model.options.n_layers
    x, normed = add_norm(_placed(batch.inputs, w, "embed", w["position"]), None, None)
    for depth in range(layers):
        name = f"encoder.{depth}"
        qkv = torch.bmm(normed, w[f"{name}.qkv.weight"])
        x, normed = _add(x, self_attention(qkv, w[f"{name}.qkv.bias"], C, heads, False), w, f"{name}.mix")
        x, normed = _feed(x, normed, w, name)
    # Keys and values of all decoder layers, [K, B x C, 2d] each, from one product with the encoder's output.
    memory = _Memories.apply(normed, w["memory.weight"], layers)
    # [K, 1, 2d] by layer: added where attention reads the product
    biases = w["memory.bias"].chunk(layers, -1)
    # Outside training a decoder that learned by teacher forcing reads its own candles, one step after the other.
    if draws is None and not is_exactly(model.options.teacher_forcing, 0):
        return _stepwise(model, batch.start, memory, biases, w)
    S = model.head.steps
    if batch.truth is None:
        reads = batch.start.unsqueeze(2).expand(-1, -1, S, -1)
    else:
        # Step s reads the candle before it: [K, B, S, 4], the last known candle first.
        reads = torch.cat([batch.start.unsqueeze(2), batch.truth[:, :, :-1]], 2)
    x, normed = add_norm(_placed(reads, w, "read", w["step"]), None, None)
    for depth, (kv, bias) in enumerate(zip(memory, biases, strict=True)):
        name = f"decoder.{depth}"
        qkv = torch.bmm(normed, w[f"{name}.qkv.weight"])
        x, normed = _add(x, self_attention(qkv, w[f"{name}.qkv.bias"], S, heads, True), w, f"{name}.mix")
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
    total, normed = add_norm(x, torch.bmm(y, w[f"{name}.weight"]), w[f"{name}.bias"])
    return total, normed


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
        x, normed = add_norm(_placed(read.unsqueeze(2), w, "read", w["step"][:, step : step + 1]), None, None)
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
