"""Small parts by themselves: periods, holes, outages, patience, the contract."""

import re
import shlex
import sqlite3
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pandera.errors
import polars as pl
import pytest

from schemas.candles import KLINES
from schemas.errors import CpbError
from schemas.scope import ScopeSpec
from tasks.market.fetch import Fetched
from tasks.market.folder import FolderSource
from tasks.market.holes import Holdings, OutageCalendar, find_holes
from tasks.market.ingest import update_store
from tasks.market.layout import (
    Remote,
    SeriesId,
    listed_file,
    period_bounds,
    source_file,
)
from tasks.market.manifest import Anomaly, FileRecord, Part
from tasks.market.parser import check, read, trim, validate_klines
from tasks.market.simulator import to_csv
from tasks.market.writer import merge
from tasks.storage.home_version import mark_home
from tests.tools.market_tools import frame, key, put

HOUR = 3_600_000_000
MAY = period_bounds("2022-05")


def test_only_the_series_own_keys_are_files():
    btc = key()
    good = source_file(btc, "2024-01")
    assert listed_file(btc, Remote(good.key)) == good
    assert listed_file(btc, Remote(good.key + ".CHECKSUM")) is None
    assert listed_file(btc, Remote(good.key.replace("BTCUSDT", "ETHUSDT"))) is None
    assert listed_file(btc, Remote("data/spot/monthly/klines/BTCUSDT/1h/../BTCUSDT-1h-2024-01.zip")) is None
    assert source_file(key("BTCUSD_PERP", market="cm"), "2024-01").key.startswith("data/futures/cm/monthly/")


def holdings(runs, edges=None, symbol="LUNAUSDT", anomalies=()):
    """One month with these runs of hours."""
    series = SeriesId("spot", symbol, "1h")
    runs = [(MAY[0] + a * HOUR, MAY[0] + b * HOUR) for a, b in runs]
    part = Part("2022-05", 0, 0, "", runs, 0, 0, edges or [(1.0, 1.0)] * len(runs))
    record = FileRecord("2022-05", "", "", "x", 1)
    return Holdings(series, [source_file(series, "2022-05")], {"2022-05": record}, [part], list(anomalies))


def causes(mine, *others):
    return [(h.bars, h.cause) for h in find_holes(mine, OutageCalendar([mine, *others]))]


WITNESS = holdings([(0, 744)], symbol="BTCUSDT")


def test_a_pause_before_a_coin_comes_back_as_another_is_not_published():
    luna = holdings([(0, 300), (730, 744)], [(80.0, 0.00005), (1.0, 5.0)])
    assert causes(luna, WITNESS) == [(430, "not published")]
    assert causes(luna) == [(430, "not published")]


def test_a_long_pause_at_the_same_price_is_absent_at_source():
    assert causes(holdings([(0, 300), (730, 744)]), WITNESS) == [(430, "absent at source")]


def test_a_short_gap_without_witness_counts_as_an_outage_unless_the_file_is_cut():
    assert causes(holdings([(0, 300), (310, 744)])) == [(10, "exchange outage")]
    assert causes(holdings([(0, 300), (310, 744)]), WITNESS) == [(10, "absent at source")]
    assert causes(holdings([(0, 734)])) == [(10, "absent at source")]
    assert causes(holdings([(0, 300), (360, 744)])) == [(60, "absent at source")]


def test_off_grid_candles_are_trade():
    strays = [Anomaly(MAY[0] + t * HOUR + 77, "off-grid", "") for t in range(305, 310)]
    mine = holdings([(0, 300), (310, 744)], anomalies=strays)
    other = holdings([(0, 300), (310, 744)], symbol="ETHUSDT")
    assert causes(mine, other) == [(10, "exchange outage")]
    assert causes(other, mine) == [(5, "exchange outage"), (5, "absent at source")]


def test_merging_keeps_what_a_poorer_file_lacks():
    whole = frame(source_file(key(), "2024-02-01"))
    poorer = whole.head(5).with_columns(count=pl.lit(1, pl.Int64))
    filled = merge(whole, poorer, [])
    assert filled.height == 24
    assert filled["count"].head(5).to_list() == [1] * 5
    assert merge(whole, poorer, [period_bounds("2024-02-01")]).height == 5


