"""Candles in from pandas, polars and Arrow; forecast rows out. What the pipeline computes, the library computes."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpbmodels import ModelError, Series, load, train_fleet
from cpbmodels.data.columns import FEATURES, feature_frame
from tests.tools.candles import START
from tests.tools.candles import table as candles

MIRROR = Path(__file__).parents[3] / "shared" / "market"


def pandas_of(frame, **renamed):
    times = pd.to_datetime(frame["open_time"].dt.replace_time_zone(None).to_numpy(), utc=True)
    columns = {name: frame[name].to_numpy() for name in frame.columns if name != "open_time"}
    return pd.DataFrame({renamed.get("time", "open_time"): times, **columns})


def epoch(frame, unit):
    return frame.with_columns(pl.col("open_time").dt.epoch(unit))


TABLES = {
    "polars": lambda f: f,
    "lazy": lambda f: f.lazy(),
    "polars, ns": lambda f: f.with_columns(pl.col("open_time").cast(pl.Datetime("ns", "UTC"))),
    "another zone": lambda f: f.with_columns(pl.col("open_time").dt.convert_time_zone("Asia/Tokyo")),
    "arrow": lambda f: f.to_arrow(),
    "pandas": pandas_of,
    "pandas, date": lambda f: pandas_of(f, time="date"),
    "pandas, index": lambda f: pandas_of(f).set_index("open_time"),
    "pandas, unnamed index": lambda f: pandas_of(f).set_index("open_time").rename_axis(None),
    "pandas, capitals": lambda f: pandas_of(f, time="Date").rename(columns=str.capitalize),
    "pandas, objects": lambda f: pandas_of(f).astype({"close": object}),
    "seconds as floats": lambda f: epoch(f, "s").with_columns(pl.col("open_time").cast(pl.Float64)),
    "prices as texts": lambda f: f.with_columns(pl.col("open", "high", "low", "close").cast(pl.String)),
    "blank last rows": lambda f: pl.concat([f, f.clear(2)]),
    "pandas, yfinance": lambda f: (
        pandas_of(f)
        .set_index("open_time")
        .pipe(
            lambda d: d.set_axis(
                pd.MultiIndex.from_product([d.columns.str.capitalize(), ["BTC-USD"]]), axis=1
            )
        )
    ),
    "other columns too": lambda f: f.with_columns(trades=pl.lit(1), note=pl.lit("x")),
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_of_table_gives_the_same_series(kind):
    frame = candles()
    wanted = Series.from_frame(frame, "BTCUSDT", "1h")
    series = Series.from_frame(TABLES[kind](frame), "BTCUSDT")
    assert (series.symbol, series.timeframe, series.names) == ("BTCUSDT", "1h", FEATURES)
    np.testing.assert_array_equal(series.times, wanted.times)
    np.testing.assert_array_equal(series.features, wanted.features)
    np.testing.assert_array_equal(series.volatility, wanted.volatility)
    assert series.spans == wanted.spans


def without(frame, rows):
    return frame.filter(~pl.int_range(pl.len()).is_in(rows))


def change(row, **values):
    def apply(frame):
        return frame.with_columns(
            pl.when(pl.int_range(pl.len()) == row).then(pl.lit(v)).otherwise(pl.col(k)).alias(k)
            for k, v in values.items()
        )

    return apply


WRONG = {
    "no time": (lambda f: f.drop("open_time"), r"a time index \(columns: open, high, low, close, volume\)"),
    "naive": (lambda f: f.with_columns(pl.col("open_time").dt.replace_time_zone(None)), "no time zone"),
    "naive pandas": (
        lambda f: pandas_of(f).assign(open_time=lambda d: d.open_time.dt.tz_localize(None)),
        "no time zone",
    ),
    "text time": (
        lambda f: f.with_columns(pl.col("open_time").dt.strftime("%d.%m.%Y %H:%M")),
        "is not a time: write",
    ),
    "row numbers": (lambda f: f.with_columns(open_time=pl.int_range(pl.len())), "not a time since 1970"),
    "missing time": (change(3, open_time=None), "open_time is missing in 1 rows"),
    "no close": (lambda f: f.drop("close"), "the column close is missing"),
    "words": (
        lambda f: f.with_columns(close=pl.lit("much")),
        "close 'much' in row 0 is not a number: write it as",
    ),
    "not sorted": (lambda f: pl.concat([f[9:], f[:9]]), "is earlier than the candle before"),
    "twice": (lambda f: pl.concat([f[:5], f[4:]]), "in row 5 appears twice"),
    "negative": (change(7, low=-1.0), "row 7 is not a valid candle"),
    "missing price": (change(7, close=None), "row 7 is not a valid candle"),
    "high below close": (change(9, high=1e-9), "row 9 is not a valid candle"),
    "negative volume": (change(2, volume=-1.0), "volume"),
    "empty": (lambda f: f.clear(), "no candle in it"),
    "a list": (lambda f: f.rows(), "a list is not a table"),
    "odd step": (
        lambda f: f.with_columns(open_time=pl.col("open_time").dt.epoch("s") * 7 // 6 // 60 * 60),
        "apart",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_named_in_one_sentence(kind):
    make, reason = WRONG[kind]
    with pytest.raises(ModelError, match=reason) as caught:
        Series.from_frame(make(candles()), "BTCUSDT")
    assert "\n" not in str(caught.value)
    assert "BTCUSDT" in str(caught.value)


def test_timeframe_and_grid():
    with pytest.raises(ModelError, match="is not on the UTC grid of 4h"):
        Series.from_frame(candles(), timeframe="4h")
    with pytest.raises(ModelError, match="unknown"):
        Series.from_frame(candles(), timeframe="45m")
    with pytest.raises(ModelError, match="give a timeframe"):
        Series.from_frame(candles()[:1])
    assert Series.from_frame(candles()[:1], timeframe="1h").timeframe == "1h"
    assert Series.from_frame(candles(minutes=15)).timeframe == "15m"


def test_a_candle_that_has_not_closed_is_refused_or_dropped():
    frame = candles(200)
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    shift = hour - frame["open_time"][-1]
    now = frame.with_columns(pl.col("open_time") + shift)
    with pytest.raises(ModelError, match="has not come yet"):
        Series.from_frame(now)
    series = Series.from_frame(now, partial="drop")
    assert len(series) == 199
    assert series.end_of(-1) == hour


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(1, 598), max_size=12))
def test_gaps_split_and_nothing_is_computed_across_them(missing):
    frame = without(candles(600), sorted(missing))
    series = Series.from_frame(frame)
    steps = np.diff(series.times) != 3_600_000_000
    np.testing.assert_array_equal(np.diff(series.segments) != 0, steps)
    for start in [0, *(np.flatnonzero(steps) + 1)]:
        end = next((int(i) + 1 for i in np.flatnonzero(steps) if i >= start), len(frame))
        alone = Series.from_frame(frame[int(start) : end], timeframe="1h")
        np.testing.assert_allclose(series.features[start:end], alone.features, rtol=1e-9, atol=1e-12)


def test_without_a_volume_its_column_is_missing_and_named_where_it_is_wanted():
    series = Series.from_frame(candles().drop("volume"))
    assert "log_volume_change" not in series.names
    with pytest.raises(ModelError, match="`volume` column"):
        train_fleet([series], "linear", "smoke", seeds=[1], features=("r_close", "log_volume_change"))


@pytest.mark.parametrize("architecture", ["har", "robust-har", "gru"])
def test_a_saved_model_forecasts_from_a_frame(architecture, tmp_path):
    frame = candles(1200)
    series = Series.from_frame(frame, "BTCUSDT")
    options = {} if architecture == "robust-har" else {"epochs": 1, "steps_per_epoch": 3}
    member = train_fleet([series], architecture, "smoke", seeds=[1], device="cpu", **options)[0]
    model = load(member.save(tmp_path))
    forecast = model.forecast(series)
    rows = forecast.to_frame()
    assert rows["issued_at"].unique().to_list() == [frame["open_time"][-1] + timedelta(hours=1)]
    assert rows["target_time"].to_list() == [forecast.issued_at + timedelta(hours=h) for h in range(1, 11)]
    np.testing.assert_array_equal(rows["q05"], forecast.close[0.05])
    np.testing.assert_array_equal(rows["q50_high"], forecast.candle[:, 1])
    # the unit of the times may differ
    pd.testing.assert_frame_equal(forecast.to_pandas(), rows.to_pandas(), check_dtype=False)

    every = model.predict(series)
    assert every["issued_at"].n_unique() == int(series.usable(model.context).sum())
    last = every.tail(10)
    assert last.columns == rows.columns
    np.testing.assert_allclose(
        last.drop("issued_at", "target_time"), rows.drop("issued_at", "target_time"), rtol=1e-5
    )
    middle = series.end_of(700)
    alone = model.forecast(Series.from_frame(frame[:701], "BTCUSDT")).to_frame()
    from_middle = model.predict(series, since=middle)
    assert from_middle["issued_at"][0] == middle
    np.testing.assert_allclose(
        from_middle.head(10).drop("issued_at", "target_time"),
        alone.drop("issued_at", "target_time"),
        rtol=1e-5,
    )
    with pytest.raises(ModelError, match="no time zone"):
        model.predict(series, since=datetime(2024, 3, 20))
    assert model.predict(series, since="2024-03-20")["issued_at"][0] == datetime(2024, 3, 20, tzinfo=UTC)
    assert model.known_until == series.end_of(series.spans["validation"][1] - 1)


def test_a_model_refuses_candles_of_another_length_and_what_is_no_series():
    hourly = Series.from_frame(candles(1200), "BTCUSDT")
    member = train_fleet([hourly], "robust-har", "smoke", seeds=[1], device="cpu")[0]
    quarters = Series.from_frame(candles(1200, minutes=15), "BTCUSDT")
    for ask in (member.forecast, member.predict):
        with pytest.raises(ModelError, match="trained on 1h candles and these are 15m"):
            ask(quarters)
        with pytest.raises(ModelError, match=r"Series\.from_frame"):
            ask(candles())


def test_behind_a_gap_there_is_no_forecast_unless_it_may_go_back():
    whole = candles(1200)
    member = train_fleet([Series.from_frame(whole)], "robust-har", "smoke", seeds=[1], device="cpu")[0]
    series = Series.from_frame(without(whole, [1099]), "BTCUSDT")
    with pytest.raises(ModelError, match="gap or jump 100 candles before its end"):
        member.forecast(series)
    assert member.forecast(series, go_back=True).issued_at == START + timedelta(hours=1099)
    enough = Series.from_frame(without(whole, [1199 - 170]), "BTCUSDT")
    assert member.forecast(enough).issued_at == START + timedelta(hours=1200)


def test_a_classifier_forecasts_no_price():
    series = Series.from_frame(candles(700))
    member = train_fleet(
        [series], "classifier-gru", "smoke", seeds=[1], epochs=1, steps_per_epoch=2, device="cpu"
    )[0]
    with pytest.raises(ModelError, match="no price"):
        member.forecast(series).to_frame()
    with pytest.raises(ModelError, match="no price"):
        member.predict(series)
    assert "up" in repr(member.forecast(series))


@pytest.mark.skipif(not MIRROR.exists(), reason="needs the mirror of real klines")
@pytest.mark.parametrize("symbol", ["BTCUSDT", "LUNAUSDT", "ATOMUSDT"])
def test_real_klines_with_holes_and_relistings_give_the_pipelines_columns(symbol, tmp_path):
    from schemas.identity import SeriesId
    from schemas.scope import ScopeSpec
    from tasks.market.ingest import update_store
    from tasks.market.klines import read_klines
    from tasks.signals.feature_files import read_features, write_features

    scope = ScopeSpec(
        coins=symbol, timeframes="1h", source=str(MIRROR), as_of="2025-06-06", since="2022-04"
    ).scope.model_copy(update={"home": tmp_path})
    update_store(scope)
    name = SeriesId("spot", symbol, "1h")
    wanted = read_features(tmp_path, write_features(tmp_path, name))
    klines = read_klines(tmp_path, name)
    series = Series.from_frame(
        pandas_of(klines.select("open_time", "open", "high", "low", "close", "volume"))
    )
    assert series.names == wanted.names
    np.testing.assert_array_equal(series.segments, wanted.segments)
    np.testing.assert_allclose(series.features, wanted.features, rtol=0, atol=1e-12)
    np.testing.assert_allclose(series.volatility, wanted.volatility, rtol=0, atol=1e-12)
    assert len(feature_frame(klines, "1h")) == len(wanted)
