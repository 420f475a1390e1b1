"""How `cpb demo` and `cpb train-all` end for people."""

import shlex
import sys
from datetime import UTC, datetime, timedelta

import pytest

from flows.cli.closing import _LEGEND, print_forecasts, print_next
from flows.run import Run
from schemas.forecasting import ForecastSpec
from schemas.run import RunSpec
from tests.tools.doc_blocks import ROOT

CLOSED = datetime(2025, 6, 6, tzinfo=UTC)
BETTER = (
    "better than the random walk with EWMA volatility (CRPS ratio 0.9783 [0.9709, 0.9858], p<0.001, n=2,870)"
)
SAME = "no different from the random walk with EWMA volatility (CRPS ratio 1.0001 [0.9973, 1.0028], p=0.9, n=2,870)"
PEPE = {"last_close": 1.23456e-5, "q10": 1.2e-5, "q90": 1.3e-5, "stop_5_down": 1.1e-5, "stop_5_up": 1.4e-5}


def row(symbol, verdict=BETTER, timeframe="1h", market="spot", **figures):
    hours = {"15m": 2.5, "1h": 10}[timeframe]
    return {
        "market": market,
        "symbol": symbol,
        "timeframe": timeframe,
        "verdict": verdict,
        "issued_at": CLOSED,
        "target_time": CLOSED + timedelta(hours=hours),
        "last_close": 104321.0,
        "q10": 103123.4,
        "q90": 105678.9,
        "stop_5_down": 102345.6,
        "stop_5_up": 106789.1,
    } | figures


def result(*rows, failures=(), champions=1, stale=""):
    made = Run("train-all", print, champions=champions, forecasts=[*rows], stale=stale).as_json()
    return made | {"failures": [*failures]}


def printed(capsys, monkeypatch, told, columns=80, **options):
    monkeypatch.setenv("COLUMNS", str(columns))
    capsys.readouterr()
    spec = RunSpec(**{"coins": "BTC,PEPE", "timeframes": "15m,1h", "as_of": "2025-06-06T12:00"} | options)
    print_forecasts(told, spec)
    return capsys.readouterr()


def test_each_coin_has_its_band_its_rare_prices_and_its_verdict(capsys, monkeypatch):
    told = result(
        row("BTCUSDT"), row("BTCUSDT", SAME, "15m"), row("ETHBTC", ""), row("SOLUSDT", stop_5_up=None)
    )
    out, err = printed(capsys, monkeypatch, told)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    # the shorter step first, each with its own close; an age as of the moment asked for
    first, second = (place for place, line in enumerate(lines) if "as forecast from" in line)
    assert lines[first] == ("15m: the close of 2025-06-06 02:30 UTC, as forecast from that of 2025-06-06")
    assert lines[first + 1] == "00:00 UTC, 12 h old"
    assert lines[second].startswith("1h: the close of 2025-06-06 10:00 UTC, as forecast from that of ")
    assert "coin last close 80 % band 5 % ↓ 5 % ↑ verdict" in lines
    assert "BTC 104,321 103,123–105,679 102,346 106,789 no different" in lines[first:second]
    assert "BTC 104,321 103,123–105,679 102,346 106,789 better" in lines[second:]
    assert "ETHBTC 104,321 103,123–105,679 102,346 106,789 not judged" in lines
    assert "SOL 104,321 103,123–105,679 102,346 - better" in lines
    assert (
        f"\n{_LEGEND}\n\nNext:\n  .venv/bin/cpb forecast BTC 1h " in (ROOT / "docs/tutorial.md").read_text()
    )
    assert err.splitlines() == [
        "80 % band: the close lies in it with this chance",
        "5 % ↓ ↑: the prices touched until that close with this chance",
        "verdict: of the bands against a random walk's, on the test span",
    ]


def test_the_table_fits_80_columns_also_with_the_longest_prices(capsys, monkeypatch):
    out, err = printed(capsys, monkeypatch, result(row("BTCUSDT", SAME), row("PEPEUSDT", SAME, **PEPE)))
    assert max(map(len, out.splitlines())) <= 80
    assert err.startswith("left out at 80 columns: last close; ")
    assert {"0.0000120000–0.0000130000", "0.0000110000", "0.0000140000", "102,346"} <= {*out.split()}


