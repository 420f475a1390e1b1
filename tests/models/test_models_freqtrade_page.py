"""The example of docs/freqtrade.md for other backtesters runs as it stands there."""

import re
from pathlib import Path

import pandas as pd
import pytest
from candles import walk

from cpbmodels import Series, train_fleet

PAGE = Path(__file__).parents[2] / "docs" / "freqtrade.md"


def test_the_example_without_freqtrade_runs_and_meets_its_target(tmp_path, monkeypatch, capsys):
    dates = pd.date_range("2024-03-01", periods=4000, freq="h", tz="UTC")
    columns = dict(zip(("open", "high", "low", "close"), walk(4000).prices.T, strict=True))
    candles = pd.DataFrame({"date": dates, **columns, "volume": 1.0})
    candles.to_csv(tmp_path / "BTCUSDT-1h.csv", index=False)
    series = Series.from_frame(candles[:2000], "BTCUSDT")
    member = train_fleet([series], "robust-har", "smoke", seeds=[1], device="cpu")[0]
    member.save(tmp_path / "hub/BTCUSDT/1h")
    monkeypatch.chdir(tmp_path)

    (code,) = re.findall(r"```python\n(import pandas.*?)```", PAGE.read_text(), re.DOTALL)
    found = {}
    exec(compile(code, str(PAGE), "exec"), found)
    first = found["position"].ne(0).idxmax()
    assert dates[first] + pd.Timedelta(hours=1) >= member.known_until
    held = found["position"].shift(1) > 0
    returns = found["returns"][held]
    assert (returns.abs() < 0.003).mean() == pytest.approx(0.68, abs=0.06)
    assert returns.std() == pytest.approx(0.0035, rel=0.15)  # of Student's t with 5 degrees of freedom
    assert "risk an hour" in capsys.readouterr().out
