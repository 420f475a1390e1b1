"""Issuing forecasts: one series' failure, whatever it is, leaves the others' forecasts in place."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from forecast_tools import BTC, PEPE, SIM_PEPE, START, append, files_of, flip

import cpbmodels
from schemas.errors import DamagedError, MemberError
from schemas.scope import Scope
from tasks.forecasting import issue
from tasks.forecasting.store import latest, read, stored

LINK = BTC.__class__("spot", "LINKUSDT", "1h")


@dataclass
class Model:
    """A champion whose model folder is itself."""

    series: object
    error: BaseException | None = None
    scale: float = 1.0
    damage: str = ""

    @property
    def folder(self):
        return self

    @property
    def model_version(self):
        return f"{self.series.registered}/1"

    def check(self):
        if self.damage:
            raise DamagedError(self.damage)

    def forecast(self, series, **_):
        if self.error:
            raise self.error
        spread = np.linspace(-0.1, 0.1, 19)[:, None] * np.ones(10)
        close = 100 * self.scale * np.exp(spread)
        candle = np.repeat(close[9][:, None], 4, axis=1)
        quantiles = dict(zip(cpbmodels.QUANTILES, close, strict=True))
        return SimpleNamespace(close=quantiles, candle=candle, last_close=100.0, issued_row=0)


@pytest.fixture
def scope(tmp_path, monkeypatch):
    def newest(home, series, *, since, as_of, provisional):
        return SimpleNamespace(times=np.array([round(START.timestamp() * 1e6) - 3_600_000_000]))

    monkeypatch.setattr(issue, "newest_series", newest)
    monkeypatch.setattr(cpbmodels, "load", lambda folder: folder)
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    return Scope.of("BTC,PEPE,LINK", "1h")


def test_champions_are_forecast_and_a_second_time_changes_nothing(scope):
    first = issue.issue_forecasts(scope, [Model(BTC), Model(PEPE)])
    again = issue.issue_forecasts(scope, [Model(BTC), Model(PEPE)])

    assert (first.rows, first.standing, first.series, first.failures) == (20, 20, (BTC, PEPE), ())
    assert (again.rows, again.standing) == (0, 20)
    assert latest(scope.home, BTC)["issued_at"][0] == START


FAULTS = {
    "a member's error": (Model(LINK, MemberError("no candles", code="no-candles")), "no-candles"),
    "a model's error": (Model(LINK, cpbmodels.ModelError("shapes differ")), "unexpected"),
    "a missing key": (Model(LINK, KeyError("weights")), "unexpected"),
    "out of memory": (Model(LINK, MemoryError()), "unexpected"),
    "a panic of polars": (Model(LINK, pl.exceptions.PanicException("index out of bounds")), "unexpected"),
    "prices that are not finite": (Model(LINK, scale=float("nan")), "non-finite"),
    "prices below zero": (Model(LINK, scale=-1.0), "rows"),
    "damaged weights": (Model(LINK, damage="weights cut in half"), "damaged"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_whatever_fails_in_one_series_is_its_failure_alone(scope, name):
    broken, code = FAULTS[name]

    batch = issue.issue_forecasts(scope, [Model(BTC), broken, Model(PEPE)])

    assert batch.series == (BTC, PEPE)
    (failure,) = batch.failures
    assert (failure.series, failure.step, failure.code) == (LINK, "forecast", code)
    assert failure.reason
    assert stored(scope.home) == [BTC, PEPE]


def test_a_damaged_forecast_file_stops_no_forecast_and_is_told_once(scope):
    append(scope.home, BTC, read_of(scope, BTC).with_columns(model_version=pl.lit("cpb-BTCUSDT-1h/0")))
    for path in files_of(scope.home):
        flip(path)

    batch = issue.issue_forecasts(scope, [Model(BTC), Model(PEPE)])

    assert (batch.rows, batch.series) == (20, (BTC, PEPE))
    (failure,) = batch.failures
    assert (failure.series, failure.step, failure.code) == (BTC, "forecast", issue.LOST)
    assert "forecasts/interval=1h/symbol=BTCUSDT/2025-05.parquet " in failure.reason
    assert issue.issue_forecasts(scope, [Model(BTC), Model(PEPE)]).failures == ()
    assert read(scope.home, BTC)["model_version"].unique().to_list() == ["cpb-BTCUSDT-1h/1"]


def test_simulated_forecasts_lie_in_the_simulators_home(scope):
    issue.issue_forecasts(scope, [Model(SIM_PEPE), Model(PEPE, scale=1.01)])

    assert stored(scope.home, "sim") == [SIM_PEPE]
    assert latest(scope.home, SIM_PEPE)["model_version"][0] == "cpb-sim-PEPEUSDT-1h/1"
    assert latest(scope.home, SIM_PEPE)["q50"][0] != latest(scope.home, PEPE)["q50"][0]


def read_of(scope, series):
    issue.issue_forecasts(scope, [Model(series)])
    return latest(scope.home, series)
