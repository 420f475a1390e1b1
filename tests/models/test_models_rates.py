"""Learning rates: a GPU's fused optimizer reads float32, a CPU's float64; both take the same steps."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from cpbmodels import train_fleet
from cpbmodels.arch.options import SCHEDULES
from cpbmodels.fleet import loop
from cpbmodels.fleet.fleet import rate_tensor
from tests.tools.candles import walk

OPTIONS = {
    "preset": "smoke",
    "device": "cpu",
    "workers": 1,
    "dtype": "float64",
    "steps_per_epoch": 6,
    "epochs": 3,
    "lr": 1e-3,
    "warmup_steps": 5,
    "schedule": "cosine",
}


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


def test_the_schedule_built_in_the_documentation_sets_the_learning_rates(monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    (line,) = re.findall(r'^"linear": (lambda .*),$', page, re.MULTILINE)
    monkeypatch.setitem(SCHEDULES, "linear", eval(line))
    how = {"schedule": "linear", "lr": 0.01, "epochs": 4, "patience": 4}
    (member,) = train_fleet([walk(500, seed=1)], "linear", "smoke", **how)
    assert [epoch["lr"] for epoch in member.history] == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
