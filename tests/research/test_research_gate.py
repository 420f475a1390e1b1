"""The study of the gate by a backtest: an average's rows are added up by day, and every figure is there."""

import json

import numpy as np
import pytest

from research import gate
from tasks.judging.paired import DailyLosses
from tasks.storage.records import write_npz

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
    found = gate.study(made(), 200, 18)
    assert found["days"] == 548
    noise = found["of the pair"]
    assert max(noise["null"].values()) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)
    assert set(noise["null"]) == {"1 together", "1 one by one", "4 together", "4 one by one"}
    assert min(row["passes"] for row in noise["power"].values()) == 1
    assert set(found) == {"pair", "days", "of the pair", "Gaussian"}


def test_stored_rows_are_added_up_by_day_and_coin(tmp_path, monkeypatch, capsys):
    hour = 3_600_000_000
    coin, time = np.repeat([0, 2], 480), np.tile(np.arange(480) * hour + 19_000 * gate.DAY_US, 2)
    har = np.random.default_rng(0).lognormal(0, 0.3, 960)
    rows = {"coin": coin, "time": time, "har": har, "har + walk": 0.99 * har, "B1": har}
    names = np.array(["AUSDT", "BUSDT", "CUSDT"])
    later = {name: values[time >= time.max() - 5 * hour] for name, values in rows.items()}
    for month, part in (
        ("2022-01", rows),
        ("2022-02", {}),
        ("2022-03", later),
    ):  # February: every coin has a hole
        write_npz(tmp_path / "skill" / f"1h-{month}.npz", {"coins": names, **part})

    losses = gate.read_pair(tmp_path, "1h", "har + walk")

    assert losses.days.tolist() == list(range(19_000, 19_020))
    assert losses.other.shape == (20, 2)  # coin 1 has no rows
    assert losses.other[0, 1] == pytest.approx(har[480:504].sum())
    assert losses.own.sum() == pytest.approx(0.99 * losses.other.sum())
    difference, level = gate.pooled(losses)
    assert level.mean() == pytest.approx(1)
    assert difference.mean() == pytest.approx(-0.01)
    monkeypatch.setattr(gate, "COUNTS", (1, 2))
    given = ["--home", str(tmp_path), "--runs", "3", "--months", "3"]
    gate.main([*given, "--json"])
    assert json.loads(capsys.readouterr().out)["pair"]["days"] == 20
    gate.main(given)
    assert "| true gain | passes |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no month at 15m"):
        gate.main([*given, "--timeframe", "15m"])
