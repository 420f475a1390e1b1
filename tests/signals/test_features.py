"""Feature columns: definitions, causality, segments and broken candles."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpbmodels.data.columns import FEATURES, FLOOR, WINSOR, feature_frame, stands_still
from schemas.features import check_features
from tests.tools.klines import klines


@pytest.mark.parametrize(
    ("volumes", "still"),
    [
        ([5, 5, 0, 0, 5, 0, 0], [False, False, True, True, False, False, True]),
        (
            [5, 0, 0, 0, 0, 0, 0],
            [False, False, True, True, False, False, True],
        ),  # a volume is known: no second rule
        ([0, 0, 0, 0, 0, 0, 0], [False, False, True, True, False, False, False]),
        (None, [False, False, True, True, False, False, False]),
    ],
)
def test_which_candles_stand_still(volumes, still):
    """Rows 2 and 3 repeat the close before them, row 6 is flat at another price; rows 0, 1, 4 and 5 move."""
    low = [9, 9, 10, 10, 9, 10, 12]
    prices = {
        "open": [10] * 6 + [12],
        "high": [10, 10, 10, 10, 10, 11, 12],
        "low": low,
        "close": [10] * 6 + [12],
    }
    found = stands_still(np.column_stack([*prices.values()]), None if volumes is None else np.array(volumes))
    assert found.tolist() == still


@given(st.integers(0, 2**32 - 1), st.integers(1, 59))
@settings(max_examples=30, deadline=None)
def test_whether_a_candle_stands_still_depends_on_no_later_one(seed, cut):
    random = np.random.default_rng(seed)
    close = np.repeat(random.integers(9, 12, 20), 3).astype(float)
    prices, volume = np.column_stack([close] * 4), random.integers(0, 2, 60) * (np.arange(60) > 30)
    whole, begun = (stands_still(prices[:rows], volume[:rows]) for rows in (60, cut))
    assert (whole[:cut] == begun).all()


def same(left, right):
    for name in left.columns:
        a, b = left[name].to_numpy(), right[name].to_numpy()
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12, err_msg=name)
        else:
            np.testing.assert_array_equal(a, b, err_msg=name)


def test_columns_are_what_they_say():
    data = klines()
    frame = check_features(feature_frame(data, "1h"))
    close, high, low = (data[c].to_numpy() for c in ("close", "high", "low"))
    t = 400
    sigma = frame["volatility"][t]
    returns = np.abs(np.diff(np.log(close)))
    ranges = np.minimum(np.log(high / low), WINSOR * frame["volatility"].to_numpy())
    for n in (1, 6, 168):
        assert frame[f"abs_return_mean_{n}"][t] == pytest.approx(
            np.log(max(returns[t - n : t].mean(), FLOOR * sigma) / sigma), rel=1e-9
        )
        assert frame[f"log_range_mean_{n}"][t] == pytest.approx(
            np.log(ranges[t - n + 1 : t + 1].mean() / sigma), rel=1e-9
        )
    expected = (np.log(close[t] / low[t]) - np.log(high[t] / close[t])) / np.log(high[t] / low[t])
    assert frame["close_location"][t] == pytest.approx(expected)
    assert frame["log_volume_change"][t] == pytest.approx(np.log(data["volume"][t] / data["volume"][t - 1]))


def test_hour_of_week_is_that_of_the_next_candle_on_both_clocks():
    # 2024-03-01 is a Friday; the candle 00:00-01:00 UTC forecasts the one that opens at 01:00.
    winter = feature_frame(klines(2), "1h")
    assert winter["hour_of_week_utc"][0] == 4 * 24 + 1
    assert winter["hour_of_week_ny"][0] == 3 * 24 + 20  # Thursday 20:00 in New York, UTC-5
    summer = feature_frame(klines(24 * 60), "1h")  # clocks went forward on 2024-03-10
    assert summer["hour_of_week_ny"][-1] == (summer["hour_of_week_utc"][-1] - 4) % 168


@pytest.mark.parametrize("cut", [180, 333, 599])
def test_a_row_does_not_know_the_future(cut):
    data = klines()
    same(feature_frame(data, "1h").head(cut), feature_frame(data.head(cut), "1h"))


def test_nothing_is_computed_across_a_hole_or_a_relisting():
    data = klines(900)
    after = data.tail(500)
    hole = pl.concat([data.head(300), after])
    frame = feature_frame(hole, "1h")
    assert frame["segment"].to_list() == [0] * 300 + [1] * 500
    same(frame.tail(500).drop("segment"), feature_frame(after, "1h").drop("segment"))
    prices = ["open", "high", "low", "close"]
    relisted = pl.concat([data.head(300), data.slice(300).with_columns(pl.col(prices) * 1000)])
    frame = feature_frame(relisted, "1h")
    assert frame["segment"].unique(maintain_order=True).to_list() == [0, 1]
    assert np.isnan(frame["r_close"][300])
    assert np.isnan(frame["log_range_mean_168"][300 + 167])
    assert np.isfinite(frame["log_range_mean_168"][300 + 168])


@pytest.mark.parametrize("kind", ["flat", "idle", "spike"])
def test_strange_candles_give_finite_columns(kind):
    data = klines(600)
    rows = pl.int_range(pl.len())
    if kind == "flat":  # no trade moves the price for 250 candles
        still = rows.is_between(300, 550)
        data = data.with_columns(
            pl.when(still).then(data["close"][299]).otherwise(pl.col(c)).alias(c)
            for c in ("open", "high", "low", "close")
        )
    if kind == "idle":
        data = data.with_columns(
            pl.when(rows.is_between(300, 310)).then(0.0).otherwise("volume").alias("volume")
        )
    if kind == "spike":  # 3.71 -> 0.001 -> 2.94 within an hour
        data = data.with_columns(
            pl.when(rows == 400).then(pl.col("low") / 3000).otherwise("low").alias("low")
        )
    frame = check_features(feature_frame(data, "1h"))
    values = frame.select(FEATURES).to_numpy()[200:]
    assert np.isfinite(values).all()
    if kind == "spike":
        assert frame["log_range"][400] <= WINSOR * frame["volatility"][400] + 1e-12
        assert frame["log_range_mean_24"].max() < np.log(WINSOR)
    if kind == "idle":
        assert frame["log_volume_change"][305] == 0
        assert frame["log_volume_change"][300] == -5


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), rows=st.integers(1, 300), scale=st.sampled_from([1e-8, 1.0, 1e5]))
def test_any_market_keeps_the_contract(seed, rows, scale):
    data = klines(rows, seed).with_columns(pl.col("open", "high", "low", "close") * scale)
    check_features(feature_frame(data, "1h"))


def test_the_contract_names_the_column_at_fault():
    frame = feature_frame(klines(300), "1h").with_columns(close_location=pl.lit(1.5))
    with pytest.raises(Exception, match="close_location"):
        check_features(frame)
    broken = feature_frame(klines(300), "1h").with_columns(r_high=pl.lit(float("inf")))
    with pytest.raises(Exception, match="r_high"):
        check_features(broken)
