"""Feature files: found again when nothing changed, and loaded as the series that fleets train on."""

import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from schemas.errors import MemberError
from schemas.identity import SeriesId
from schemas.retention import FEATURE_FILES
from tasks.signals import feature_files
from tasks.signals.splits import split_bounds
from tests.tools.klines import klines

BTC, TINY, NONE = (SeriesId("spot", f"{coin}USDT", "1h") for coin in ("BTC", "TINY", "NONE"))


@pytest.fixture
def market(monkeypatch):
    """A market store in memory: symbol -> klines."""
    frames = {"BTCUSDT": klines(3000), "TINYUSDT": klines(3000).tail(50), "NONEUSDT": klines(3000).head(0)}
    monkeypatch.setattr(feature_files, "read_klines", lambda home, series, **_: frames[series.symbol])
    return frames


def test_unchanged_input_is_not_computed_again(tmp_path, market, monkeypatch):
    first = feature_files.write_features(tmp_path, BTC)
    monkeypatch.setattr(feature_files, "feature_frame", lambda *_: pytest.fail("computed again"))
    assert feature_files.write_features(tmp_path, BTC) == first
    assert first.path.startswith("features/interval=1h/symbol=BTCUSDT/")
    path = tmp_path / first.path
    assert {p.name for p in path.parent.iterdir()} == {path.name, path.with_suffix(".json").name}


def test_a_new_candle_is_another_file_and_old_ones_are_pruned(tmp_path, market):
    whole, paths = market["BTCUSDT"], []
    for rows in range(2990, 3000):
        market["BTCUSDT"] = whole.head(rows)
        paths.append(tmp_path / feature_files.write_features(tmp_path, BTC).path)
    assert len(set(paths)) == 10
    kept = set(paths[0].parent.glob("*.parquet"))
    assert len(kept) == FEATURE_FILES
    assert len(list(paths[0].parent.iterdir())) == 2 * FEATURE_FILES
    assert paths[-1] in kept


def test_digest_sees_prices_times_and_volume():
    data = klines(300)
    digests = {feature_files.klines_digest(data), feature_files.klines_digest(data.head(299))}
    for name in ("close", "volume"):
        digests.add(feature_files.klines_digest(data.with_columns(pl.col(name) * (1 + 1e-15))))
    digests.add(feature_files.klines_digest(data.with_columns(pl.col("open_time") + pl.duration(hours=1))))
    assert len(digests) == 5


def test_loaded_series_has_the_rows_of_its_spans(tmp_path, market):
    record = feature_files.write_features(tmp_path, BTC)
    bounds = split_bounds([record])
    series = feature_files.load_series(tmp_path, record, bounds)
    assert (series.symbol, series.timeframe, len(series.prices)) == ("BTCUSDT", "1h", 3000)
    for name, (start, end) in bounds.items():
        a, b = series.spans[name]
        assert series.times[a] == start.timestamp() * 1e6
        assert b == 3000 or series.times[b] == end.timestamp() * 1e6
        origins = series.origins(name, 30, 10)
        assert len(origins) > 20
        assert origins.min() >= a
        assert origins.max() + 10 < b
    np.testing.assert_array_equal(series.prices[:, 3], market["BTCUSDT"]["close"].to_numpy())
    newest = feature_files.newest_series(tmp_path, BTC, rows=200)
    np.testing.assert_array_equal(newest.features, series.features[-200:])
    (tmp_path / record.path).unlink()
    np.testing.assert_array_equal(
        feature_files.newest_series(tmp_path, BTC, rows=200).features, newest.features
    )
    assert not (tmp_path / record.path).exists()


def test_a_live_forecast_reads_provisional_candles_and_stores_nothing(tmp_path, monkeypatch):
    archive = klines(3000)

    def read(home, series, confirmed=True, **_):
        return archive.head(2997) if confirmed else archive

    monkeypatch.setattr(feature_files, "read_klines", read)
    live = feature_files.newest_series(tmp_path, BTC)
    assert live.times[-1] == archive["open_time"].to_physical()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("span", ["train", "validation", "test"])
