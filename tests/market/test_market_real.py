"""Real files with their real defects; skipped where the mirror is not at hand."""

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from cpbmodels.data.columns import feature_frame
from schemas.identity import SeriesId
from tasks.market.client import BadFile
from tasks.market.fetch import open_zip
from tasks.market.ingest import update_store
from tasks.market.klines import read_klines
from tasks.market.layout import source_file
from tests.tools.market_tools import key, put, scope

MARKET = Path(__file__).resolve().parents[2] / "../shared/market"
pytestmark = pytest.mark.skipif(not MARKET.is_dir(), reason="needs ../shared/market")


def defect(name):
    return next((MARKET / "defects").glob(f"{name}*")).read_bytes()


@pytest.fixture(scope="module")
def bitcoin(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    return home, update_store(scope(home, MARKET, coins="BTC,LUNA", as_of="2025-06-06"))


def test_every_defect_of_bitcoin_since_2017(bitcoin):
    _, report = bitcoin
    series = report.series[0]
    assert [h["cause"] for h in series.holes] == ["exchange outage"] * 28
    assert ("2018-02-08T01:00:00Z", "2018-02-11T04:00:00Z") in [(h["from"], h["to"]) for h in series.holes]
    assert series.off_grid == 43
    assert len(series.odd_close) == 13
    assert series.zero_volume == 5
    assert series.first == "2017-08-17T04:00:00Z"
    assert series.last == "2025-06-05T23:00:00Z"
    assert (series.status, series.files["ok"]) == ("complete", 99)


def test_luna_is_two_coins(bitcoin):
    home, report = bitcoin
    series = report.series[1]
    assert {
        "from": "2022-05-13T01:00:00Z",
        "to": "2022-05-31T06:00:00Z",
        "bars": 437,
        "cause": "not published",
    } in series.holes
    last = series.holes[-1]
    hole = (last["from"], last["to"], last["cause"])
    assert hole == (
        "2024-09-06T03:00:00Z",
        "2025-01-01T00:00:00Z",
        "not published",
    )
    rows = read_klines(home, key("LUNAUSDT", "1h"))
    assert rows.height == series.rows
    # The crash moves within its candles: no leap of the price level, so the old coin is whole to its last candle.
    assert series.leaps == []
    before = feature_frame(rows, "1h").filter(pl.col("open_time") < datetime(2022, 5, 31, tzinfo=UTC))
    assert before["low"].min() < 1e-4 * before["high"].max()
    assert before["segment"].n_unique() == 1


def test_the_stored_rows_are_the_published_ones(bitcoin):
    home, report = bitcoin
    assert read_klines(home, key("BTCUSDT", "1h")).height == report.series[0].rows == 68_227


def test_a_test_networks_file_is_refused_by_its_header(tmp_path):
    put(tmp_path / "mirror", source_file(key(), "2025-07"), defect("testnet"))
    report = update_store(scope(tmp_path / "home", tmp_path / "mirror", coins="BTC", as_of="2025-08-01"))
    assert any("header 'timestamp,open,high,low,close,volume,close_time" in n for n in report.series[0].notes)
    assert report.exit == 3


def test_off_grid_candles_are_kept_apart(tmp_path):
    file = source_file(SeriesId("spot", "BTCUSDT", "1h"), "2018-02")
    put(tmp_path / "mirror", file, defect("offgrid"))
    home = tmp_path / "home"
    report = update_store(scope(home, tmp_path / "mirror", coins="BTC", as_of="2018-03-01"))
    assert report.series[0].off_grid == 43
    assert read_klines(home, key("BTCUSDT", "1h")).height == 597
    assert list(home.glob("offgrid/interval=1h/symbol=BTCUSDT/2018-02.parquet"))


def test_genuine_zips_carry_their_own_checksum():
    for path in sorted((MARKET / "genuine").glob("*.zip")):
        file = source_file(SeriesId("spot", "BTCUSDT", "1m"), path.stem.removeprefix("BTCUSDT-1m-"))
        published = path.with_name(path.name + ".CHECKSUM").read_text().split()[0]
        csv, _, verified = open_zip(path.read_bytes(), file, published)
        assert verified
        assert csv.count(b"\n") == 1440
        with pytest.raises(BadFile, match="checksum mismatch"):
            open_zip(path.read_bytes(), file, "0" * 64)


def test_a_futures_file_is_at_home_in_its_own_market(tmp_path):
    file = source_file(SeriesId("um", "BTCUSDT", "5m"), "2025-01")
    put(tmp_path / "mirror", file, defect("um-futures"))
    made = scope(
        tmp_path / "home", tmp_path / "mirror", coins="BTC", timeframes="5m", market="um", as_of="2025-02-01"
    )
    series = update_store(made).series[0]
    assert series.rows == 599
    assert any("header line dropped" in note for note in series.notes)
    assert [h["cause"] for h in series.holes] == ["absent at source"]
