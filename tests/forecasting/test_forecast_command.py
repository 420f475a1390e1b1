"""`cpb forecast` shows forecasts: a table, every quantile of a single series, JSON."""

import json
import re
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from flows.console import price
from flows.forecast import run_forecast
from schemas.errors import CpbError
from schemas.failure import Failure
from schemas.forecasting import ForecastSpec
from schemas.handover import ForecastBatch
from tasks.forecasting.staleness import find_stale, stale_sentence
from tests.tools.forecast_steps import VERDICT, Steps
from tests.tools.forecast_tools import BTC, HOUR, PEPE, START, WEIGHTS, append, rows_at, write_candles


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A home in which two champions have forecast before, and nothing is new."""
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    for series, last in ((BTC, 104_321.5), (PEPE, 8.25e-6)):
        write_candles(tmp_path, [last] * 4, series, first=START - 4 * HOUR)
        append(tmp_path, series, rows_at(-1, last, series))
        append(tmp_path, series, rows_at(0, last, series))
    return tmp_path


@pytest.fixture
def cpb(stored, monkeypatch, cpb_here):
    def run(*words):
        Steps().stand_in(monkeypatch)
        code, out, err = cpb_here("forecast", "--as-of", "2025-05-31T20:25", *words)
        assert code == 0
        return SimpleNamespace(out=out, err=err)

    return run


def test_what_was_stored_before_is_given_and_said(stored, monkeypatch):
    said = []
    Steps().stand_in(monkeypatch)
    result = run_forecast(ForecastSpec(as_of="2025-05-31T20:25"), said.append)
    assert {row["issued_at"] for row in result["rows"]} == {START}  # the newest of each
    assert [row["step"] for row in result["rows"]] == [*range(1, 11)] * 2
    assert (result["new_rows"], [model["verdict"] for model in result["models"]]) == (0, [VERDICT] * 2)
    assert said == ["2 series as stored before; 0 older rows scored"]


def test_the_table_has_three_bands_the_close_and_its_age_verdict_and_record_of_each_series(cpb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    shown = cpb().out
    assert shown.index("BTCUSDT 1h") < shown.index("PEPEUSDT 1h")
    for text in ("104,322, 25 min old", "0.00000825000, 25 min old", "better", "no record yet"):
        assert text in shown
    bands = [line for line in shown.splitlines() if line.count("–") == 2]
    assert [re.search(r"(\d+) +2025-", line)[1] for line in bands] == ["1", "5", "10"] * 2
    first = rows_at(0, 104_321.5, BTC).row(0, named=True)
    assert f"{price(first['q25'])}–{price(first['q75'])}" in bands[0]
    assert f"{price(first['q10'])}–{price(first['q90'])}" in bands[0]


def test_at_80_columns_a_long_price_leaves_the_80_percent_band_and_the_times(cpb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = cpb()
    assert "left out at 80 columns: 50 %; " in shown.err
    assert max(map(len, shown.out.splitlines())) <= 80
    first = rows_at(0, 8.25e-6, PEPE).row(0, named=True)
    assert f" 2025-05-31 21:00 {price(first['q10'])}–{price(first['q90'])}" in " ".join(shown.out.split())


SEVEN, NINETEEN = (5, 10, 25, 50, 75, 90, 95), range(5, 100, 5)


@pytest.mark.parametrize(
    ("words", "levels", "width"),
    [((), SEVEN, 80), (("--quantiles", "all"), NINETEEN, 80), (("--quantiles", "all"), NINETEEN, 250)],
)
@pytest.mark.parametrize(("coin", "series", "close"), [("BTC", BTC, 104_321.5), ("PEPE", PEPE, 8.25e-6)])
def test_of_a_single_series_every_step_is_shown_with_seven_quantiles_or_all(
    cpb, monkeypatch, words, levels, width, coin, series, close
):
    monkeypatch.setenv("COLUMNS", str(width))
    shown = cpb(coin, "1h", *words)
    lines = shown.out.splitlines()
    assert "left out" not in shown.err
    assert max(map(len, lines)) <= width
    assert "issued 2025-05-31 20:00 UTC" in " ".join(shown.out.split())
    steps = [line.split() for line in lines if re.match(r" *\d+ +0[56]-", line)]
    assert [words[0] for words in steps] == [str(step) for step in range(1, 11)] * (len(steps) // 10)
    last = rows_at(0, close, series).row(-1, named=True)
    assert steps[-1][1:3] == ["06-01", "06:00"]
    told = [text for line in steps[9::10] for text in line[3:]]
    assert told == [price(last[f"q{level:02}"]) for level in levels]


def test_a_coin_without_a_champion_beside_one_that_has_it_is_told(cpb):
    assert "without a champion yet, and left out: DOGE\n" in cpb("--coins", "BTC,DOGE").err
    assert "left out" not in cpb("--coins", "BTC,PEPE", "--quantiles", "all").err.replace("left out at", "")


def test_quantiles_are_all_or_the_usual(cpb_here):
    code, _, err = cpb_here("forecast", "BTC", "1h", "--quantiles", "9")
    assert code == 2
    assert err == "cpb: quantiles '9' is unknown: choose all, or leave it out for the usual seven\n"


@pytest.fixture
def standing(stored, monkeypatch):
    """A newer forecast of each coin: before BTC's the last 7 candles stand still, before PEPE's 5."""
    for series, last, still in ((BTC, 104_321.5, 7), (PEPE, 8.25e-6, 5)):
        append(stored, series, rows_at(1, last, series, standing=still))
    Steps().stand_in(monkeypatch)
    return stored


NOTE = "the last 7 candles before the forecast stand still (open = high = low = close, volume 0)"


def test_a_forecast_after_candles_that_stand_still_is_made_and_says_so(standing, cpb_here):
    code, out, err = cpb_here("forecast", "--as-of", "2025-05-31T21:25")
    assert code == 0  # it is one of several
    assert f"STANDING BTCUSDT 1h: {NOTE}" in err
    assert "PEPEUSDT 1h: the last" not in err
    assert "the last 7 candles stand still" in " ".join(out.split())
    assert "the last 5 candles" not in out

    code, out, _ = cpb_here("forecast", "--as-of", "2025-05-31T21:25", "--json")
    told = json.loads(out)
    assert (code, told["exit"], told["failed"]) == (0, 0, [])
    assert [text[: len(NOTE) + 12] for text in told["standing"]] == [f"BTCUSDT 1h: {NOTE}"]
    assert {(row["symbol"], row["standing"], row["weights_sha256"]) for row in told["rows"]} == {
        ("BTCUSDT", 7, WEIGHTS),
        ("PEPEUSDT", 5, WEIGHTS),
    }


@pytest.mark.parametrize(("coin", "exit_code"), [("BTC", 3), ("PEPE", 0)])
def test_alone_it_is_a_problem(standing, cpb_here, coin, exit_code):
    code, out, err = cpb_here("forecast", coin, "1h", "--as-of", "2025-05-31T21:25", "--json")
    told = json.loads(out)
    assert (code, told["exit"], len(told["rows"])) == (exit_code, exit_code, 10)
    assert len(told["failed"]) == len(told["standing"]) == (exit_code == 3)
    assert err.count("stand still") == (exit_code == 3)


def test_rows_come_as_json(cpb):
    told = json.loads(cpb("--json").out)
    assert told["exit"] == 0
    assert {"symbol", "timeframe", "issued_at", "step", "target_time", "q05", "q95"} <= told["rows"][0].keys()
    assert (told["rows"][0]["issued_at"], told["rows"][0]["target_time"]) == (
        "2025-05-31T20:00:00Z",
        "2025-05-31T21:00:00Z",
    )


class WithoutForecasts(Steps):
    """Steps whose forecasts all fail for one reason."""

    def __init__(self, reason):
        self.failures = (Failure.of(BTC, "forecast", reason),) if reason else ()

    def one(self, step, scope, *_):
        return ForecastBatch(failures=self.failures) if step == "forecast" else super().one(step, scope)


@pytest.mark.parametrize(
    "reason", ["", "no space left on the disk; free some", "give a later --as-of, or none"]
)
def test_training_is_advised_only_where_no_other_reason_is_known(stored, monkeypatch, reason):
    WithoutForecasts(reason).stand_in(monkeypatch)
    with pytest.raises(CpbError) as caught:
        run_forecast(ForecastSpec(as_of="2025-05-31T20:25"), print)
    assert str(caught.value).endswith(
        reason or "train first, as in `cpb train-all --coins BTC,PEPE --timeframes 1h`"
    )
    assert ("train first" in str(caught.value)) is (not reason)


LATER = datetime(2025, 6, 5, 20, 25, tzinfo=UTC)


def test_old_candles_are_called_stale_not_failed(stored, monkeypatch):
    Steps().stand_in(monkeypatch)
    said = []
    result = run_forecast(ForecastSpec(as_of="2025-06-05T20:25"), said.append)
    stale = find_stale(stored, [BTC, PEPE], LATER)
    # On the terminal in one line with a command for all, however many there are; in --json series by series.
    assert said[0] == f"STALE {stale_sentence(stored, stale)}"
    assert [line for line in said[1:] if line.startswith("STALE")] == []
    assert (result["exit"], len(stale)) == (3, 2)
    for line, old in zip(result["failed"], stale, strict=True):
        assert line.endswith(stale_sentence(stored, [old]).removeprefix(str(old.series)))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (104_321.456, "104,321"),
        (2512.3449, "2,512.34"),
        (1.0, "1.00000"),
        (0.5, "0.500000"),
        (8.25e-6, "0.00000825000"),
    ],
)
def test_a_price_has_six_digits_and_no_exponent(value, shown):
    assert price(value) == shown
