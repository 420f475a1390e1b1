"""The short form of the sixty nights: twenty of one coin, of which four stay whole."""

import pytest

from benchmarks.nights import LIMIT_BYTES, SIZES, growth, simulate

NIGHTS, KEEP, RUNS_A_NIGHT = 20, 4, 5  # flow, two fleets, two members


@pytest.mark.slow
def test_everything_stays_level(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    monkeypatch.chdir(tmp_path)

    rows = simulate(NIGHTS, KEEP, coins="BTC", architectures="linear,robust-har", overrides={"epochs": 1})

    weeks = 3
    assert rows[-1]["runs"] <= KEEP * RUNS_A_NIGHT + weeks
    # A night registers a champion, a challenger, both or (nothing moved) neither.
    assert max(row["versions"] for row in rows[KEEP:]) <= 2 * KEEP
    assert all(row["pruned_runs"] for row in rows[KEEP:])
    assert all(row["scored"] for row in rows[1:])
    found = growth(rows, first=8)
    # Forecasts, scores and evidence are the record: they grow, and nothing of them may go.
    found["store"] -= sum(found[f"store: {tree}"] for tree in ("forecasts", "ledger"))
    assert {name: size for name, size in found.items() if name in SIZES and size > LIMIT_BYTES} == {}


def test_growth_is_a_slope_a_week():
    rows = [
        {"night": n, "database": 1000 * n, "artifacts": 5, "store": 0, "trees": {"klines": 70 * n}}
        for n in range(1, 30)
    ]
    found = growth(rows, first=20)
    assert found["database"] == pytest.approx(7000)
    assert found["artifacts"] == pytest.approx(0, abs=1e-6)
    assert found["store: klines"] == pytest.approx(490)
