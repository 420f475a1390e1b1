"""Chances of prices from the newest stored forecast and the packaged model, and `cpb forecast --touch`, `--target`."""

import json
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

import cpbmodels
from cpbmodels.data.extremes import Extremes
from cpbmodels.data.series import Series
from flows import cli
from flows.console import price
from schemas.errors import MemberError, UsageError
from tasks.forecasting.months import latest
from tasks.forecasting.price_chances import chances_of
from tasks.storage.records import file_digest
from tests.tools.doc_blocks import PAGES
from tests.tools.forecast_steps import Steps
from tests.tools.forecast_tools import BTC, append, flip, rows_at

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


def newest(home):
    return chances_of(home, BTC, latest(home, BTC))


def test_chances_are_those_of_the_models_table_at_the_widths_of_the_stored_forecast(home, member):
    chances = newest(home)
    rows, entries = chances.rows, chances.touch([98_000, 110_000.0])
    width = np.log(rows["q90"] / rows["q10"]).to_numpy()
    shares = np.maximum.accumulate(member.extremes.touched(1, np.log(LAST / 98_000) / width))
    assert [entry["probability"] for entry in entries[:10]] == pytest.approx(shares.tolist())
    assert [entry["side"] for entry in entries[::10]] == ["down", "up"]
    assert [entry["by"] for entry in entries[:10]] == rows["target_time"].to_list()


def test_the_newest_of_two_versions_is_that_of_the_packaged_model(home, member):
    append(home, BTC, rows_at(0, LAST, BTC, version=2, weights=weights_in(package(home, member))))
    assert newest(home).rows["model_version"][0] == f"{BTC.registered}/1"
    package(home, member, version=2)
    assert newest(home).rows["model_version"][0] == f"{BTC.registered}/2"
    package(home, member, version=3)
    assert latest(home, BTC)["model_version"][0] == f"{BTC.registered}/2"


def test_stops_are_touched_by_the_last_step_with_their_chances(home):
    chances = newest(home)
    for stop in chances.stops([0.05, 0.25]):
        touched = chances.touch([stop["price"]])[-1]
        assert touched["probability"] == pytest.approx(stop["probability"])
        assert (stop["price"] > LAST) == (stop["side"] == "up")
        assert stop["by"] == chances.rows["target_time"][-1]


def test_first_is_that_of_the_models_table_by_each_step(home):
    of = newest(home)
    long, short = of.first(107_000, 103_000), of.first(103_000, 107_000)
    shares = of.chances.first(107_000, 103_000)
    assert [(e["target_first"], e["stop_first"]) for e in long] == [tuple(pair) for pair in shares.tolist()]
    assert {(e["side"], e["target"], e["stop"]) for e in long} == {("long", 107_000, 103_000)}
    assert {(e["side"], e["target"], e["stop"]) for e in short} == {("short", 103_000, 107_000)}
    for entry in (*long, *short):
        assert entry["target_first"] + entry["stop_first"] + entry["neither"] == pytest.approx(1)
        assert min(entry["target_first"], entry["stop_first"], entry["neither"]) >= 0
    assert 0 < long[-1]["target_first"] < long[-1]["stop_first"]  # the stop is nearer
    assert [entry["by"] for entry in long] == of.rows["target_time"].to_list()


@pytest.mark.parametrize("pair", [(107_000, 105_000), (103_000, 99_000), (LAST, 103_000), (107_000, LAST)])
def test_a_target_and_a_stop_on_one_side_or_at_the_close_are_a_sentence_about_prices(home, pair):
    with pytest.raises(
        UsageError, match=r"BTCUSDT 1h: The target .* the last close, 104,321\.5: give"
    ) as error:
        newest(home).first(*pair)
    assert error.value.code == "price"


def test_above_is_the_chance_of_each_close(home):
    of = newest(home)
    entries = of.above([LAST, 98_000])
    assert [e["probability"] for e in entries[:10]] == pytest.approx([0.5] * 10)
    assert [e["probability"] for e in entries] == of.chances.above([LAST, 98_000]).ravel().tolist()
    assert [entry["by"] for entry in entries[10:]] == of.rows["target_time"].to_list()


