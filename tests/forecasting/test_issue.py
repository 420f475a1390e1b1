"""Issuing forecasts: one series' failure, whatever it is, leaves the others' forecasts in place."""

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import cpbmodels
from cpbmodels.data.columns import LAMBDA
from cpbmodels.data.wide import NO_MARKET
from schemas.errors import MemberError
from schemas.forecast_rows import REFERENCE_COLUMNS
from schemas.ledger import Reference
from schemas.scope import ScopeSpec
from tasks.forecasting import issue
from tasks.forecasting.months import latest, series_with_forecasts
from tasks.storage.packaged import ServedModel
from tests.tools.forecast_tools import BTC, HOUR, PEPE, START, write_candles
from tests.tools.packaged import weights_sha256, write_packaged

LINK = BTC.__class__("spot", "LINKUSDT", "1h")


MODELS, ROOT = {}, [Path()]
SIGMA = 0.01


def reference_of(series):
    table = tuple(tuple(np.linspace(-1.6, 1.6, 19).tolist()) for _ in range(10))
    return Reference(series=series, table=table, decay=LAMBDA, origins=100, span=(0, 1))


@dataclass
class Model:
    """A champion whose forecasts are made up."""

    series: object
    error: BaseException | None = None
    scale: float = 1.0
    bounds: dict = field(default_factory=dict)
    has_reference: bool = True
    features: tuple = ("log_sigma",)
    read: list = field(default_factory=list)

    @property
    def folder(self):
        """The folder of a model whose reference is as wide as the median candle is long."""
        place = ROOT[0] / self.series.name
        reference = reference_of(self.series) if self.has_reference else None
        fields = {"preset": "smoke", "horizon": 10, "bounds": self.bounds, "features": list(self.features)}
        write_packaged(place, f"{self.series.registered}/1", reference, **fields)
        MODELS[place] = self
        return place

    def forecast(self, series, **_):
        if self.error:
            raise self.error
        self.read.append(series.cross_section)
        spread = np.linspace(-0.1, 0.1, 19)[:, None] * np.ones(10)
        close = 100 * self.scale * np.exp(spread)
        candle = np.repeat(close[9][:, None], 4, axis=1)
        quantiles = dict(zip(cpbmodels.QUANTILES, close, strict=True))
        return SimpleNamespace(close=quantiles, candle=candle, last_close=100.0, issued_row=0)


@dataclass
class Newest:
    """The newest rows of a series."""

    cross_section: object = None
    standing: int = 0
    prices: np.ndarray = field(default_factory=lambda: np.full((1, 4), 100.0))
    volatility: np.ndarray = field(default_factory=lambda: np.array([SIGMA]))

    def end_of(self, row):
        return START

    def still_until(self, row):
        return self.standing


@pytest.fixture
def scope(tmp_path, monkeypatch):
    monkeypatch.setattr(issue, "newest_series", lambda *_, **__: Newest())
    monkeypatch.setattr(ServedModel, "member", lambda self: MODELS[self.folder])
    ROOT[0] = tmp_path / "models"
    ROOT[0].mkdir()
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    return ScopeSpec(coins="BTC,PEPE,LINK", timeframes="1h").scope


def test_champions_are_forecast_and_a_second_time_changes_nothing(scope):
    first = issue.issue_forecasts(scope, [Model(BTC), Model(PEPE)])
    again = issue.issue_forecasts(scope, [Model(BTC), Model(PEPE)])

    assert (first.rows, first.total_rows, first.series, first.failures) == (20, 20, (BTC, PEPE), ())
    assert (again.rows, again.total_rows) == (0, 20)
    assert latest(scope.home, BTC)["issued_at"][0] == START


def test_a_model_that_reads_the_market_gets_what_the_stored_coins_share(scope, monkeypatch):
    asked = []

    def cross_sections(home, keys, *, since, as_of):
        asked.append((home, list(keys), as_of))
        return {("spot", "1h"): "the market of spot at 1h"}

    monkeypatch.setattr(issue, "newest_cross_sections", cross_sections)
    average = Model(BTC, features=("log_sigma", NO_MARKET))

    batch = issue.issue_forecasts(scope, [average, Model(PEPE)])
    issue.issue_forecasts(scope, [Model(PEPE)])

    assert not batch.failures
    assert average.read == ["the market of spot at 1h"]
    wanted = [keys for _, keys, *_ in asked if keys]
    assert wanted == [[("spot", "1h")]]  # nothing is read for models that need no market
    assert asked[0] == (scope.home, [("spot", "1h")], scope.as_of)


