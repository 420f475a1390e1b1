"""Chances of a touch from the newest stored forecast and the packaged model, and `cpb forecast --touch`."""

import json
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

import cpbmodels
from cpbmodels.data.series import Series
from flows import cli
from schemas.errors import MemberError
from tasks.forecasting.months import latest
from tasks.forecasting.touch_chances import stops, touch_of, touched
from tasks.storage.records import file_digest
from tests.tools.forecast_steps import Steps
from tests.tools.forecast_tools import BTC, START, append, flip, rows_at

LAST = 104_321.5


@pytest.fixture(scope="module")
def member():
    closes = 100 * np.exp(np.cumsum(np.random.default_rng(3).normal(0, 0.01, 600)))
    opened = np.concatenate([[100.0], closes[:-1]])
    high, low = np.maximum(opened, closes) * 1.002, np.minimum(opened, closes) / 1.002
    series = Series.from_ohlc(np.column_stack([opened, high, low, closes]), timeframe="1h")
    return cpbmodels.train_fleet([series], "linear", "smoke", seeds=[1], device="cpu", epochs=1)[0]


@pytest.fixture
def home(tmp_path, monkeypatch, member):
    """A home with one forecast, and the packaged model that made it."""
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    append(tmp_path, BTC, rows_at(0, LAST, BTC, weights=weights_in(package(tmp_path, member))))
    return tmp_path


def package(home, member, version=1):
    about = {"model_version": f"{BTC.registered}/{version}", "market": "spot", "symbol": BTC.symbol}
    return member.save(home / "hub" / BTC.label / BTC.timeframe, about)


def weights_in(folder):
    return file_digest(folder / "model.safetensors")


def newest_touch(home):
    rows = latest(home, BTC)
    return rows, touch_of(home, BTC, rows)


def test_chances_are_those_of_the_models_table_at_the_widths_of_the_stored_forecast(home, member):
    rows, chances = newest_touch(home)
    entries = list(touched(rows, chances, [98_000, 110_000.0]))
    width = np.log(rows["q90"] / rows["q10"]).to_numpy()
    shares = np.maximum.accumulate(member.extremes.touched(1, np.log(LAST / 98_000) / width))
    assert [entry["probability"] for entry in entries[:10]] == pytest.approx(shares.tolist())
    assert [entry["side"] for entry in entries[::10]] == ["down", "up"]
    assert [entry["by"] for entry in entries[:10]] == rows["target_time"].to_list()


def test_the_newest_of_two_versions_is_that_of_the_packaged_model(home, member):
    append(home, BTC, rows_at(0, LAST, BTC, version=2, weights=weights_in(package(home, member))))
    assert newest_touch(home)[0]["model_version"][0] == f"{BTC.registered}/1"
    package(home, member, version=2)
    assert newest_touch(home)[0]["model_version"][0] == f"{BTC.registered}/2"
    package(home, member, version=3)
    assert latest(home, BTC)["model_version"][0] == f"{BTC.registered}/2"


def test_stops_are_touched_by_the_last_step_with_their_chances(home):
    rows, chances = newest_touch(home)
    for stop in stops(rows, chances, [0.05, 0.25]):
        assert chances.touch(stop["price"])[-1] == pytest.approx(stop["probability"])
        assert (stop["price"] > LAST) == (stop["side"] == "up")
        assert stop["by"] == rows["target_time"][-1]


def test_a_forecast_of_another_version_than_the_packaged_has_no_chances(home, member):
    package(home, member, version=2)
    with pytest.raises(
        MemberError, match=r"is of cpb-BTCUSDT-1h/1, and cpb-BTCUSDT-1h/2 serves now.*cpb forecast"
    ):
        newest_touch(home)


def test_a_forecast_of_other_weights_under_the_same_version_has_no_chances(home, member):
    other = package(home, replace(member, rows=member.rows + 1))
    with pytest.raises(MemberError, match="other weights than those that serve as cpb-BTCUSDT-1h/1 now"):
        newest_touch(home)
    append(home, BTC, rows_at(1, LAST, BTC, weights=weights_in(other)))
    assert newest_touch(home)[1].touch(LAST) == pytest.approx(1)


def test_a_model_without_a_table_and_a_damaged_model_say_so(home, member):
    folder = package(home, replace(member, extremes=None), version=2)
    append(home, BTC, rows_at(1, LAST, BTC, version=2, weights=weights_in(folder)))
    with pytest.raises(MemberError, match="BTCUSDT 1h: The model has no table of extremes"):
        newest_touch(home)
    flip(folder / "model.safetensors")
    with pytest.raises(MemberError, match="is damaged: `cpb forecast"):
        newest_touch(home)
    (folder / "model.safetensors").unlink()
    with pytest.raises(MemberError, match="is damaged: `cpb forecast"):
        newest_touch(home)


def command(monkeypatch, *words):
    Steps().stand_in(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["cpb", "forecast", *words, "--as-of", "2025-05-31T20:25"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


def test_the_command_gives_a_row_for_each_price_and_json(home, monkeypatch, capsys):
    assert command(monkeypatch, "BTC", "1h", "--touch", "98000,110000,110000.01") == 0
    shown = capsys.readouterr().out
    assert re.search(r"↓ 98000 +\d", shown)
    assert re.search(r"↑ 110000 +\d", shown)
    assert re.search(r"↑ 110000\.01 +\d", shown)
    assert command(monkeypatch, "BTC", "1h", "--touch", "98000", "--json") == 0
    entries = json.loads(capsys.readouterr().out.splitlines()[-1])["touch"]
    assert len(entries) == 10
    assert entries[0].keys() == {"price", "side", "probability", "by"}
    assert entries[0]["by"] > START.isoformat(sep=" ")
    assert f"{entries[-1]['probability']:.1%}" in shown


def test_the_command_says_in_a_sentence_that_a_model_has_no_table(home, member, monkeypatch, capsys):
    shutil.rmtree(home / "forecasts")
    folder = package(home, replace(member, extremes=None))
    append(home, BTC, rows_at(0, LAST, BTC, weights=weights_in(folder)))
    assert command(monkeypatch, "BTC", "1h", "--touch", "98000", "--json") == 3
    out, err = capsys.readouterr()
    assert "BTCUSDT 1h: The model has no table of extremes" in json.loads(out.splitlines()[-1])["error"]
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("BTC", "1h", "--touch", "98000,x"), "'98000,x' is no list of prices: give at most 1,000"),
        (("BTC", "1h", "--touch", "-1"), "'-1' is no list"),
        (("BTC", "1h", "--touch", "inf"), "'inf' is no list"),
        (("BTC", "1h", "--touch", ""), "'' is no list"),
        (("BTC,ETH", "1h", "--touch", "98000"), "touch needs one coin and one timeframe"),
        (("BTC", "--touch", "98000"), "touch needs one coin and one timeframe"),
    ],
)
def test_impossible_prices_and_several_series_are_one_sentence(home, monkeypatch, capsys, words, sentence):
    assert command(monkeypatch, *words) == 2
    assert sentence in capsys.readouterr().err
