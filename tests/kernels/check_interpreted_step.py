"""Dropout and the optimizer's kernels in Triton's interpreter: masks bit for bit, Adam against float64."""

import pytest
import torch

from cpbmodels.arch.layers import Draws, dropout
from cpbmodels.fleet import fleet
from cpbmodels.fleet.fleet import BETAS, EPSILON
from cpbmodels.kernels.dropout import KernelDraws
from cpbmodels.kernels.optimizer import update
from tests.tools import triton_bf16
from tests.tools.small_fleets import SmallFleet, difference


def _draws(kind, members=3):
    return kind(torch.arange(members), torch.arange(5, 5 + members))


RATES = [0.3, 0.95, torch.tensor([0.1, 0.5, 0.0004], dtype=torch.float64)]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("shape", [(3, 7, 33), (3, 5000), (3, 1)])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_masks_and_products_have_the_same_bits(shape, kind, rate):
    ours, torchs = _draws(KernelDraws), _draws(Draws)
    for _ in range(2):  # each call takes the next layer's key
        assert torch.equal(
            ours.factors(rate, torch.Size(shape), kind), torchs.factors(rate, torch.Size(shape), kind)
        )
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    wanted, computed = dropout(x, rate, torchs), dropout(x, rate, ours)
    assert torch.equal(computed, wanted)
    assert torch.equal(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (computed, wanted)))


def _adam(flat, first, second, done, grad, rate, clip, decay, adamw):
    """One step of one row in float64, in place."""
    grad = grad * (clip / (grad.norm() + 1e-6)).clamp(max=1)
    if adamw:
        flat -= rate * decay * flat
    else:
        grad = grad + decay * flat
    first += (1 - BETAS[0]) * (grad - first)
    second += (1 - BETAS[1]) * (grad * grad - second)
    flat -= rate / (1 - BETAS[0] ** done) * first / ((second / (1 - BETAS[1] ** done)).sqrt() + EPSILON)


@pytest.mark.parametrize("adamw", [True, False])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_clip_and_adam_equal_float64_row_by_row(adamw, kind, monkeypatch):
    triton_bf16.mend(monkeypatch)
    draw = torch.Generator().manual_seed(3)
    flat = torch.randn(3, 9000, generator=draw)
    before, copy, steps = flat.clone(), flat.to(torch.bfloat16), torch.tensor([4.0, 0.0, 7.0])
    first, second = torch.zeros_like(flat), torch.zeros_like(flat)
    exact = [tensor.double().clone() for tensor in (flat, first, second)]
    held, rates = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([1e-3, 1e-2, 1e-3])
    clips, decays = torch.tensor([1.0, 1e6, 1.0]), torch.tensor([0.01, 0.1, 0.01])
    for _ in range(3):
        grad = torch.randn(flat.shape, generator=draw).to(kind)
        update(flat, copy, grad, (first, second), steps, rates, (clips, decays), held, adamw, BETAS, EPSILON)
        for k in range(2):
            rows, limits = (
                (tensor[k] for tensor in exact),
                (tensor[k].double() for tensor in (rates, clips, decays)),
            )
            _adam(*rows, float(steps[k]), grad[k].double(), *limits, adamw)
    assert steps.tolist() == [7.0, 3.0, 7.0]
    assert torch.equal(flat[2], before[2])
    for computed, wanted in zip((flat, first, second), exact, strict=True):
        assert difference(computed[:2], wanted[:2]) < 2e-7
    assert torch.equal(copy[:2], flat[:2].bfloat16())


def test_a_gradient_that_is_not_finite_makes_its_row_nan_and_no_other():
    flat, steps = torch.ones(2, 5000), torch.zeros(2)
    grad = torch.ones(2, 5000)
    grad[0, 17] = torch.nan
    limits = torch.ones(2), torch.zeros(2)
    moments = torch.zeros_like(flat), torch.zeros_like(flat)
    update(flat, None, grad, moments, steps, torch.tensor(1e-3), limits, None, True, BETAS, EPSILON)
    assert bool(flat[0].isnan().all())
    assert bool(flat[1].isfinite().all())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_of_a_fleet_equal_those_of_torchs_path(accumulate, monkeypatch):
    # With 1e-8, Adam divides rounding by rounding where a gradient is 0, such as that of the keys' biases.
    monkeypatch.setattr(fleet, "EPSILON", 1e-3)
    size = {"batch_size": 2, "n_layers": 1, "accumulate": accumulate}
    torchs = SmallFleet("transformer", torch.float64, **size)
    ours = SmallFleet("transformer", torch.float32, kernels=True, **size)
    start = torchs.fleet.flat.clone()
    for _ in range(2):
        torchs.step()
        ours.step()
    moved = torchs.fleet.flat - start
    assert difference(ours.fleet.flat - start.float(), moved) < 1e-4  # a move of 1e-3 in a float32 near 1