FAULTS = {
    "a member's error": (Model(LINK, MemberError("no candles", code="no-candles")), "no-candles"),
    "a model's error": (Model(LINK, cpbmodels.ModelError("shapes differ")), "unexpected"),
    "a missing key": (Model(LINK, KeyError("weights")), "unexpected"),
    "out of memory": (Model(LINK, MemoryError()), "unexpected"),
    "a panic of polars": (Model(LINK, pl.exceptions.PanicException("index out of bounds")), "unexpected"),
    "prices that are not finite": (Model(LINK, scale=float("nan")), "rows"),
    "prices below zero": (Model(LINK, scale=-1.0), "rows"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_whatever_fails_in_one_series_is_its_failure_alone(scope, name):
    broken, code = FAULTS[name]

    batch = issue.issue_forecasts(scope, [Model(BTC), broken, Model(PEPE)])

    assert batch.series == (BTC, PEPE)
    (failure,) = batch.failures
    assert (failure.series, failure.step, failure.code) == (LINK, "forecast", code)
    assert failure.reason
    assert series_with_forecasts(scope.home) == [BTC, PEPE]


def test_each_row_carries_the_references_prices_for_its_origin(scope):
    issue.issue_forecasts(scope, [Model(BTC)])

    rows = latest(scope.home, BTC)

    steps = np.sqrt(np.arange(1, 11))[:, None]
    expected = 100 * np.exp(SIGMA * steps * np.linspace(-1.6, 1.6, 19))
    np.testing.assert_allclose(rows.select(REFERENCE_COLUMNS).to_numpy(), expected, rtol=1e-14)
    assert rows["role"].unique().to_list() == ["champion"]


def test_each_row_says_which_weights_made_it_and_how_many_candles_stood_still(scope, monkeypatch):
    monkeypatch.setattr(issue, "newest_series", lambda *_, **__: Newest(standing=7))
    issue.issue_forecasts(scope, [Model(BTC)])
    rows = latest(scope.home, BTC)
    assert rows["weights_sha256"].unique().to_list() == [weights_sha256(f"{BTC.registered}/1")]
    assert rows["standing"].unique().to_list() == [7]


def test_without_a_reference_a_forecast_is_issued_all_the_same_and_it_is_said(scope):
    batch = issue.issue_forecasts(scope, [Model(BTC, has_reference=False), Model(PEPE)])

    assert batch.series == (BTC, PEPE)
    (failure,) = batch.failures
    assert (failure.series, failure.code) == (BTC, "reference")
    assert latest(scope.home, BTC)["ref_q50"].null_count() == 10
    assert latest(scope.home, PEPE)["ref_q50"].null_count() == 0


@pytest.mark.parametrize(("learnt", "code"), [(START, "learnt"), (START - HOUR, None)])
def test_nothing_is_issued_within_what_a_model_has_learnt(scope, learnt, code):
    origin = issue.issue_forecasts(scope, [Model(BTC)]) and latest(scope.home, BTC)["issued_at"][0]
    end = origin + (learnt - START)
    model = Model(PEPE, bounds={"validation": ["2020-01-01T00:00:00Z", end.isoformat()]})
    batch = issue.issue_forecasts(scope, [model])
    assert [f.code for f in batch.failures] == ([code] if code else [])
    assert batch.rows == (0 if code else 10)


def test_a_replay_is_refused_where_the_clock_is_behind_the_stored_candles(scope, monkeypatch):
    """Its rows would count as made before their candles had closed."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return START + HOUR / 2

    monkeypatch.setattr(issue, "datetime", Clock)
    write_candles(scope.home, [100.0] * 3, BTC, first=START - 3 * HOUR)  # the newest closed at START
    write_candles(scope.home, [100.0] * 5, PEPE, first=START - 3 * HOUR)  # at START + 2 hours

    batch = issue.issue_forecasts(scope, [Model(BTC), Model(PEPE)])

    assert batch.series == (BTC,)
    assert [(failed.series, failed.code) for failed in batch.failures] == [(PEPE, "clock")]
    assert "a candle is stored that closed at 2025-05-31 22:00: set the clock" in batch.failures[0].reason
