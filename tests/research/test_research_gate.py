"""The study of the gate by a backtest: rows are added up by day, and every figure is there."""

import json

import numpy as np
import pytest
from test_research_promotion import write_rows

from research import gate
from tasks.judging.paired import DailyLosses

DAYS = (
    3000  # blocks of four weeks of a shorter past have sums that vary more or less than those of other pasts
)


def made(seed=0):
    random = np.random.default_rng(seed)
    other = random.lognormal(0, 0.3, (DAYS, 2))
    return DailyLosses(
        np.arange(DAYS) + 19_000, other * (1 + 0.01 * random.standard_normal((DAYS, 1))), other
    )


def test_equal_recipes_hardly_ever_pass_and_a_large_gain_always_does(monkeypatch):
    monkeypatch.setattr(gate, "COUNTS", (1, 4))
    monkeypatch.setattr(gate, "GAINS", (0.01,))
    found = gate.study(made(), "1h", 200, 18)
    assert found["days"] == 548
    noise = found["of the pair"]
    assert max(noise["null"].values()) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)
    assert set(noise["null"]) == {"1 together", "1 one by one", "4 together", "4 one by one"}
    assert min(row["passes"] for row in noise["power"].values()) == 1
    assert set(found) == {"pair", "days", "of the pair", "Gaussian", next(n for n in found if " x " in n)}


def test_rows_of_a_backtest_are_added_up_by_day(tmp_path, monkeypatch, capsys):
    for coin, seed in (("AUSDT", 0), ("BUSDT", 1)):
        for model, width in (("har", 1.0), ("linear", 1.4)):
            write_rows(tmp_path, model, coin, width, np.random.default_rng(seed))
    losses = gate.read_pair(tmp_path, "har", "linear", "1h")
    assert losses.own.shape == (len(losses.days), 2)
    assert losses.days.tolist() == sorted(set(losses.days.tolist()))
    difference, level = gate.pooled(losses)
    assert level.mean() == pytest.approx(1)
    # Bands a fifth too wide cost, against the right ones.
    assert 0 < difference.mean() < 0.05
    monkeypatch.setattr(gate, "COUNTS", (1, 2))
    given = ["--rows", str(tmp_path), "--of", "har", "--with", "linear", "--runs", "3", "--months", "3"]
    gate.main([*given, "--json"])
    assert json.loads(capsys.readouterr().out)["pair"]["days"] == len(losses.days)
    gate.main(given)
    assert "| true gain | passes |" in capsys.readouterr().out
