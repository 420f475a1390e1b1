import pytest
from market_tools import key

from schemas.errors import CpbError
from schemas.scope import SIMULATED, Scope
from tasks.market.client import Limits
from tasks.market.ingest import ingest
from tasks.market.mirror import FolderMirror, to_checksum, to_csv, to_zip
from tasks.market.store import read_klines
from tasks.market.synthetic import quarter_hours


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def mirror(tmp_path):
    """One month of BTC that no simulator serves: its prices are doubled."""
    frame = quarter_hours("BTCUSDT", "2025-03")
    doubled = frame.with_columns(frame.select("open", "high", "low", "close") * 2)
    name = "BTCUSDT-15m-2025-03"
    folder = tmp_path / "mirror/data/spot/monthly/klines/BTCUSDT/15m"
    folder.mkdir(parents=True)
    body = to_zip(f"{name}.csv", to_csv(doubled, "15m"))
    (folder / f"{name}.zip").write_bytes(body)
    (folder / f"{name}.zip.CHECKSUM").write_bytes(to_checksum(f"{name}.zip", body))
    assert FolderMirror(tmp_path / "mirror").keys("data/")
    return str(tmp_path / "mirror")


def scope(source):
    return Scope.of("BTC", "15m", source, since="2025-02", as_of="2025-04-01")


def months(where):
    return sorted(read_klines(where, key("BTCUSDT", "15m"))["open_time"].dt.strftime("%Y-%m").unique())


def test_real_candles_replace_a_simulated_store_whole(home, mirror):
    ingest(scope("sim"))
    assert months(home) == ["2025-02", "2025-03"]
    assert (home / SIMULATED).exists()
    ingest(scope(mirror))
    assert months(home) == ["2025-03"]
    assert not (home / SIMULATED).exists()


def test_a_source_out_of_reach_costs_no_simulated_candles(home):
    ingest(scope("sim"))
    before = read_klines(home, key("BTCUSDT", "15m"))
    with pytest.raises(CpbError, match="cannot be reached"):
        ingest(scope("http://127.0.0.1:9"), limits=Limits(tries=1))
    assert (home / SIMULATED).exists()
    assert read_klines(home, key("BTCUSDT", "15m")).equals(before)


def test_the_simulator_keeps_out_of_a_real_store(home, mirror):
    ingest(scope(mirror))
    before = read_klines(home, key("BTCUSDT", "15m"))
    aside = scope("sim")
    assert aside.home == home / "sim"
    ingest(aside)
    assert months(home / "sim") == ["2025-02", "2025-03"]
    assert read_klines(home, key("BTCUSDT", "15m")).equals(before)
