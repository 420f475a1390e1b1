"""`cpb ledger` over a store of its own."""

import json
import re
from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np
import pytest

from schemas.identity import SeriesId
from tasks.forecasting.chain import append
from tasks.forecasting.record import score_due
from tests.tools.live_record import made_forecasts, write_walk

BTC = SeriesId("spot", "BTCUSDT", "1h")
SIM_BTC = SeriesId("sim", "BTCUSDT", "1h")
FIRST = datetime(2025, 1, 1, tzinfo=UTC)


@pytest.fixture
def run(tmp_path, monkeypatch, cpb_here):
    """Return a function that runs `cpb ledger` and returns its exit code, stdout and stderr."""
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    return partial(cpb_here, "ledger")


@pytest.fixture
def filled(tmp_path):
    """Forty days of live forecasts against a reference that is twice too wide."""
    close = write_walk(tmp_path, BTC, FIRST, 24 * 42)
    rows = made_forecasts(BTC, FIRST, close, np.arange(2, 24 * 40, 6), reference=2.0)
    append(tmp_path, "spot", "forecasts", {BTC: rows})
    score_due(tmp_path, [BTC], FIRST + timedelta(days=42))


def test_a_misspelt_coin_is_named_and_one_without_forecasts_is_refused(run, filled):
    code, out, err = run("--coins", "BTC,BTX")
    assert code == 2
    assert "has nothing of BTX (did you mean BTC?), only of BTC; check the name" in err
    code, out, err = run("--coins", "BTX", "--json")
    assert (code, json.loads(out)["code"]) == (2, "coins")
    for words, asked in ((("ETH",), "--coins ETH"), (("BTC", "15m"), "--coins BTC --timeframes 15m")):
        code, out, err = run(*words)
        assert (code, out) == (1, "")
        assert f"make one with `cpb forecast {asked}`" in err
        assert f"as in `cpb train-all {asked}`" in err
    assert run("--market", "um")[0] == 1


def test_the_record_is_printed_as_a_table_and_as_json(run, filled):
    code, out, _ = run("--coins", "BTC", "--timeframes", "1h")
    assert code == 0
    assert "Live forecasts" in out
    assert "Replays" not in out
    assert "BTCUSDT champions" in out
    assert re.search(r"BTCUSDT champions +0\.\d{4} +\[0\.\d{4}, 0\.\d{4}\] +better +40 +160", out)

    code, out, _ = run("--json")
    (pooled, series, version) = json.loads(out)["ledger"]
    assert (code, pooled["kind"], series["symbol"]) == (0, "pooled", "BTCUSDT")
    assert version["model_version"] == "cpb-BTCUSDT-1h/1"
    assert series["crps_ratio_low"] < series["crps_ratio"] < series["crps_ratio_high"] < 1


def test_an_empty_ledger_says_what_to_do(run):
    code, out, err = run()
    assert (code, out) == (0, "")
    assert "cpb forecast" in err
    assert json.loads(run("--json")[1]) == {"ledger": [], "exit": 0}


def test_a_home_that_is_not_there_is_an_error(run, tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "typo"))
    code, out, err = run("--json")
    assert (code, json.loads(out)["code"]) == (1, "no-home")
    assert str(tmp_path / "typo") in err


def test_stored_forecasts_that_are_not_scored_are_told_from_none(run, tmp_path):
    assert f"no forecast is stored in {tmp_path}" in run()[2]
    close = write_walk(tmp_path, BTC, FIRST, 24)
    rows = made_forecasts(BTC, FIRST, close, np.array([12]), reference=2.0)
    append(tmp_path, "spot", "forecasts", {BTC: rows})
    assert "no forecast has been scored yet" in run()[2]


def test_what_is_simulated_is_scored_by_a_replay(run, tmp_path):
    close = write_walk(tmp_path, SIM_BTC, FIRST, 24)
    rows = made_forecasts(SIM_BTC, FIRST, close, np.array([12]), reference=2.0)
    append(tmp_path, "sim", "forecasts", {SIM_BTC: rows})
    assert "`cpb forecast --source sim --as-of 2025-05-30` forecasts from earlier ones" in run()[2]
