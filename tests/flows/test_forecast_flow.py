"""The scheduled forecast: quiet before the first training, an error where champions were lost."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from prefect.states import State

from flows.forecast import run_forecast
from flows.hourly import _is_untrained, forecast_flow
from flows.prefect import NOT_YET
from schemas.errors import CpbError, DamagedError, UsageError
from schemas.failure import Failure
from schemas.forecasting import ForecastSpec
from schemas.identity import SeriesId
from tasks.running.step import step
from tasks.steps import Serving
from tasks.storage.packaged import PackagedModel
from tasks.tracking.store import open_store

SCOPE = {"coins": "BTC", "timeframes": "1h", "tail": True}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return tmp_path / "data"


@pytest.mark.parametrize("store", [False, True])
def test_the_scheduled_run_before_any_training_is_complete_and_says_so(store):
    if store:
        open_store()
    state: State = forecast_flow.fn(**SCOPE)

    assert (state.type, state.name) == ("COMPLETED", NOT_YET)
    assert state.message.startswith("no champions yet: ")
    assert state.data == {"exit": 0}


@pytest.mark.parametrize(
    ("failed", "name", "message"),
    [
        ([], "Completed", None),
        (["BTCUSDT 1h in forecast: old"], "Partial", "1 problem, the first: BTCUSDT 1h in forecast: old"),
        (["one", "two"], "Partial", "2 problems, the first: one"),
    ],
)
def test_a_partial_run_says_why(failed, name, message, monkeypatch):
    result = {"rows": [], "models": [], "failed": failed, "exit": 3 if failed else 0}
    monkeypatch.setattr("flows.hourly._is_untrained", lambda scope: False)
    monkeypatch.setattr("flows.hourly.run_forecast", lambda spec: result)
    state: State = forecast_flow.fn(**SCOPE)
    assert (state.name, state.message, state.data["failed"]) == (name, message, failed)


def test_a_person_who_asks_for_it_meets_an_error():
    open_store()
    with pytest.raises(CpbError) as caught:
        run_forecast(ForecastSpec(**SCOPE), report=lambda text: None)
    assert (caught.value.code, caught.value.exit_code) == ("no-champion", 1)
    assert "there is no champion of BTC at 1h in market spot yet" in str(caught.value)
    assert str(caught.value).endswith("as in `cpb train-all --coins BTC --timeframes 1h`")
    with pytest.raises(CpbError, match=r"as in `cpb train-all --timeframes 4h --market um`$"):
        run_forecast(ForecastSpec(timeframes="4h", market="um"), report=lambda text: None)


def test_a_registry_without_any_champion_is_one_plain_sentence():
    open_store()
    with pytest.raises(CpbError) as caught:
        run_forecast(ForecastSpec(), report=lambda text: None)
    assert str(caught.value) == (
        "no forecast could be made: there is no champion in market spot yet; train first, as in `cpb train-all`"
    )


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ", but 2 of market sim, with which `cpb forecast --source sim` forecasts; train first, as in "),
        (
            {"coins": "BTC", "timeframes": "1h"},
            ", but 1 of market sim, with which `cpb forecast --coins BTC --timeframes 1h --source sim` forecasts; ",
        ),
        ({"coins": "ETH", "timeframes": "1h"}, " yet; train first, as in "),
    ],
)
def test_a_missing_champion_names_the_market_that_has_one_and_the_command(monkeypatch, asked, found):
    open_store()
    packaged = [
        PackagedModel(SeriesId("sim", "BTCUSDT", timeframe), "", "", Path(), "")
        for timeframe in ("15m", "1h")
    ]
    monkeypatch.setattr(
        "tasks.steps.packaged_models", lambda home, market: packaged if market == "sim" else []
    )
    with pytest.raises(CpbError) as caught:
        run_forecast(ForecastSpec(**asked), report=lambda text: None)
    assert f" in market spot yet{found.removeprefix(' yet')}" in str(caught.value)


def test_a_champion_that_is_damaged_is_not_called_missing(monkeypatch):
    failure = Failure.of(SeriesId("spot", "BTCUSDT", "1h"), "publish", DamagedError("it is damaged"))
    monkeypatch.setattr("flows.forecast.champions", lambda market: Serving((), (failure,)))
    with pytest.raises(CpbError) as caught:
        run_forecast(ForecastSpec(**SCOPE), report=lambda text: None)
    assert (str(caught.value), caught.value.code) == ("no forecast could be made: it is damaged", "damaged")


def test_the_scheduled_run_does_not_call_a_damaged_champion_untrained(monkeypatch):
    failure = Failure(
        step="publish", reason="it is damaged", code="damaged", series=SeriesId("spot", "BTCUSDT", "1h")
    )
    monkeypatch.setattr("flows.hourly.serving", lambda *_: ([], [failure]))
    assert not _is_untrained(ForecastSpec(**SCOPE).scope)
    assert _is_untrained(ForecastSpec(**SCOPE | {"coins": "ETH"}).scope)


def test_a_misspelt_coin_is_called_unknown():
    open_store()
    with pytest.raises(UsageError, match=r"has nothing of BTCC \(did you mean BTC\?\); check the name"):
        run_forecast(ForecastSpec(**SCOPE | {"coins": "BTCC"}), report=lambda text: None)


def test_a_misspelt_coin_beside_one_with_a_champion_is_refused_before_anything_is_fetched(monkeypatch):
    served = PackagedModel(SeriesId("spot", "BTCUSDT", "1h"), "", "", Path(), "")
    monkeypatch.setattr("flows.forecast.champions", lambda market: Serving((served,), ()))
    with pytest.raises(UsageError, match=r"has nothing of BTX \(did you mean BTC\?\), only of BTC; check"):
        run_forecast(ForecastSpec(coins="BTC,BTX", timeframes="1h"), report=lambda text: None)


class Stopped(Exception):
    """Ends a flow at its first step."""


def ingested(monkeypatch, champions, **asked):
    """Return the series that a forecast of these champions brings up to date first."""
    seen = []

    @step("ingest")
    def ingest(scope, tail):
        seen.append(scope)
        raise Stopped

    monkeypatch.setattr("flows.forecast.champions", lambda market: Serving(packaged, ()))
    monkeypatch.setattr("flows.forecast.ingest", ingest)
    packaged = [SimpleNamespace(series=series) for series in champions]
    with pytest.raises(Stopped):
        run_forecast(ForecastSpec(source="sim", **asked), report=lambda text: None)
    assert {series.timeframe for series in seen[0].series} == set(seen[0].timeframes)
    return sorted(seen[0].series)


def test_only_pairs_with_a_champion_are_ingested(monkeypatch):
    pairs = sorted([SeriesId("sim", "BTCUSDT", "1h"), SeriesId("sim", "ETHUSDT", "15m")])
    assert ingested(monkeypatch, pairs, coins="BTC,ETH,XRP", timeframes="15m,1h") == pairs


def test_without_a_scope_every_champion_forecasts(monkeypatch):
    some = [SeriesId("sim", f"C{n}USDT", "4h" if n % 3 else "1h") for n in range(60)]
    assert ingested(monkeypatch, some) == sorted(some)
    assert ingested(monkeypatch, some, coins="C1,C3") == sorted([some[1], some[3]])
    assert ingested(monkeypatch, some, timeframes="1h") == sorted(some[::3])


def test_where_there_were_forecasts_the_loss_of_the_champions_is_an_error(home):
    folder = SeriesId("spot", "BTCUSDT", "1h").folder(home, "forecasts")
    folder.mkdir(parents=True)
    (folder / "2025-06.parquet").write_bytes(b"")
    open_store()

    lost, other = forecast_flow.fn(**SCOPE), forecast_flow.fn(**SCOPE | {"coins": "ETH"})

    assert (lost.type, lost.name) == ("FAILED", "Failed")
    assert (other.type, other.name) == ("COMPLETED", NOT_YET)
