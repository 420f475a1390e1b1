"""`HOME/alerts`: what its lines ask, what is told of them and how often, and lines that cannot be read."""

import json
import sys
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

import cpbmodels
from cpbmodels.data.series import Series
from flows import cli
from schemas.errors import UsageError
from tasks.forecasting.alerts import check_alerts, parse_alert
from tasks.forecasting.months import latest
from tasks.forecasting.price_chances import chances_of
from tasks.storage.records import file_digest
from tests.tools.doc_blocks import blocks
from tests.tools.forecast_steps import Steps
from tests.tools.forecast_tools import BTC, PEPE, START, append, rows_at, write_candles
from tests.tools.inbox import inbox as serve_inbox

LAST = 104_321.5
AGO = timedelta(minutes=1)
"""The newest candle closed so long ago, at the most an hour."""


@pytest.fixture(scope="module")
def member():
    closes = 100 * np.exp(np.cumsum(np.random.default_rng(3).normal(0, 0.01, 600)))
    opened = np.concatenate([[100.0], closes[:-1]])
    high, low = np.maximum(opened, closes) * 1.002, np.minimum(opened, closes) / 1.002
    series = Series.from_ohlc(np.column_stack([opened, high, low, closes]), timeframe="1h")
    return cpbmodels.train_fleet([series], "linear", "smoke", seeds=[1], device="cpu", epochs=1)[0]


