"""The architecture built in docs/extending.md is real: it trains, exactly, in a fleet."""

import re
from pathlib import Path

import pytest
from candles import walk

from cpbmodels import train_fleet
from cpbmodels.arch.options import SCHEDULES

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def test_the_schedule_of_the_page_sets_the_learning_rates(monkeypatch):
    (line,) = re.findall(r'^"linear": (lambda .*),$', PAGE.read_text(), re.MULTILINE)
    monkeypatch.setitem(SCHEDULES, "linear", eval(line))
    (member,) = train_fleet(
        [walk(500, seed=1)], "linear", "smoke", schedule="linear", lr=0.01, epochs=4, patience=4
    )
    assert [epoch["lr"] for epoch in member.history] == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