def test_a_span_without_an_origin_is_one_members_problem(tmp_path, market, span):
    record = feature_files.write_features(tmp_path, BTC)
    bounds = split_bounds([record])
    series = feature_files.load_series(tmp_path, record, bounds)
    first, last = series.spans[span]
    holed = series.segments.copy()
    # ten candles, then a hole: no candle has ten behind it
    holed[first:last] = 1 + np.arange(last - first) // 10
    with pytest.raises(MemberError, match=f"BTCUSDT 1h: no origin in the {span} span"):
        feature_files.with_bounds(replace(series, segments=holed), BTC, bounds)


def test_too_little_data_is_one_members_problem(tmp_path, market):
    bounds = split_bounds([feature_files.write_features(tmp_path, BTC)])
    tiny = feature_files.write_features(tmp_path, TINY)
    with pytest.raises(MemberError, match="TINYUSDT 1h: only 50 rows; needs at least"):
        feature_files.load_series(tmp_path, tiny, bounds)
    with pytest.raises(MemberError, match="NONEUSDT 1h: no candles"):
        feature_files.write_features(tmp_path, NONE)


def test_the_rows_that_are_said_to_be_needed_are_enough(tmp_path, market):
    """Spans grow with the history: whoever brings what was asked for is not asked for more."""
    whole = market["BTCUSDT"]
    market["BTCUSDT"] = whole.head(200)
    record = feature_files.write_features(tmp_path, BTC)
    with pytest.raises(MemberError, match="only 200 rows; needs at least") as refused:
        feature_files.load_series(tmp_path, record, split_bounds([record]))
    needed = int(re.search(r"at least (\d+)", str(refused.value))[1])
    market["BTCUSDT"] = whole.head(needed)
    record = feature_files.write_features(tmp_path, BTC)
    assert len(feature_files.load_series(tmp_path, record, split_bounds([record]))) == needed


def test_a_column_without_a_single_value_is_refused(tmp_path, market):
    market["BTCUSDT"] = market["BTCUSDT"].with_columns(volume=pl.lit(float("nan")))
    with pytest.raises(MemberError) as refused:
        feature_files.write_features(tmp_path, BTC)
    assert (refused.value.code, refused.value.field) == ("empty-column", "log_volume_change")


def test_the_newest_market_is_that_of_the_whole_past_whichever_coins_are_asked(tmp_path, monkeypatch):
    frames = {f"{coin}USDT": klines(1200 + 7 * n) for n, coin in enumerate(("BTC", "ETH", "SOL", "ADA"))}
    names = [SeriesId("spot", symbol, "1h") for symbol in frames]
    monkeypatch.setattr(feature_files, "read_klines", lambda home, series, **_: frames[series.symbol])
    monkeypatch.setattr(
        feature_files, "stored_series", lambda home, tree: [*names, SeriesId("spot", "BTCUSDT", "15m")]
    )
    key = feature_files.market_key(names[0])
    assert key == ("spot", "1h")
    newest = feature_files.newest_cross_sections(tmp_path, [key])[key]
    records = [feature_files.write_features(tmp_path, name) for name in names]
    coins = {record.series: feature_files.read_features(tmp_path, record) for record in records}
    whole = feature_files.cross_sections(coins)[key]
    np.testing.assert_array_equal(newest.times[-20:], whole.times[-20:])
    shared_rows = np.isfinite(whole.values).all(axis=1)  # where three coins have the candle
    assert shared_rows.any()
    assert not shared_rows[-7:].any()
    shared = np.isin(newest.times, whole.times[shared_rows])
    np.testing.assert_allclose(
        newest.values[shared][-10:], whole.values[np.isin(whole.times, newest.times[shared])][-10:], atol=1e-9
    )
    assert feature_files.newest_cross_sections(tmp_path, []) == {}