def test_a_model_of_before_answers_all_but_which_is_first(home, member):
    levels = np.tile(np.linspace(0.01, 3, 99, dtype=np.float32), (2, 10, 1))
    folder = package(home, replace(member, extremes=Extremes(levels)), version=2)
    append(home, BTC, rows_at(1, LAST, BTC, version=2, weights=weights_in(folder)))
    of = newest(home)
    assert (len(of.touch([98_000])), len(of.stops([0.05])), len(of.above([98_000]))) == (10, 2, 10)
    with pytest.raises(
        MemberError, match=r"BTCUSDT 1h: .*which of two prices is reached first: train it again"
    ):
        of.first(107_000, 103_000)


def test_a_forecast_of_another_version_than_the_packaged_has_no_chances(home, member):
    package(home, member, version=2)
    with pytest.raises(
        MemberError, match=r"is of cpb-BTCUSDT-1h/1, and cpb-BTCUSDT-1h/2 serves now.*cpb forecast"
    ):
        newest(home)


def test_a_forecast_of_other_weights_under_the_same_version_has_no_chances(home, member):
    other = package(home, replace(member, rows=member.rows + 1))
    with pytest.raises(MemberError, match="other weights than those that serve as cpb-BTCUSDT-1h/1 now"):
        newest(home)
    append(home, BTC, rows_at(1, LAST, BTC, weights=weights_in(other)))
    assert newest(home).touch([LAST])[0]["probability"] == pytest.approx(1)


def test_a_model_without_a_table_and_a_damaged_model_say_so(home, member):
    folder = package(home, replace(member, extremes=None), version=2)
    append(home, BTC, rows_at(1, LAST, BTC, version=2, weights=weights_in(folder)))
    for ask in (lambda of: of.touch([LAST]), lambda of: of.stops([0.05]), lambda of: of.first(1, 200_000)):
        with pytest.raises(MemberError, match="BTCUSDT 1h: The model has no table of extremes"):
            ask(newest(home))
    assert len(newest(home).above([98_000])) == 10
    flip(folder / "model.safetensors")
    with pytest.raises(MemberError, match="is damaged: `cpb forecast"):
        newest(home)
    (folder / "model.safetensors").unlink()
    with pytest.raises(MemberError, match="is damaged: `cpb forecast"):
        newest(home)


