"""A home with two series of the simulator and two architectures, trained, forecast and scored."""

from datetime import UTC, datetime

from flows.forecast import run_forecast
from flows.train_all import run_train_all
from schemas.forecasting import ForecastSpec
from schemas.identity import SeriesId
from schemas.run import RunSpec
from tasks.tracking.champions import champions
from tasks.tracking.store import open_store
from tasks.training.shard import read_job

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
    summary = run_train_all(spec(), lambda _: None)
    assert not summary.failures
    run_forecast(hour(LATER), lambda _: None)


def train_again():
    said = []
    return run_train_all(spec(), said.append), said


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def garbage(path):
    path.write_bytes(bytes(range(256)) * 9)


DAMAGE = [cut, empty, flip, garbage]


def fleet_of(home):
    """The fleet that the champion comes from."""
    wanted = champion().architecture
    (folder,) = (p for p in (home / MARKET / "fleets").iterdir() if read_job(p).architecture == wanted)
    return folder


def member_of(home, name=""):
    return fleet_of(home) / "members" / SERIES.name / name


def champion():
    (model,) = (c for c in champions(open_store(), market=MARKET) if c.series == SERIES)
    return model


def only(damages):
    (damage,) = damages
    return damage
