"""The transformer's kernels in Triton's interpreter against float64 autograd."""

import pytest
import torch
import torch.nn.functional as F
from fleets import SmallFleet, difference, largest_difference

from cpbmodels.kernels import attention, transformer

CLOSE = 5e-7  # float32 against float64, relative; torch's own float32 is as far off


def _draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _compare(ours, reference, *inputs):
    """Results and all gradients of two functions, float32 against float64; outputs are weighted by random numbers."""
    exact = [tensor.requires_grad_() for tensor in inputs]
    rounded = [tensor.detach().float().requires_grad_() for tensor in inputs]
    wanted, computed = reference(*exact), ours(*rounded)
    weights = [_draw(*tensor.shape, seed=7 + k) for k, tensor in enumerate(wanted)]
    sum((tensor * weight).sum() for tensor, weight in zip(wanted, weights, strict=True)).backward()
    sum((tensor * weight.float()).sum() for tensor, weight in zip(computed, weights, strict=True)).backward()
    for tensor, other in zip(computed, wanted, strict=True):
        assert difference(tensor, other) < CLOSE
    for tensor, other in zip(rounded, exact, strict=True):
        assert difference(tensor.grad, other.grad) < CLOSE


@pytest.mark.parametrize(("rows", "width"), [(40, 32), (7, 48)])
def test_add_norm(rows, width):
    def reference(x, y, bias):
        total = x + y + bias
        return total, F.layer_norm(total, (width,))

    _compare(
        transformer.add_norm, reference, _draw(2, rows, width), _draw(2, rows, width), _draw(2, 1, width)
    )


def test_norm_alone():
    _compare(transformer.add_norm, lambda x: (x * 1, F.layer_norm(x, (32,))), _draw(2, 9, 32))


@pytest.mark.parametrize("width", [64, 144])
def test_bias_gelu(width):
    _compare(
        lambda x, b: [transformer.bias_gelu(x, b)],
        lambda x, b: [F.gelu(x + b)],
        _draw(2, 37, width),
        _draw(2, 1, width),
    )


def _attended(q, k, v, heads, causal):
    split = (tensor.unflatten(-1, (heads, -1)).transpose(-2, -3) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(*split, is_causal=causal).transpose(-2, -3).flatten(-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("steps", "heads"), [(7, 2), (33, 1)])
def test_self_attention(steps, heads, causal):
    def reference(qkv, bias):
        parts = (qkv + bias).unflatten(1, (-1, steps)).chunk(3, -1)
        return [_attended(*parts, heads, causal).flatten(1, 2)]

    _compare(
        lambda qkv, bias: [attention.self_attention(qkv, bias, steps, heads, causal)],
        reference,
        _draw(2, 3 * steps, 96),
        _draw(2, 1, 96),
    )


def test_cross_attention_over_rows_that_lie_apart():
    def ours(q, bq, kv, bkv):
        return [attention.cross_attention(q, bq, kv.chunk(2, -1)[1], bkv, 3, 2)]

    def reference(q, bq, kv, bkv):
        k, v = (kv.chunk(2, -1)[1] + bkv).unflatten(1, (4, 7)).chunk(2, -1)
        return [_attended((q + bq).unflatten(1, (4, 3)), k, v, 2, False).flatten(1, 2)]

    _compare(ours, reference, _draw(2, 12, 32), _draw(2, 1, 32), _draw(2, 28, 128), _draw(2, 1, 64))


def test_one_query():
    q, kv, bias = _draw(2, 5, 32), _draw(2, 5, 7, 64), _draw(2, 1, 96)
    key, value = (kv[:, :, :4] + bias[:, None, :, 32:]).chunk(2, -1)
    wanted = _attended((q + bias[..., :32]).unsqueeze(2), key, value, 2, False).squeeze(2)
    computed = attention.one_query(
        q.float(), kv.float(), bias[..., :32].float(), bias[..., 32:].float(), 4, 2
    )
    assert difference(computed, wanted) < CLOSE


FEW = {"batch_size": 3}  # windows: a program runs for seconds here


def test_gradients_of_a_step_equal_float64():
    losses, exact = SmallFleet("transformer", torch.float64, **FEW).gradients()
    close, computed = SmallFleet("transformer", torch.float32, kernels=True, **FEW).gradients()
    assert difference(close, losses) < CLOSE
    assert largest_difference(computed, exact)[1] < CLOSE


@pytest.mark.parametrize("forcing", [1.0, 0.0])
def test_validation_equals_float64_at_any_width(forcing):
    exact = SmallFleet("transformer", torch.float64, teacher_forcing=forcing).validation(5)
    computed = SmallFleet("transformer", torch.float32, kernels=True, teacher_forcing=forcing).validation(5)
    assert difference(computed, exact) < CLOSE


def test_a_member_does_not_depend_on_its_neighbours():
    _, pair = SmallFleet("transformer", torch.float32, kernels=True, members=2, **FEW).gradients()
    _, three = SmallFleet("transformer", torch.float32, kernels=True, members=3, **FEW).gradients()
    assert all(torch.equal(pair[name], three[name][:2]) for name in pair)