def test_what_has_no_forecast_and_what_is_old_is_said(capsys, monkeypatch):
    reason = "only 7 candles, and the model needs 192"
    failure = {"step": "forecast", "symbol": "ETHUSDT", "timeframe": "1h", "reason": reason}
    others = [failure | {"step": "train", "symbol": "SOLUSDT"}, failure | {"symbol": "BTCUSDT"}]
    others.append({"step": "publish", "symbol": None, "timeframe": None, "reason": "the Hub is away"})
    told = result(
        row("BTCUSDT"), failures=[failure, *others], stale="BTCUSDT 1h: old; refresh it with `cpb forecast`"
    )
    _, err = printed(capsys, monkeypatch, told)
    assert err.splitlines()[-2:] == [
        f"no forecast of ETHUSDT 1h: {reason}",
        "STALE BTCUSDT 1h: old; refresh it with `cpb forecast`",
    ]
    out, err = printed(capsys, monkeypatch, result(champions=0))
    assert (out, err) == ("", "there is no forecast to show\n")


def test_simulated_candles_have_no_age(capsys, monkeypatch):
    out, _ = printed(capsys, monkeypatch, result(row("BTCUSDT", market="sim")), source="sim", as_of=None)
    assert "1h (market sim): the close of 2025-06-06 10:00 UTC" in out
    assert " old" not in out


@pytest.fixture
def commands(capsys, monkeypatch):
    """The commands after a run, and what each is for."""

    def after(told, program="cpb", more=(), **options):
        monkeypatch.setattr(sys, "argv", [program, "train-all"])
        capsys.readouterr()
        print_next(told, RunSpec(**options), more)
        empty, title, *lines = capsys.readouterr().err.splitlines()
        assert (empty, title) == ("", "Next:")
        assert all(line.startswith("      ") for line in lines[1::2])
        return dict(
            zip((line.strip() for line in lines[::2]), (line.strip() for line in lines[1::2]), strict=True)
        )

    return after


def asked_by(command):
    """The options of a `cpb forecast COIN TIMEFRAME …`."""
    program, name, coin, timeframe, *words = shlex.split(command)
    assert (program, name) == ("cpb", "forecast")
    options = {
        word.removeprefix("--").replace("-", "_"): value
        for word, value in zip(words[::2], words[1::2], strict=True)
    }
    return ForecastSpec(coins=coin, timeframes=timeframe, **options)


def test_the_next_commands_keep_the_candles_of_the_run_and_ask_around_the_last_close(commands, tmp_path):
    mirror = tmp_path / "my mirror"
    mirror.mkdir()
    given = {"source": str(mirror), "market": "um", "since": "2024-01", "as_of": "2025-06-06T12:00"}
    rows = [row("SOLUSDT", timeframe="15m"), row("BTCUSDT", market="um"), row("ETHUSDT", market="um")]
    made = commands(result(*rows), coins="BTC,ETH", preset="smoke", **given)
    question, page = made
    assert made[question] == "which is reached first, the target or the stop?"
    spec = asked_by(question)
    assert {name: getattr(spec, name) for name in given} == given
    assert (spec.coins, spec.timeframes, spec.target, spec.stop) == ("BTC", "1h", "105700", "103100")
    assert page == "cpb serve"


def test_they_are_printed_as_they_must_be_typed(commands):
    more = [("cpb ui", "MLflow")]
    made = commands(result(row("BTCUSDT", market="sim")), ".venv/bin/cpb", more, source="sim")
    assert [*made] == [
        ".venv/bin/cpb forecast BTC 1h --source sim --target 105700 --stop 103100",
        ".venv/bin/cpb serve",
        ".venv/bin/cpb ui",
    ]
    assert [*commands(result())] == ["cpb serve"]


@pytest.mark.parametrize(
    ("figures", "options"),
    [
        (PEPE, "--target 0.000013 --stop 0.000012"),
        # both on a side of the last close, or rounded onto it: no target and stop
        ({"q10": 104400.0}, "--stop-chance 5%"),
        ({"last_close": 1.00004, "q10": 1.00003, "q90": 1.00005}, "--stop-chance 5%"),
    ],
)
def test_prices_are_asked_about_as_they_can_be(commands, figures, options):
    (question, _) = commands(result(row("PEPEUSDT", **figures)))
    assert question == f"cpb forecast PEPE 1h {options}"
    assert asked_by(question).questions