@pytest.fixture
def home(tmp_path, monkeypatch, member):
    """A home with a forecast of this hour of BTC, its model, and nobody who is told."""
    for name in ("CPB_NOTIFY", "CPB_HEARTBEAT_URL"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "data"
    monkeypatch.setenv("CPB_HOME", str(home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    about = {"model_version": f"{BTC.registered}/1", "market": "spot", "symbol": BTC.symbol}
    folder = member.save(home / "hub" / BTC.label / BTC.timeframe, about)
    hours = (datetime.now(UTC) - START) // timedelta(hours=1)
    rows = rows_at(hours, LAST, BTC, weights=file_digest(folder / "model.safetensors"))
    append(home, BTC, rows)
    write_candles(home, [LAST] * 3, BTC, START + timedelta(hours=hours - 3))
    return home


@pytest.fixture
def inbox(home, monkeypatch):
    with serve_inbox() as service:
        monkeypatch.setenv("CPB_NOTIFY", service.url)
        yield service


def write(home, *lines):
    (home / "alerts").write_text("\n".join(lines) + "\n")


def cpb(monkeypatch, capsys, *words):
    """Run `cpb forecast BTC 1h`; returns its exit code, its JSON and its lines."""
    Steps().stand_in(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["cpb", "forecast", "BTC", "1h", *words, "--json"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out = capsys.readouterr()
    return end.value.code, json.loads(out.out.splitlines()[-1]), out.err


def checked(home, *lines, now=None, known=(BTC,)):
    write(home, *lines)
    newest = {BTC: latest(home, BTC)}
    return check_alerts(home, "spot", newest, now or datetime.now(UTC), known)


def test_the_chances_are_those_of_the_newest_forecast_by_its_last_step(home):
    chances = chances_of(home, BTC, latest(home, BTC))
    by = f"{chances.rows['target_time'][-1]:%Y-%m-%d %H:%M} UTC"
    touch, above = chances.touch([101_000])[-1]["probability"], chances.above([104_000])[-1]["probability"]
    first = chances.first(107_000, 103_000)[-1]["target_first"]
    told, problems = checked(
        home,
        "# what I want to know",
        "",
        f"BTC 1h touch 101000 > {touch - 0.01:.4f}  # a comment",
        f"BTC 1h touch 101000 > {touch + 0.01:.4f}",
        f"btcusdt 1h above 104000<{100 * above + 1:.2f}%",
        f"BTC 1h above 104000 < {100 * above - 1:.2f} %",
        f"spot BTC 1h first 107000 103000 > {100 * first - 1:.2f} %",
        f"BTC 1h first 107000 103000 < {100 * first - 1:.2f} %",
    )
    assert problems == []
    assert [text.partition(" %")[0] for text in told.values()] == [
        f"{BTC}: the chance that 101,000 is reached by {by} is {100 * touch:.3g}",
        f"{BTC}: the chance of a close above 104,000 at {by} is {100 * above:.3g}",
        f"{BTC}: the chance that 107,000 is reached before 103,000 by {by} is {100 * first:.3g}",
    ]
    assert all(text.endswith("; the last close is 104,321.5") for text in told.values())
    assert [" more than " in text for text in told.values()] == [True, False, True]


def test_an_alert_is_told_once_a_day_by_the_services(home, inbox, monkeypatch, capsys):
    write(home, "BTC 1h touch 104000 > 1 %", "BTC 1h touch 104000 < 1 %", "BTC  1h touch 104000.0 > .01")
    code, told, said = cpb(monkeypatch, capsys)
    assert code == 0
    (alert,) = told["alerts"]
    assert f"ALERT {alert}" in said
    assert "no service" not in said
    (message,) = inbox.messages
    assert message["message"] == f"- {alert}"
    assert cpb(monkeypatch, capsys)[1]["alerts"] == [alert]
    assert len(inbox.messages) == 1

    sent = json.loads((home / "notify.json").read_text())
    (home / "notify.json").write_text(json.dumps(sent | {"day": "2025-01-01"}))
    cpb(monkeypatch, capsys)
    assert [m["message"] for m in inbox.messages] == [f"- {alert}"] * 2


def test_without_services_it_is_printed_and_said_that_nobody_is_told(home, monkeypatch, capsys):
    write(home, "BTC 1h touch 104000 > 1 %", "BTC 1h above 104000 > 1 %")
    code, told, said = cpb(monkeypatch, capsys)
    assert (code, len(told["alerts"])) == (0, 2)
    assert said.count("no service tells anybody of alerts: set CPB_NOTIFY") == 1
    write(home, "BTC 1h touch 104000 < 1 %")
    assert "no service" not in cpb(monkeypatch, capsys)[2]


def test_a_replay_and_a_forecast_that_is_over_tell_nothing(home, inbox, monkeypatch, capsys):
    write(home, "BTC 1h touch 104000 > 1 %", "nonsense")
    at = latest(home, BTC)["issued_at"][0]
    code, told, _ = cpb(monkeypatch, capsys, "--as-of", f"{at:%Y-%m-%dT%H:%M}")
    assert (code, told["alerts"], inbox.messages) == (0, [], [])
    over = latest(home, BTC)["target_time"][-1]
    assert checked(home, "BTC 1h touch 104000 > 1 %", now=over) == ({}, [])
    assert len(checked(home, "BTC 1h touch 104000 > 1 %", now=over - AGO)[0]) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "BTC 1h touch 98000",
            "'BTC 1h touch 98000' is no alert: write COIN TIMEFRAME and touch PRICE, above",
        ),
        ("BTC 1h reach 98000 > 20 %", "is no alert"),
        ("BTC 1h first 98000 > 20 %", "is no alert"),
        ("BTC 1h touch 98000 105000 > 20 %", "is no alert"),
        ("BTC 1h touch 98000 >= 20 %", "limit '= 20%' is no chance between 0 and 1"),
        ("BTC 1h touch 98,500 > 20 %", "touch '98,500' is not one price: write a number without commas"),
        ("BTC 1h touch 98.000,5 > 20 %", "touch '98.000,5' is not one price"),
        ("BTC 1h touch 98000 > 20", "limit '20' can be read as 20 % or as 2000 %: write 20% or 0.2"),
        ("BTC 1h touch 98000 > 2 0 %", "limit '2 0%' is no chance"),
        ("BTC 1h touch 98000 > 20 %, 30 %", "names several series or limits: write a line for each"),
        ("BTC,ETH 1h touch 98000 > 20 %", "names several series or limits"),
        ("BTC 7m touch 98000 > 20 %", "timeframes"),
    ],
)
def test_a_line_that_cannot_be_read_or_in_two_ways_is_one_sentence(home, line, said):
    with pytest.raises(UsageError):
        parse_alert(line)
    told, (problem,) = checked(home, "# first", line, "BTC 1h touch 104000 > 1 %")
    assert problem.startswith(f"{home}/alerts, line 2: ")
    assert said in problem
    assert problem.endswith("; correct it, or put # before it")
    assert "\n" not in problem
    assert len(told) == 1  # the other line is told all the same


def test_a_wrong_line_stops_nothing_and_is_told_as_a_failure(home, inbox, monkeypatch, capsys):
    write(home, "BTC 1h touch 98,500 > 20 %", "BTC 1h touch 104000 > 1 %")
    code, told, said = cpb(monkeypatch, capsys)
    assert (code, told["exit"], len(told["rows"]), len(told["alerts"])) == (3, 3, 10, 1)
    (failed,) = told["failed"]
    assert "line 1: touch '98,500' is not one price" in failed
    assert failed in said
    (message,) = inbox.messages
    assert "line 1: " in message["message"]
    assert told["alerts"][0] in message["message"]


def test_every_wrong_line_is_told_at_once_and_one_that_is_added_the_same_day(
    home, inbox, monkeypatch, capsys
):
    wrong = ["BTC 1h touch 98,500 > 20 %", "BTC 1h touch 104000 > 5"]
    write(home, *wrong)
    _, told, _ = cpb(monkeypatch, capsys)
    assert [f"line {number}: " in line for number, line in enumerate(told["failed"], 1)] == [True, True]
    write(home, *wrong, "BTC 1h reach 98000 > 20 %")
    for _ in range(2):
        cpb(monkeypatch, capsys)
    first, second = (message["message"].splitlines() for message in inbox.messages)
    assert ["line 1: " in first[0], "line 2: " in first[1], len(first)] == [True, True, 2]
    assert ["line 3: " in second[0], len(second)] == [True, 1]


def test_prices_that_the_close_has_passed_are_told_once_and_fail_no_run(home, inbox, monkeypatch, capsys):
    write(home, "BTC 1h first 98000 97000 > 2 %")
    for _ in range(2):
        code, told, _ = cpb(monkeypatch, capsys)
        (alert,) = told["alerts"]
        assert (code, told["failed"]) == (0, [])
    assert "do not lie on opposite sides of the last close" in alert
    assert alert.endswith(f"one below, in line 1 of {home}/alerts")
    (message,) = inbox.messages
    assert message["message"] == f"- {alert}"


def test_a_line_that_no_champion_answers_is_told_and_one_of_another_market_is_not(home):
    lines = ("PEPE 1h touch 1 > 1 %", "um BTC 1h touch 1 > 1 %", "BTC 4h touch 1 > 1 %")
    told, problems = checked(home, *lines)
    assert told == {}
    assert [problem.partition(": ")[2] for problem in problems] == [
        f"no champion forecasts {series}; correct it, or put # before it" for series in (PEPE, "BTCUSDT 4h")
    ]


def test_a_run_of_one_coin_tells_a_misspelt_coin_and_not_those_that_it_leaves_out(home, monkeypatch, capsys):
    write(home, "BTX 1h touch 1 > 2 %", "PEPE 1h touch 1 > 2 %")
    code, told, said = cpb(monkeypatch, capsys)
    (failed,) = told["failed"]
    assert (code, len(told["rows"])) == (3, 10)
    assert "alerts, line 1: no champion forecasts BTXUSDT 1h (did you mean BTC?); correct it" in failed
    assert failed in said


def test_an_alerts_that_is_no_text_file_is_named(home):
    (home / "alerts").mkdir()
    told, (problem,) = check_alerts(home, "spot", {}, datetime.now(UTC), ())
    assert told == {}
    assert problem.startswith(f"{home}/alerts is not read: ")


def test_the_lines_of_the_docs_can_be_read():
    (block,) = [b for b in blocks() if b.page == "docs/operations.md" and "touch 98000" in b.text]
    lines = [line for line in block.text.splitlines() if not line.startswith("#")]
    asked = [parse_alert(line) for line in lines]
    assert [(a.series.market, a.question, a.side) for a in asked] == [
        ("spot", "touch", ">"),
        ("spot", "above", "<"),
        ("um", "first", ">"),
    ]
    assert [a.limit for a in asked] == [0.2, 0.1, 0.6]
