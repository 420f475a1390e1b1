from dataclasses import replace
from itertools import takewhile

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpbmodels import train_fleet
from cpbmodels.data.columns import LAMBDA, candle_columns
from cpbmodels.data.series import Series
from cpbmodels.data.wide import WIDE_COLUMNS
from cpbmodels.errors import ModelError
from tests.tools.candles import walk


def test_columns_are_log_ratios_to_the_previous_close():
    prices = np.array([[10.0, 12, 9, 11], [11, 13, 10, 12], [12, 12, 8, 9]])
    names, columns, _ = candle_columns(prices, np.zeros(3, int))
    assert names == ("r_open", "r_high", "r_low", "r_close", "abs_return", "log_sigma")
    assert np.isnan(columns[0]).all()
    np.testing.assert_allclose(columns[2, :4], np.log(prices[2] / 12))
    np.testing.assert_allclose(columns[2, 4], abs(np.log(9 / 12)))


def test_volatility_is_the_bias_corrected_ewma_and_restarts_with_a_segment():
    series = walk(900)
    segments = np.repeat([0, 1], [500, 400])
    _, columns, volatility = candle_columns(series.prices, segments)
    weighted = weight = 0.0
    for row in range(501, 900):
        weighted = LAMBDA * weighted + (1 - LAMBDA) * columns[row, 3] ** 2
        weight = LAMBDA * weight + (1 - LAMBDA)
        assert volatility[row] == pytest.approx(np.sqrt(weighted / weight), rel=1e-12)
    assert np.isnan(volatility[500])
    assert np.isnan(columns[500:524, 5]).all()
    assert np.isfinite(columns[524, 5])


def test_nothing_sees_the_future():
    whole = walk(600)
    for rows in (100, 333, 599):
        cut = Series.from_ohlc(whole.prices[:rows])
        np.testing.assert_array_equal(cut.features, whole.features[:rows])
        np.testing.assert_array_equal(cut.volatility, whole.volatility[:rows])


def test_spans_leave_an_embargo_between_them():
    spans = walk(5000, test=0.1).spans
    assert spans["validation"][0] - spans["train"][1] == 178
    assert spans["test"][0] - spans["validation"][1] == 178
    assert spans["test"][1] == 5000


def test_newest_origin_is_the_last_row_and_a_hole_in_the_times_starts_a_segment():
    times = np.arange(300) * 3_600_000_000
    times[200:] += 7_200_000_000
    series = Series.from_ohlc(walk(300).prices, times=times)
    assert series.newest_origin(30) == 299
    assert series.segments[199] != series.segments[200]
    with pytest.raises(ModelError, match="more history"):
        series.newest_origin(250)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1, 2, 3, 1], "low <= open"),
        ([1, np.nan, 1, 1], "must lie between"),
        ([0, 1, 0, 1], "must lie between"),
    ],
)
def test_impossible_candles_are_named(row, message):
    prices = walk(50).prices
    prices[17] = row
    with pytest.raises(ModelError, match=f"row 17.*{message}"):
        Series.from_ohlc(prices)


def test_wrong_shape_and_missing_columns_say_what_to_do():
    with pytest.raises(ModelError, match=r"\[rows, 4\]"):
        Series.from_ohlc(np.ones((5, 5)))
    with pytest.raises(ModelError, match=r"Series\.from_frame"):  # a table, with its times
        Series.from_ohlc(np.array([["2025-01-01", 1.0, 1.0, 1.0]], dtype=object))
    with pytest.raises(ModelError, match=r"log_range_mean_6.*Series\.from_frame"):
        walk().columns(("r_open", "log_range_mean_6"))


def leaping(factor, past, reader, rows=900, leap=450):
    """Candles whose price level leaps by a factor; `past` draws those before it, the others are always the same."""
    before, after = walk(leap, seed=past).prices, walk(rows - leap, seed=9).prices
    prices = np.vstack([before * after[0, 0] / before[-1, 3] / factor, after])
    times = 1_700_000_000_000_000 // 3_600_000_000 * 3_600_000_000 + np.arange(rows) * 3_600_000_000
    if reader == "arrays":
        return Series.from_ohlc(prices, times=times, timeframe="1h"), leap
    volume = np.concatenate(
        [np.random.default_rng(n).lognormal(3, 1, m) for n, m in ((past, leap), (9, rows - leap))]
    )
    columns = {name: prices[:, i] for i, name in enumerate(("open", "high", "low", "close"))}
    frame = pl.DataFrame({"open_time": times, **columns, "volume": volume})
    return Series.from_frame(frame, "AAAUSDT"), leap


@pytest.mark.parametrize("reader", ["arrays", "table"])
@pytest.mark.parametrize("factor", [1000, 1 / 1000, 10, 1 / 10, 2, 1 / 2])
def test_nothing_reads_across_a_leap_of_the_price_level(factor, reader):
    (series, leap), (other, _) = (leaping(factor, past, reader) for past in (1, 2))
    assert np.flatnonzero(np.diff(series.segments)).tolist() == [leap - 1]
    names = series.names if reader == "arrays" else (*series.names, *WIDE_COLUMNS)
    for read in (lambda s: s.columns(names), lambda s: s.volatility, lambda s: s.usable(30, 10)):
        np.testing.assert_allclose(read(series)[leap:], read(other)[leap:], rtol=1e-9, atol=1e-9)
    assert np.isfinite(series.columns(("r_close",))[leap + 1 :]).all()
    origins = np.flatnonzero(series.usable(30, 10))
    assert not ((origins >= leap - 10) & (origins < leap + 29)).any()
    for whole in (series, other):  # the windows of all architectures, and the closed form's targets
        assert np.abs(np.log(whole.prices[origins + 10, 3] / whole.prices[origins, 3])).max() < np.log(1.5)


def test_what_is_learnt_after_a_leap_does_not_depend_on_what_came_before():
    pair = [leaping(1000, past, "table")[0] for past in (1, 2)]
    pair = [replace(first, spans={"train": (450, 700), "validation": (740, 900)}) for first in pair]
    for architecture in ("robust-har", "gru", "line"):
        first, other = train_fleet(pair, architecture, "smoke", seeds=[0, 0], device="cpu", epochs=1)
        np.testing.assert_allclose(first.rows, other.rows, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(first.forecast(pair[0]).close, other.forecast(pair[1]).close, rtol=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(0, 29))
def test_candles_that_stand_still_are_counted_back_from_a_row(still, row):
    row = min(row, len(still) - 1)
    series = replace(Series.from_ohlc(np.full((len(still), 4), 5.0)), still=np.array(still))
    counted = len(list(takewhile(lambda is_still: is_still, reversed(still[: row + 1]))))
    assert series.still_until(row) == counted
    assert replace(series, still=None).still_until(row) == 0
