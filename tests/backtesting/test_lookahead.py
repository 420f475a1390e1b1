"""The look-ahead test: silent on what is causal, loud on what is not."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import cpbmodels
from cpbmodels.data.columns import feature_frame
from cpbmodels.fleet.extremes import with_extremes
from tasks.backtesting.lookahead import (
    FORECAST_TOLERANCE,
    baseline,
    chain,
    check_lookahead,
    first_cut,
    firsts,
    model,
    stale_columns,
    stops,
    training_inputs,
)
from tasks.backtesting.methods import robust_har
from tasks.backtesting.shuffled import LEAK, trial_finding, with_shuffled_candles, with_shuffled_features
from tasks.judging import baselines, scores
from tasks.judging.scores import crps
from tasks.signals.feature_files import series_of
from tests.tools.known_markets import A, H, bounds_of, busy_hours

ROWS = 3600


@pytest.fixture(scope="module")
def klines():
    return busy_hours(ROWS)


def feature_columns(timeframe):
    def compute(klines):
        frame = feature_frame(klines, timeframe).drop("open_time")
        return {name: frame[name].to_numpy().astype(float) for name in frame.columns}

    return compute


def test_the_feature_columns_are_causal(klines):
    assert check_lookahead(feature_columns("1h"), klines, ROWS // 2, cuts=6) == {}


def leaky(column):
    """Return the feature computation with one more column that peeks."""
    compute = feature_columns("1h")
    return lambda k: {**compute(k), "peek": k.select(column).to_series().to_numpy().astype(float)}


@pytest.mark.parametrize(
    "column",
    [
        pl.col("close").shift(-1),
        pl.col("close") - pl.col("close").mean(),
        pl.col("close").rolling_mean(5, center=True),
        pl.col("close").rank() / pl.len(),
        pl.col("volume").fill_null(strategy="backward").reverse().cum_max().reverse(),
    ],
    ids=["next candle", "mean of all", "centred window", "rank", "backward"],
)
def test_a_leaky_column_is_named(klines, column):
    leaks = check_lookahead(leaky(column), klines, ROWS // 2)
    assert list(leaks) == ["peek"]
    assert leaks["peek"].startswith("peek: row")


def test_the_whole_chain_is_causal(klines):
    fits = {"reference": baseline(baselines.ewma_walk), "har": baseline(robust_har)}
    assert check_lookahead(chain(A, bounds_of(ROWS), fits), klines, ROWS - 900, cuts=3) == {}


def test_a_baseline_that_peeks_is_named(klines):
    class Peek:
        def quantiles(self, series, origins):
            following = np.minimum(origins + 1, len(series.prices) - 1)
            walk = baselines.ewma_walk(series, series.origins("train", 30, H), H).quantiles(series, origins)
            return walk + np.log(series.prices[following, 3] / series.prices[origins, 3])[:, None, None]

    fits = {"peek": baseline(lambda *_: Peek()), "reference": baseline(baselines.ewma_walk)}
    assert list(check_lookahead(chain(A, bounds_of(ROWS), fits), klines, ROWS - 900, cuts=2)) == ["peek"]


def ratio(series):
    """CRPS ratio of the robust HAR learnt from `series` on the true test span."""
    train, test = (series.origins(s, 1, H) for s in ("train", "test"))
    truth = scores.realised(series, test, H)
    walk = baselines.reference(series, train, test, H)
    return crps(robust_har(series, train, H).quantiles(series, test), truth).mean() / crps(walk, truth).mean()


def test_shuffled_targets_show_no_skill():
    series = series_of(feature_frame(busy_hours(6000), "1h"), A, bounds_of())
    assert ratio(series) < 0.97
    nonsense = with_shuffled_features(series)
    assert ratio(nonsense) >= 0.99
    first, last = series.spans["test"]
    np.testing.assert_array_equal(nonsense.features[first:last], series.features[first:last])
    np.testing.assert_array_equal(nonsense.prices, series.prices)


def test_training_and_forecasts_of_models_are_causal_and_what_is_not_is_named(klines):
    """Windows and scaling of the real trainer pass; a scaling over all rows, test span included, does not."""
    bounds = bounds_of(ROWS)
    series = series_of(feature_frame(klines, "1h"), A, bounds)
    (member,) = cpbmodels.train_fleet([series], architecture="har", preset="smoke", seeds=[1], device="cpu")
    forecasts = chain(A, bounds, {"har": model(member)})
    assert check_lookahead(forecasts, klines, ROWS - 900, cuts=2, tolerance=1e-4) == {}

    def everything(asked):
        spread = np.nanstd(asked.columns(("log_sigma",)))
        return np.full((len(asked), 1), spread)

    inputs = chain(A, bounds, {"causal": training_inputs(member), "leaky": everything})
    assert list(check_lookahead(inputs, klines, ROWS - 900, cuts=2)) == ["leaky"]


def test_a_table_of_extremes_is_causal_and_one_that_knows_the_test_span_is_named(klines, monkeypatch):
    bounds = bounds_of(ROWS)
    series = series_of(feature_frame(klines, "1h"), A, bounds)
    (member,) = cpbmodels.train_fleet(
        [series], "robust-har", "smoke", seeds=[1], device="cpu", dtype="float64"
    )
    readings = chain(A, bounds, {"stops": stops(member), "firsts": firsts(member)})
    assert check_lookahead(readings, klines, first_cut(series), 2, FORECAST_TOLERANCE) == {}

    def knowing(member, learned, device):
        spans = [replace(s, spans={"train": (0, 0), "validation": s.spans["test"]}) for s in learned]
        return with_extremes(member, spans, device)

    def knowing_a_thousandth(member, learned, device):
        fitted = with_extremes(member, learned, device)
        times = np.float16(1.001 if len(learned[0]) == len(series) else 1)
        return replace(fitted, extremes=replace(fitted.extremes, distance=fitted.extremes.distance * times))

    def knowing_what_comes_first(member, learned, device):
        fitted = with_extremes(member, learned, device)
        times = np.float16(0.999 if len(learned[0]) == len(series) else 1)
        return replace(fitted, extremes=replace(fitted.extremes, first=fitted.extremes.first * times))

    # A price that has stood still for months: target and stop lie at the close, and nothing comes first.
    volatility = np.where(np.arange(len(series)) < len(series) - 5, series.volatility, 1e-18)
    still = firsts(member)(replace(series, volatility=volatility))
    assert np.isnan(still[-5:]).all()
    assert np.isfinite(still[-6]).all()

    both = {"stops", "firsts"}
    for leaky, named in (
        (knowing, both),
        (knowing_a_thousandth, both),
        (knowing_what_comes_first, {"firsts"}),
    ):
        monkeypatch.setattr("tasks.backtesting.lookahead.with_extremes", leaky)
        assert check_lookahead(readings, klines, first_cut(series), 2, FORECAST_TOLERANCE).keys() == named


def test_candles_in_another_order_teach_a_model_of_returns_nothing():
    series = series_of(feature_frame(busy_hours(4000), "1h"), A, bounds_of(4000))
    nonsense = with_shuffled_candles(series)
    (first, last), (begin, end) = series.spans["train"], series.spans["test"]
    close = series.names.index("r_close")
    moves, shuffled = (np.diff(np.log(s.prices[first + 1 : last, 3])) for s in (series, nonsense))
    assert abs(np.corrcoef(moves, shuffled)[0, 1]) < 0.1
    np.testing.assert_allclose(
        np.sort(nonsense.features[first + 1 : last, close]),
        np.sort(series.features[first + 1 : last, close]),
        atol=1e-9,
    )
    np.testing.assert_allclose(
        nonsense.features[begin:end, close], series.features[begin:end, close], atol=1e-9
    )
    opened, high, low, closed = nonsense.prices.T
    assert (high >= np.maximum(opened, closed) * (1 - 1e-12)).all()
    assert (low <= np.minimum(opened, closed) * (1 + 1e-12)).all()

    (learnt,) = cpbmodels.train_fleet([nonsense], architecture="gru", preset="smoke", device="cpu")
    test = series.origins("test", learnt.context, H)
    truth = scores.realised(series, test, H)
    walk = baselines.reference(series, series.origins("train", 1, H), test, H)
    quantiles = cpbmodels.predict([learnt], [series], [test])[0].quantiles
    assert crps(quantiles, truth).mean() / crps(walk, truth).mean() >= 0.99


def test_stored_columns_that_are_not_their_klines_are_named(klines):
    again = series_of(feature_frame(klines, "1h"), A, bounds_of(ROWS))
    assert stale_columns(again, again) == []

    shifted = again.features.copy()
    column = again.names.index("log_range_mean_1")
    shifted[:-1, column] = shifted[1:, column]
    assert stale_columns(replace(again, features=shifted), again) == ["log_range_mean_1"]
    assert stale_columns(replace(again, volatility=again.volatility * 2), again) == ["volatility"]


def test_skill_from_shuffled_inputs_is_excused_only_on_few_forecasts():
    assert LEAK not in trial_finding(0.998, 119, "better than the random walk")
    assert LEAK in trial_finding(0.95, 119, "better than the random walk")
    assert LEAK not in trial_finding(0.95, 119, "no different from the random walk")
    assert LEAK in trial_finding(0.989, 2870, "no different from the random walk")


def test_the_first_cut_lies_in_the_test_span_however_short_it_is(klines):
    whole = series_of(feature_frame(klines, "1h"), A, bounds_of(ROWS))
    for test in (60, 200, 900):
        start = ROWS - test
        assert start < first_cut(replace(whole, spans={"test": (start, ROWS)})) <= start + min(200, test / 3)
