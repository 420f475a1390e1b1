"""The architecture built in docs/new-architecture.md is real: it trains, exactly, in a fleet."""

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from candles import walk

from cpbmodels import arch, train_fleet
from cpbmodels.arch.options import SCHEDULES

PAGE = Path(__file__).parents[2] / "docs" / "new-architecture.md"


def test_the_architecture_of_the_page_trains(monkeypatch):
    module = types.ModuleType("cpbmodels.arch.tcn")
    (code,) = re.findall(r'```python\n("""`tcn`.*?)```', PAGE.read_text(), re.DOTALL)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    (line,) = re.findall(r'^"tcn": "(.*)",$', PAGE.read_text(), re.MULTILINE)
    monkeypatch.setitem(arch._BUILT_IN, "tcn", line)
    series = [walk(500, seed=seed) for seed in (1, 2)]
    options = {"preset": "smoke", "n_layers": 4, "dtype": "float64", "workers": 1}
    fleet = train_fleet(series, "tcn", seeds=[1, 2], **options)
    alone = train_fleet(series[1:], "tcn", seeds=[2], **options)[0]
    torch.testing.assert_close(fleet[1].rows, alone.rows, rtol=1e-10, atol=1e-12)
    assert fleet[0].forecast(series[0]).candle.shape == (10, 4)


def test_the_schedule_of_the_page_sets_the_learning_rates(monkeypatch):
    (line,) = re.findall(r'^"linear": (lambda .*),$', PAGE.read_text(), re.MULTILINE)
    monkeypatch.setitem(SCHEDULES, "linear", eval(line))
    (member,) = train_fleet(
        [walk(500, seed=1)], "linear", "smoke", schedule="linear", lr=0.01, epochs=4, patience=4
    )
    assert [one["lr"] for one in member.history] == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