def _other_version(path):
    """A manifest as cpb wrote it before its rows had checksums."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript("CREATE TABLE files (market TEXT, symbol TEXT); PRAGMA user_version=2")


def test_a_manifest_that_cannot_be_used_is_refused_in_one_sentence_and_left_alone(tmp_path):
    path = tmp_path / "manifest.db"
    mark_home(tmp_path)
    _other_version(path)
    before = path.read_bytes()
    scope = ScopeSpec(coins="BTC", timeframes="1h", source=str(tmp_path)).scope
    with pytest.raises(CpbError) as caught:
        update_store(scope.model_copy(update={"home": tmp_path}))
    assert type(caught.value) is CpbError
    assert f"{path} was written by another version of cpb (tables 2, this one has 3)" in str(caught.value)
    assert path.read_bytes() == before
    (remedy,) = re.findall("`(rm -f [^`]+)`", str(caught.value))
    subprocess.run(shlex.split(remedy), check=True)
    put(tmp_path, source_file(key(), "2024-01"))
    assert update_store(scope.model_copy(update={"home": tmp_path})).series[0].rows == 31 * 24


_FAULTY = {
    "low is not finite": pl.lit(float("nan")).alias("low"),
    "volume is not finite": pl.lit(float("inf")).alias("volume"),
    "close is not positive": pl.col("close") * -1,
    "count is negative": pl.lit(-1, pl.Int64).alias("count"),
    "low is above open or close": pl.col("close").alias("low") + 1,
    "high is below open or close": pl.col("high") * 0.5,
    "taker volume exceeds the total": (pl.col("volume") * 1.1).alias("taker_buy_volume"),
}


@pytest.mark.parametrize("fault", _FAULTY)
def test_a_candle_refused_on_its_way_in_is_refused_by_the_store_too(fault):
    file = source_file(key(), "2024-02-01")
    rows = frame(file)
    broken = rows.with_columns(
        pl.when(pl.int_range(pl.len()) == 5).then(_FAULTY[fault]).otherwise(_FAULTY[fault].meta.output_name())
    )
    fetched = trim(Fetched(file, to_csv(broken, "1h", decimals=None)))
    _, faults = check(key(), [fetched], read([fetched])[0])
    assert fault in str(faults[0])
    assert str(faults[0]).startswith("line 6,")
    with pytest.raises(pandera.errors.SchemaError, match=fault):
        validate_klines(broken, "1h")


@pytest.mark.parametrize(
    ("timeframe", "first", "step"),
    [
        ("1h", "2024-02-01", 3600),
        ("15m", "2024-02-01", 900),
        ("1w", "2024-01-29", 7 * 86_400),
        ("3d", "2024-02-02", 3 * 86_400),
    ],
)
def test_the_contract_wants_candles_on_their_grid(timeframe, first, step):
    start = period_bounds(first)[0]
    good = frame(source_file(key(), "2024-02-01")).head(5)
    times = [start + i * step * 1_000_000 for i in range(5)]
    good = good.with_columns(open_time=pl.Series(times, dtype=pl.Int64).cast(KLINES["open_time"]))
    assert validate_klines(good, timeframe).height == 5
    late = pl.when(pl.int_range(pl.len()) == 3).then(pl.lit(60)).otherwise(0) * 1_000_000
    off = good.with_columns((pl.col("open_time").to_physical() + late).cast(KLINES["open_time"]))
    with pytest.raises(pandera.errors.SchemaError, match="off the grid"):
        validate_klines(off, timeframe)


def test_requests_of_several_threads_to_a_folder_are_all_counted(tmp_path, monkeypatch):
    """A thread that is interrupted between reading and writing the number would lose the others'."""

    class Slow(int):
        def __add__(self, other):
            time.sleep(0.001)
            return Slow(int(self) + other)

    source = FolderSource(tmp_path)
    source.requests = Slow(0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: source.files(key(), "monthly"), range(40)))
    assert source.requests == 40
