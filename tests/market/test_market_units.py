"""Small parts by themselves: periods, holes, outages, patience, the contract."""

from datetime import UTC, datetime

import numpy as np
import pandera.errors
import polars as pl
import pytest
from market_tools import key, rows_of

from schemas.errors import CpbError, UsageError
from schemas.frames import KLINES, Contract
from schemas.scope import ScopeSpec
from tasks.market import klines
from tasks.market.checks import check, validate_klines
from tasks.market.holes import Holdings, OutageCalendar, clip, find_holes, inside, join_runs
from tasks.market.ingest import ingest
from tasks.market.klines import write_part
from tasks.market.layout import (
    Remote,
    SeriesId,
    day_of,
    days,
    grid_of,
    listed_file,
    month_of,
    months,
    period_bounds,
    source_file,
    to_datetime,
    to_us,
)
from tasks.market.manifest import Anomaly, FileRecord, Manifest, Part
from tasks.market.mirror import to_csv
from tasks.market.parser import read, trim
from tasks.market.writer import merge
from tasks.storage.home import mark_home

HOUR = 3_600_000_000
MAY = period_bounds("2022-05")


def test_periods_are_half_open_utc():
    assert [to_datetime(t) for t in period_bounds("2024-02")] == [
        datetime(2024, 2, 1, tzinfo=UTC),
        datetime(2024, 3, 1, tzinfo=UTC),
    ]
    assert period_bounds("2024-12-31")[1] == period_bounds("2025-01")[0]
    assert months(period_bounds("2023-11-15")[0], period_bounds("2024-02")[0]) == [
        "2023-11",
        "2023-12",
        "2024-01",
    ]
    assert days(period_bounds("2024-02-28")[0] + 5, period_bounds("2024-03-01")[1]) == [
        "2024-02-28",
        "2024-02-29",
        "2024-03-01",
    ]
    moment = to_us(datetime(2024, 2, 29, 23, 59, tzinfo=UTC))
    assert (month_of(moment), day_of(moment)) == ("2024-02", "2024-02-29")


def test_weeks_open_on_mondays():
    monday = to_us(datetime(2024, 1, 1, tzinfo=UTC))
    assert grid_of("1w").floor(monday) == grid_of("1w").floor(monday + 7 * 24 * HOUR - 1) == monday


def test_only_the_series_own_keys_are_files():
    btc = key()
    good = source_file(btc, "2024-01")
    assert listed_file(btc, Remote(good.key)) == good
    assert listed_file(btc, Remote(good.key + ".CHECKSUM")) is None
    assert listed_file(btc, Remote(good.key.replace("BTCUSDT", "ETHUSDT"))) is None
    assert listed_file(btc, Remote("data/spot/monthly/klines/BTCUSDT/1h/../BTCUSDT-1h-2024-01.zip")) is None
    assert source_file(key("BTCUSD_PERP", market="cm"), "2024-01").key.startswith("data/futures/cm/monthly/")


def test_runs_join_cut_and_contain():
    assert join_runs([(0, 2), (2, 5), (7, 9), (8, 12)]) == [(0, 5), (7, 12)]
    assert clip([(0, 5), (7, 12)], 3, 8) == [(3, 5), (7, 8)]
    assert inside(np.array([0, 4, 5, 7, 12]), [(0, 5), (7, 12)]).tolist() == [True, True, False, True, False]
    assert not inside(np.array([1]), []).any()


def holdings(runs, edges=None, symbol="LUNAUSDT", anomalies=()):
    """One month with these runs of hours."""
    series = SeriesId("spot", symbol, "1h")
    runs = [(MAY[0] + a * HOUR, MAY[0] + b * HOUR) for a, b in runs]
    part = Part("2022-05", 0, 0, "", runs, 0, edges or [(1.0, 1.0)] * len(runs))
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
    whole = rows_of(source_file(key(), "2024-02-01"))
    poorer = whole.head(5).with_columns(count=pl.lit(1, pl.Int64))
    filled = merge(whole, poorer, [])
    assert filled.height == 24
    assert filled["count"].head(5).to_list() == [1] * 5
    assert merge(whole, poorer, [period_bounds("2024-02-01")]).height == 5


def test_the_manifest_survives_reopening(tmp_path):
    part = Part("2024-01", 2, 10, "d", [(1, 2), (5, 6)], 0, [(1.5, 2.5), (3.0, 4.0)])
    with Manifest(tmp_path / "m.db") as manifest:
        manifest.save(
            key(),
            [FileRecord("2024-01", "k", "v", facts={"a": [1]})],
            [part],
            [Anomaly(5, "odd close", "x")],
            (0, 9),
        )
    with Manifest(tmp_path / "m.db") as manifest:
        assert manifest.parts(key()) == {"2024-01": part}
        assert manifest.files(key())["2024-01"].facts == {"a": [1]}
        assert manifest.anomalies(key()) == [Anomaly(5, "odd close", "x")]


