"""The step that a GPU would run, walked on torch's meta device: no data, but real devices, dtypes and shapes.

There a tensor left on the host, a dtype that the fused kernels refuse, and whatever makes the host wait for a
value (`.item()`, a boolean mask, `nonzero`) are errors. What the step computes is tested on the CPU.
"""

import pytest
import torch

from benchmarks import _kernels
from cpbmodels import architecture, architectures, preset
from cpbmodels.device.operators import OperatorLog
from cpbmodels.fleet import one_step

META = torch.device("meta")
SYNCS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique")
"""Operators that make the host wait for a GPU (`.item()` is _local_scalar_dense)."""
LEARNT = [name for name in architectures() if not architecture(name).closed_form and name != "average"]
SIZES = {"hidden_dim": 8, "n_layers": 2, "n_heads": 2, "ff_dim": 16, "batch_size": 4, "dropout": 0.2}


@pytest.fixture(scope="module", autouse=True)
def _kernels_without_a_meta_form():
    with _kernels.meta_kernels():
        yield


def stays_on_the_device(work):
    """What `work` returns; it must give no CPU tensor and not make the host wait."""
    with OperatorLog() as log, _kernels.KernelLog() as operators:
        result = work()
    assert operators.total
    assert not log.on_cpu
    assert not operators.launches.keys() & set(SYNCS)
    return result


def fleet_step(architecture, compute=torch.float32, **options):
    return one_step.fleet_step(
        architecture, preset("default", architecture, **SIZES | options), 3, META, compute, rows=500
    )


@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("architecture", LEARNT)
def test_a_step_never_touches_the_host(architecture, compute):
    stays_on_the_device(fleet_step(architecture, compute))


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
    stays_on_the_device(fleet_step(architecture, torch.bfloat16, **options))


@pytest.mark.parametrize("architecture", LEARNT)
def test_validation_stays_on_the_device(architecture):
    step = fleet_step(architecture)
    losses = stays_on_the_device(lambda: step.fleet.evaluate(step.bank, step.origins, step.weight, 2))
    assert losses.device == META


@pytest.mark.parametrize("options", [{}, {"mixed_precision": "fp16"}])
def test_masked_rows_stay_on_the_device(options):
    step = fleet_step("linear", torch.float16 if options else torch.float32)
    rates = step.runner.rates[0]
    stays_on_the_device(lambda: step.fleet.step(step.bank, step.origins, step.weight, rates, maskable=2))
