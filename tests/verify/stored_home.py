"""A home with two series of the simulator and two architectures, trained, forecast and scored."""

from datetime import UTC, datetime

from flows.forecast import run_forecast
from flows.runner import Runner
from flows.train_all import run_train_all
from schemas.identity import SeriesId
from schemas.run import RunSpec
from schemas.scope import ForecastSpec

MARKET = "sim"
SERIES = SeriesId(MARKET, "BTCUSDT", "1h")
FIRST, LATER = "2025-05-20", "2025-05-22"
SPAN = {"since": datetime(2025, 3, 1, tzinfo=UTC), "as_of": datetime(2025, 5, 20, tzinfo=UTC)}
SCOPE = {"coins": "BTC,ETH", "timeframes": "1h", "source": "sim", "since": "2025-03"}


def spec(as_of: str = FIRST) -> RunSpec:
    """Return what is trained; made anew each time, since it holds the home that the environment names."""
    return RunSpec(**SCOPE, as_of=as_of, architectures="linear,robust-har", preset="smoke")


def hour(as_of: str = FIRST) -> ForecastSpec:
    """Return what is forecast."""
    return ForecastSpec(**SCOPE, as_of=as_of)


def build() -> None:
    """Train, forecast and score in the home that the environment names."""
    summary = run_train_all(spec(), Runner(), lambda _: None)
    assert not summary.failures
    run_forecast(hour(LATER), Runner(), lambda _: None)