def _other_version(path):
    with Manifest(path) as manifest:
        manifest._db.execute("PRAGMA user_version=1")


def test_a_manifest_that_cannot_be_used_is_refused_in_one_sentence_and_left_alone(tmp_path):
    path = tmp_path / "manifest.db"
    mark_home(tmp_path)
    _other_version(path)
    before = path.read_bytes()
    scope = ScopeSpec(coins="BTC", timeframes="1h", source=str(tmp_path)).scope
    with pytest.raises(CpbError) as caught:
        ingest(scope.model_copy(update={"home": tmp_path}))
    assert type(caught.value) is CpbError
    for words in (
        str(path),
        "another version of cpb (tables 1, this one has 2)",
        "move that folder away",
        "CPB_HOME",
    ):
        assert words in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        pl.col("close") * -1,
        pl.col("high") * 0.5,
        pl.lit(float("inf")).alias("volume"),
        pl.lit(float("nan")).alias("low"),
        pl.lit(None, pl.Float64).alias("open"),
        pl.col("open_time").reverse(),
        pl.col("count").cast(pl.Float64),
    ],
    ids=["negative", "high too low", "infinite", "nan", "null", "order", "type"],
)
def test_the_contract_refuses(change):
    good = rows_of(source_file(key(), "2024-02-01"))
    assert validate_klines(good, "1h").columns == list(KLINES)
    with pytest.raises((pandera.errors.SchemaError, pandera.errors.SchemaErrors)):
        validate_klines(good.with_columns(change), "1h")


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
    rows = rows_of(file)
    broken = rows.with_columns(
        pl.when(pl.int_range(pl.len()) == 5).then(_FAULTY[fault]).otherwise(_FAULTY[fault].meta.output_name())
    )
    block = trim(file, to_csv(broken, "1h", decimals=None))
    _, faults = check(key(), [block], read([block])[0])
    assert fault in str(faults[0])
    assert str(faults[0]).startswith("line 6,")
    with pytest.raises(pandera.errors.SchemaError, match=fault):
        validate_klines(broken, "1h")


def test_candles_without_a_fault_do_not_wait_for_pandera(monkeypatch):
    monkeypatch.setattr(Contract, "schema", lambda _: pytest.fail("imports pandera"))
    assert validate_klines(rows_of(source_file(key(), "2024-02-01")), "1h").height == 24


def test_a_month_that_the_time_range_cuts_is_read_once(tmp_path, monkeypatch):
    rows = rows_of(source_file(key(), "2024-02")).with_columns(
        volume=pl.when(pl.int_range(pl.len()) < 3).then(0.0).otherwise("volume")
    )
    part, read = write_part(tmp_path, key(), "2024-02", rows, {}), []
    monkeypatch.setattr(klines, "read_part", lambda *place: read.append(place) or rows)
    start, end = period_bounds("2024-02")
    whole = klines.digest_and_zeros(tmp_path, key(), [part], start, end - HOUR)
    assert (whole[1], read) == (3, [])
    cut = klines.digest_and_zeros(tmp_path, key(), [part], start + HOUR, end - HOUR)
    assert (cut[1], len(read)) == (2, 1)
    assert cut[0] != whole[0]
    assert klines.digest_and_zeros(tmp_path, key(), [part], end, end + HOUR)[1] == 0


def test_the_contract_refuses_repeated_times():
    good = rows_of(source_file(key(), "2024-02-01"))
    with pytest.raises(pandera.errors.SchemaError):
        validate_klines(pl.concat([good, good.tail(1)]), "1h")


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
    good = rows_of(source_file(key(), "2024-02-01")).head(5)
    times = [start + i * step * 1_000_000 for i in range(5)]
    good = good.with_columns(open_time=pl.Series(times, dtype=pl.Int64).cast(KLINES["open_time"]))
    assert validate_klines(good, timeframe).height == 5
    late = pl.when(pl.int_range(pl.len()) == 3).then(pl.lit(60)).otherwise(0) * 1_000_000
    off = good.with_columns((pl.col("open_time").to_physical() + late).cast(KLINES["open_time"]))
    with pytest.raises(pandera.errors.SchemaError, match="off the grid"):
        validate_klines(off, timeframe)


def test_the_contract_wants_months_to_begin_on_the_first():
    good = rows_of(source_file(key(interval="1mo"), "2024-02"))
    assert validate_klines(good, "1mo").height == 1
    with pytest.raises(pandera.errors.SchemaError, match="off the grid"):
        validate_klines(good.with_columns(pl.col("open_time") + pl.duration(hours=1)), "1mo")


@pytest.mark.parametrize("text", ["0024-02", "0999-12-31", "0001-01-01"])
def test_a_year_before_1000_is_refused_before_anything_is_asked(text):
    for options in ({"since": text}, {"as_of": text}):
        with pytest.raises(UsageError) as caught:
            ScopeSpec(coins="BTC", timeframes="1h", **options)
        assert (caught.value.code, caught.value.field) == ("date", *options)
