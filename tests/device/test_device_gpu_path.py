"""The step that a GPU would run, walked on torch's meta device: no data, but real devices, dtypes and shapes.

There a tensor left on the host, a dtype that the fused kernels refuse, and whatever makes the host wait for a
value (`.item()`, a boolean mask, `nonzero`) are errors. What the step computes is tested on the CPU.
"""

from collections import Counter

import pytest
import torch

from cpbmodels import architecture, architectures, preset
from cpbmodels.device import steps
from cpbmodels.device.placement import OpLog

META = torch.device("meta")
LEARNT = [name for name in architectures() if not architecture(name).closed_form]
SIZES = {"hidden_dim": 8, "n_layers": 2, "n_heads": 2, "ff_dim": 16, "batch_size": 4, "dropout": 0.2}


def _gru_cell(inputs, hidden, h, input_bias=None, hidden_bias=None):
    _same_kind(inputs, hidden, h, gates=3)
    return torch.empty_like(h), h.new_empty(len(h), 5 * h.shape[1])


def _gru_cell_backward(grad, workspace, has_bias):
    gates = grad.new_empty(len(grad), 3 * grad.shape[1])
    return gates, gates.clone(), torch.empty_like(grad), None, None


def _lstm_cell(inputs, hidden, c, input_bias=None, hidden_bias=None):
    _same_kind(inputs, hidden, c, gates=4)
    return torch.empty_like(c), torch.empty_like(c), torch.empty_like(inputs)


def _lstm_cell_backward(grad_h, grad_c, c, new, workspace, has_bias):
    return torch.empty_like(workspace), torch.empty_like(c), None


def _same_kind(inputs, hidden, state, gates):
    """What RNN.cu checks."""
    assert inputs.shape == hidden.shape == (len(state), gates * state.shape[1])
    assert inputs.dtype == hidden.dtype == state.dtype
    assert inputs.device == hidden.device == state.device


def _adam(rows, grads, first, second, most, counts, *, lr, **options):
    """What FusedAdam checks: like in kind and place, dense, counts and rate in float32 on the device."""
    for row, *others in zip(rows, grads, first, second, strict=True):
        assert row.is_contiguous()
        for other in others:
            assert (other.dtype, other.device, other.stride()) == (row.dtype, row.device, row.stride())
    for number in (*counts, lr):
        assert (number.dtype, number.shape, number.device) == (torch.float32, (), rows[0].device)


KERNELS = {
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_fused_adamw_.tensor_lr": _adam,
    "_fused_adam_.tensor_lr": _adam,
}


@pytest.fixture(scope="module", autouse=True)
def _kernels_without_a_meta_form():
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in KERNELS.items():
        # Some builds of torch have a meta form of the LSTM cell; `library.impl` refuses to replace it before torch 2.8.
        library.m.impl(name, "Meta", kernel, False)
    yield
    library._destroy()


def fleet_step(architecture, compute=torch.float32, **options):
    return steps.fleet_step(
        architecture, preset("default", architecture, **SIZES | options), 3, META, compute, rows=500
    )


@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("architecture", LEARNT)
def test_a_step_never_touches_the_host(architecture, compute):
    step = fleet_step(architecture, compute)
    with OpLog() as log:
        step()
    assert not log.on_cpu
    assert log.syncs == 0
    assert log.counts


@pytest.mark.parametrize(
    "options",
    [
        {"teacher_forcing": 0.5},
        {"teacher_forcing": 1.0, "head": "point"},
        {"head": "quantile"},
        {"loss": "crps"},
        {"accumulate": 2},
        {"checkpoint_gradients": True},
        {"optimizer": "adam", "dropout": 0.0},
    ],
)
@pytest.mark.parametrize("architecture", ["transformer", "gru", "lstm"])
def test_nor_does_any_way_to_train(architecture, options):
    step = fleet_step(architecture, torch.bfloat16, **options)
    with OpLog() as log:
        step()
    assert not log.on_cpu
    assert log.syncs == 0


@pytest.mark.parametrize("architecture", LEARNT)
def test_validation_stays_on_the_device(architecture):
    step = fleet_step(architecture)
    with OpLog() as log:
        losses = step.fleet.evaluate(step.bank, step.origins, step.weight, 2)
    assert losses.device == META
    assert not log.on_cpu
    assert log.syncs == 0


@pytest.mark.parametrize("architecture", ["gru", "lstm"])
def test_a_candle_costs_one_product_and_one_fused_cell(architecture):
    """Forward and backward; nothing is copied to bring gates into line for the fused kernels."""
    counts = []
    for context in (10, 30):
        step = fleet_step(architecture, context=context)
        with OpLog() as log:
            step()
        counts.append(Counter(name.split(".")[1] for name in log.counts.elements()))
    candles = 20 * SIZES["n_layers"]
    longer = {name: (counts[1][name] - counts[0][name]) / candles for name in counts[1]}
    assert longer["baddbmm"] == longer["bmm"] == longer[f"_thnn_fused_{architecture}_cell"] == 1
    assert not [name for name in ("clone", "copy_", "contiguous", "cat") if longer.get(name)]
