"""Learning rates: a GPU's fused optimizer reads float32, a CPU's float64; both take the same steps."""

import numpy as np
import pytest
import torch
from candles import walk

from cpbmodels import train_fleet
from cpbmodels.fleet import loop
from cpbmodels.fleet.fleet import Fleet, rate_tensor

OPTIONS = {
    "preset": "smoke", "device": "cpu", "workers": 1, "dtype": "float64", "steps_per_epoch": 6, "epochs": 3,
    "lr": 1e-3, "warmup_steps": 5, "schedule": "cosine",
}  # fmt: skip


def test_every_step_takes_a_rate_that_float32_holds_exactly(monkeypatch):
    step, taken = Fleet.step, []
    monkeypatch.setattr(
        Fleet, "step", lambda self, *rest, **named: taken.append(float(rest[3])) or step(self, *rest, **named)
    )
    member = train_fleet([walk(500)], "linear", **OPTIONS)[0]
    assert len(set(taken)) == 5 + 2  # the warm-up's, then one an epoch
    assert all(rate == float(np.float32(rate)) for rate in taken)
    assert member.history[0]["lr"] == 1e-3  # reported as it was asked for


@pytest.mark.parametrize("architecture", ["linear", "gru"])
def test_a_gpus_dtype_of_the_rate_changes_no_bit(architecture, monkeypatch):
    wanted = train_fleet([walk(500)], architecture, **OPTIONS)[0]
    used = []

    def as_on_a_gpu(rates, device):
        used.append(torch.tensor(rates, dtype=torch.float32))
        return used[-1]

    monkeypatch.setattr(loop, "rate_tensor", as_on_a_gpu)
    member = train_fleet([walk(500)], architecture, **OPTIONS)[0]
    assert used
    assert torch.equal(wanted.rows, member.rows)
    assert wanted.history == member.history


def test_each_device_gets_the_dtype_that_its_optimizer_reads():
    rates = np.array([1e-3])
    assert rate_tensor(rates, torch.device("cpu")).dtype == torch.float64
    assert rate_tensor(rates, torch.device("meta")).dtype == torch.float32