def command(monkeypatch, *words):
    Steps().stand_in(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["cpb", "forecast", *words, "--as-of", "2025-05-31T20:25"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


def test_the_command_gives_a_row_for_each_price_and_json(home, monkeypatch, capsys):
    assert command(monkeypatch, "BTC", "1h", "--touch", "98000,110000,110000.01") == 0
    shown = capsys.readouterr().out
    assert re.search(r"↓ 98,000 +\d", shown)
    assert re.search(r"↑ 110,000 +\d", shown)
    assert re.search(r"↑ 110,000\.01 +\d", shown)
    assert command(monkeypatch, "BTC", "1h", "--touch", "98000", "--json") == 0
    entries = json.loads(capsys.readouterr().out.splitlines()[-1])["touch"]
    assert len(entries) == 10
    assert entries[0].keys() == {"price", "side", "probability", "by"}
    assert entries[0]["by"] == "2025-05-31T21:00:00Z"
    assert f"{entries[-1]['probability']:.1%}" in shown


def test_the_command_gives_target_and_stop_by_step_and_json(home, monkeypatch, capsys):
    assert command(monkeypatch, "BTC", "1h", "--target", "107000", "--stop", "103000") == 0
    shown = capsys.readouterr().out
    assert command(monkeypatch, "BTC", "1h", "--target", "107000", "--stop", "103000", "--json") == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer.keys() & {"touch", "above", "stops"} == set()
    assert len(answer["first"]) == 10
    last = answer["first"][-1]
    assert last["side"] == "long"
    assert "Long: is the target 107,000 or the stop 103,000 reached first?" in shown
    assert "A candle that reaches both counts for the stop" in " ".join(shown.split())
    by = last["by"][:16].replace("T", " ")
    chances = " +".join(f"{last[name]:.1%}" for name in ("target_first", "stop_first", "neither"))
    assert re.search(f"10 +{by} +{chances}", shown)


def test_the_command_gives_closes_above_and_stops_by_chance(home, monkeypatch, capsys):
    words = ("BTC", "1h", "--above", "104321.5,110000", "--stop-chance", "5%,.25")
    assert command(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    assert command(monkeypatch, *words, "--json") == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["above"][0].keys() == {"price", "probability", "by"}
    assert len(answer["above"]) == 20
    assert re.search(r"104,321\.5( +50\.0%){10}", shown)
    assert [(s["probability"], s["side"]) for s in answer["stops"]] == [
        (0.05, "up"),
        (0.05, "down"),
        (0.25, "up"),
        (0.25, "down"),
    ]
    up, down = (price(stop["price"]) for stop in answer["stops"][:2])
    assert re.search(rf" 5 % +{down} +{up}", shown)


def test_prices_of_every_size_are_shown_with_all_their_digits(home, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    prices = "0.00001234,1234567.89,1e-12,1000000000000"
    assert command(monkeypatch, "BTC", "1h", "--touch", prices, "--above", prices) == 0
    shown = capsys.readouterr().out
    for exact in ("0.00001234", "1,234,567.89", "0.000000000001", "1,000,000,000,000"):
        assert len(re.findall(rf"(?<![\d,.]){re.escape(exact)}(?![\d,.])", shown)) == 2


def test_every_answer_fits_80_columns(home, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    prices = ("--touch", "98000", "--above", "98000", "--stop-chance", "5%", "--target", "107000.25")
    assert command(monkeypatch, "BTC", "1h", *prices, "--stop", "103000.75") == 0
    out, _ = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= 80
    of_pair = out.partition("Long: is the target")[2].partition("The close lies above")[0]
    assert all(name in of_pair for name in ("step", "until (UTC)", "target first", "stop first", "neither"))


def test_a_pair_on_one_side_stores_the_forecast_and_is_told_to_nobody(home, monkeypatch, capsys):
    told = []
    monkeypatch.setattr("flows.run.tell_end", lambda *given, **kinds: told.append((given, kinds)))
    assert command(monkeypatch, "BTC", "1h", "--target", "107000", "--stop", "105000", "--json") == 2
    out, err = capsys.readouterr()
    answer = json.loads(out.splitlines()[-1])
    assert answer["code"] == "price"
    assert answer["error"].startswith(
        "BTCUSDT 1h: The target 107,000 and the stop 105,000 do not lie on opposite"
    )
    assert "Traceback" not in err
    assert [kinds["complete"] for _, kinds in told] == [True]


def test_the_command_says_in_a_sentence_that_a_model_has_no_table(home, member, monkeypatch, capsys):
    shutil.rmtree(home / "forecasts")
    folder = package(home, replace(member, extremes=None))
    append(home, BTC, rows_at(0, LAST, BTC, weights=weights_in(folder)))
    assert command(monkeypatch, "BTC", "1h", "--touch", "98000", "--json") == 3
    out, err = capsys.readouterr()
    assert "BTCUSDT 1h: The model has no table of extremes" in json.loads(out.splitlines()[-1])["error"]
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "option", "text", "readings"),
    [
        (("--touch", "98.500"), "touch", "98.500", ("98.5", "98500")),
        (("--above", "105000, 52.161"), "above", "52.161", ("52.161", "52161")),
        (("--target", "107.000", "--stop", "103000"), "target", "107.000", ("107", "107000")),
        (("--target", "107000", "--stop", "103.000"), "stop", "103.000", ("103", "103000")),
    ],
)
def test_a_dot_that_may_separate_thousands_near_the_close_is_refused_and_both_ways_out_are_read(
    home, monkeypatch, capsys, words, option, text, readings
):
    assert command(monkeypatch, "BTC", "1h", *words, "--json") == 2
    one, other = readings
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (answer["code"], answer["error"]) == (
        "touch",
        f"{option} '{text}' can be read as {one} or as {other}, and the last close is 104,321.5: "
        f"write {text}0 for {one}, {other} for {other}",
    )
    assert command(monkeypatch, "BTC", "1h", "--touch", f"{text}0,{other}", "--json") == 0
    touched = json.loads(capsys.readouterr().out.splitlines()[-1])["touch"]
    assert [entry["price"] for entry in touched[::10]] == [float(one), float(other)]


def test_a_dot_is_a_decimal_point_where_the_thousandfold_is_far_from_the_close(home, monkeypatch):
    prices = "52.160,208.644,98.5,98.50,98.5000,104321.500,0.104"
    assert command(monkeypatch, "BTC", "1h", "--touch", prices) == 0


TOLD = re.compile(r"`(?:\S*cpb forecast BTC 1h )?(--(?:touch|target|above|stop-chance) [^`]+)`")


def questions_of_documents():
    return sorted({words for page in PAGES for words in TOLD.findall(page.read_text())})


@pytest.mark.parametrize("words", questions_of_documents())
def test_every_question_that_a_document_asks_is_answered(home, monkeypatch, words):
    assert command(monkeypatch, "BTC", "1h", *words.split()) == 0


def test_the_documents_ask_all_questions():
    asked = {option for words in questions_of_documents() for option in re.findall(r"--[a-z-]+", words)}
    assert asked == {"--touch", "--target", "--stop", "--above", "--stop-chance"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("BTC", "1h", "--touch", "98000,x"), "touch '98000,x' is no list of prices: give at most 1,000"),
        (("BTC", "1h", "--touch", "-1"), "'-1' is no list"),
        (("BTC", "1h", "--touch", "inf"), "'inf' is no list"),
        (("BTC", "1h", "--touch", ""), "'' is no list"),
        (("BTC,ETH", "1h", "--touch", "98000"), "touch needs one coin and one timeframe"),
        (("BTC", "--touch", "98000"), "touch needs one coin and one timeframe"),
        (
            ("BTC", "--stop-chance", "5%"),
            "stop-chance needs one coin and one timeframe, as in `cpb forecast BTC 1h --stop-chance 5%`",
        ),
        (
            ("--target", "107000", "--stop", "103000"),
            "target needs one coin and one timeframe, as in `cpb forecast BTC 1h --target 107000 --stop 103000`",
        ),
        (("BTC", "1h", "--stop", "5%"), "stop '5%' is not one price: write a number without commas"),
        (("BTC", "1h", "--target", "107000", "--stop", "5%"), "stop '5%' is not one price"),
        (
            ("BTC", "1h", "--target", "107000"),
            "target needs a stop on the other side of the last close: add --stop",
        ),
        (
            ("BTC", "1h", "--stop", "103000"),
            "stop needs a target on the other side of the last close: add --target",
        ),
        (
            ("BTC", "1h", "--target", "107,000", "--stop", "1"),
            "target '107,000' is not one price: write a number",
        ),
        (("BTC", "1h", "--target", "x", "--stop", "1"), "target 'x' is not one price"),
        (("BTC", "1h", "--above", "98,500"), "above '98,500' can be read as one price or as several"),
        (("BTC", "1h", "--touch", "1", "--above", "-5"), "above '-5' is no list of prices"),
        (
            ("BTC", "1h", "--stop-chance", "5"),
            "stop-chance '5' can be read as 5 % or as 500 %: write 5% or 0.05",
        ),
    ],
)
def test_impossible_prices_and_several_series_are_one_sentence(home, monkeypatch, capsys, words, sentence):
    assert command(monkeypatch, *words) == 2
    assert sentence in capsys.readouterr().err
