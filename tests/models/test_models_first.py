"""Which of two prices is reached first, a close above a price, and brackets, on paths whose truth is counted."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpbmodels import ModelError, Series, predict, train_fleet
from cpbmodels.data import extremes
from cpbmodels.data.chances import Chances
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.errors import grouped
from tests.tools.candles import table

SERIES = Series.from_frame(table(1500), "BTCUSDT", test=0.3)
H = 6


def paths(seed=0, windows=3000, steps=H):
    """Running extremes [2, N, H] of windows of wide and narrow markets, and the widths [N, H] that were forecast."""
    draw = np.random.default_rng(seed)
    scale = np.exp(draw.normal(0, 0.5, (windows, 1)))
    # Ten moves a candle, so that a candle has a high and a low of its own.
    moves = (draw.standard_t(4, (windows, steps, 10)) * scale[..., None] / 300).cumsum(axis=-1)
    opened = np.concatenate([np.zeros((windows, 1)), moves[..., -1].cumsum(axis=-1)[:, :-1]], axis=1)
    inside = np.concatenate([np.zeros((windows, steps, 1)), moves], axis=-1) + opened[..., None]
    reached = np.stack([inside.max(axis=-1), -inside.min(axis=-1)])
    return np.maximum.accumulate(reached, axis=-1), scale * np.sqrt(np.arange(1, steps + 1)) / 30


def chances_of(fitted, width):
    """Chances of a forecast from 1 whose q90 - q10 has these widths [H]."""
    return Chances(fitted, np.exp(np.linspace(-9 / 16, 9 / 16, 19) * width[:, None]), 1.0)


FITTED = extremes.fit(*paths())


@pytest.fixture(scope="module")
def forecast():
    return train_fleet([SERIES], "robust-har", "smoke", seeds=[1], device="cpu")[0].forecast(SERIES)


@pytest.mark.parametrize(
    ("factor", "shown"), [(1, "68.9065"), (1500, "103,360"), (1e5, "6,890,650"), (1e-7, "0.00000689065")]
)
def test_a_forecast_shows_its_prices_grouped_and_without_an_exponent(forecast, factor, shown):
    close = {q: path * factor for q, path in forecast.close.items()}
    assert f"close {shown} -> " in repr(
        replace(forecast, close=close, last_close=forecast.last_close * factor)
    )


@pytest.mark.parametrize(
    ("price", "shown"),
    [
        (98_000.0, "98,000"),
        (1_234_567.89, "1,234,567.89"),
        (0.00001234, "0.00001234"),
        (1e-12, "0.000000000001"),
        (1e12, "1,000,000,000,000"),
        (0.1 + 0.2, "0.3"),
    ],
)
def test_a_grouped_price_has_all_its_digits(price, shown):
    assert grouped(price) == shown


@pytest.mark.parametrize("levels", [(7, 7), (3, 12), (12, 3), (0, 5), (17, 17)])
def test_at_its_levels_the_table_is_what_was_counted(levels):
    reached, widths = paths()
    for step in (0, 2, H - 1):
        up, down = (float(FITTED.distance[side, step, level]) for side, level in enumerate(levels))
        if not up * down:  # more windows than these do not leave the close at all
            continue
        first = {"up": 0, "down": 0, "both": 0}
        for window in range(len(widths)):
            moves = np.array([up, down]) * widths[window, step]
            hits = reached[:, window, : step + 1] >= moves[:, None]
            at = [int(hit.argmax()) if hit.any() else step + 1 for hit in hits]
            first["up"] += at[0] < at[1]
            first["down"] += at[1] < at[0]
            first["both"] += at[0] == at[1] <= step
        above, below, both, *_ = FITTED.decided(*(np.full(H, distance) for distance in (up, down)))
        counted = np.array([first["up"], first["down"], first["both"]]) / len(widths)
        np.testing.assert_allclose([above[step], below[step], both[step]], counted, atol=2e-3)


@settings(max_examples=150, deadline=None)
@given(
    st.floats(1e-4, 6),
    st.floats(1e-4, 6),
    st.sampled_from(["long", "short"]),
    st.lists(st.floats(0.3, 3), min_size=H, max_size=H),
)
def test_three_chances_sum_to_one_grow_with_the_step_and_agree_with_the_touch(goal, loss, side, stretch):
    width = 0.02 * np.sqrt(np.arange(1, H + 1)) * np.array(stretch)
    chances = chances_of(FITTED, width)
    sign = 1 if side == "long" else -1
    target, stop = np.exp(sign * goal * 0.02), np.exp(-sign * loss * 0.02)
    first = chances.first(target, stop)
    assert first.shape == (H, 2)
    assert (first >= 0).all()
    assert (first.sum(axis=-1) <= 1 + 1e-12).all()
    assert (np.diff(first, axis=0) >= 0).all()
    for price, of in ((target, first[:, 0]), (stop, first[:, 1])):
        touch = chances.touch(price)
        assert (of <= touch + 1e-12).all()
        assert (touch <= first.sum(axis=-1) + 1e-12).all()


@pytest.mark.parametrize("drift", [0, 0.02])
def test_where_candles_often_stand_still_what_comes_first_is_touched(drift):
    draw = np.random.default_rng(4)
    moves = draw.standard_t(4, (2000, H)) * (draw.random((2000, H)) > 0.7) / 30 + drift
    reached = np.maximum.accumulate(np.maximum([moves.cumsum(axis=1), -moves.cumsum(axis=1)], 0), axis=-1)
    width = np.sqrt(np.arange(1, H + 1)) / 10
    chances = chances_of(extremes.fit(reached, np.tile(width, (2000, 1))), width)
    up, down = np.exp(np.geomspace(1e-5, 1, 40))[:, None], np.exp(-np.geomspace(1e-5, 1, 40))
    for target, stop in ((up, down), (down, up)):
        first = chances.first(target, stop)
        for place, price in enumerate((target, stop)):
            touch = chances.touch(price)
            assert (first[..., place] <= touch + 1e-12).all()
            assert (touch <= first.sum(axis=-1) + 1e-12).all()


@settings(max_examples=60, deadline=None)
@given(st.floats(0.05, 4), st.floats(0.05, 4), st.floats(1.01, 3))
def test_a_nearer_target_and_a_farther_stop_make_the_target_likelier(goal, loss, further):
    chances = chances_of(FITTED, 0.02 * np.sqrt(np.arange(1, H + 1)))
    at = chances.first(np.exp(goal * 0.02), np.exp(-loss * 0.02))[-1, 0]
    assert chances.first(np.exp(goal * further * 0.02), np.exp(-loss * 0.02))[-1, 0] <= at + 2e-3
    assert chances.first(np.exp(goal * 0.02), np.exp(-loss * further * 0.02))[-1, 0] >= at - 2e-3


def test_a_candle_that_reaches_both_counts_for_the_stop():
    reached = np.full((2, 500, 1), 1.0)  # every window reaches both sides in its only candle
    fitted = extremes.fit(reached, np.ones((500, 1)))
    chances = chances_of(fitted, np.ones(1))
    for target, stop in ((np.exp(0.5), np.exp(-0.5)), (np.exp(-0.5), np.exp(0.5))):
        ((won, lost),) = chances.first(target, stop)
        assert won == 0
        assert lost > 0.98


def test_vectors_of_targets_and_stops_broadcast(forecast):
    close = forecast.last_close
    targets, stops = close * np.array([1.01, 1.02, 1.05]), close * np.array([[0.99], [0.97]])
    many = forecast.first(targets, stops)
    assert many.shape == (2, 3, 10, 2)
    np.testing.assert_array_equal(many[1, 2], forecast.first(targets[2], stops[1, 0]))
    mixed = forecast.first([close * 1.02, close * 0.98], [close * 0.98, close * 1.02])
    np.testing.assert_array_equal(mixed[1], forecast.first(close * 0.98, close * 1.02))


@pytest.mark.parametrize(("target", "stop"), [(1.02, 1.03), (0.98, 0.9), (1, 0.9), (1.1, 1), (1, 1)])
def test_two_prices_on_one_side_or_at_the_close_are_refused(forecast, target, stop):
    close = forecast.last_close
    for prices in (
        (close * target, close * stop),
        ([close * 1.1, close * target], [close * 0.9, close * stop]),
    ):
        with pytest.raises(ModelError, match="do not lie on opposite sides of the last close") as refused:
            forecast.first(*prices)
        assert grouped(close * target) in str(refused.value)


@pytest.mark.parametrize("price", [0, -1, float("nan"), float("inf"), "x", None])
def test_an_impossible_price_is_refused(forecast, price):
    for ask in (
        lambda: forecast.first(price, forecast.last_close * 0.9),
        lambda: forecast.first(forecast.last_close * 1.1, price),
        lambda: forecast.above(price),
    ):
        with pytest.raises(ModelError, match=r"neither a number|above 0"):
            ask()


@pytest.mark.parametrize(
    ("ask", "shapes"),
    [
        (lambda one, many: one.first([102, 103], [97, 98, 99]), r"\(2,\) and \(3,\) and \(\)"),
        (lambda one, many: many.touch([102, 103, 104]), r"\(3,\) and \(2,\)"),
        (lambda one, many: many.above([102, 103, 104]), r"\(3,\) and \(2,\)"),
        (lambda one, many: many.first([102, 103, 104], 99), r"\(3,\) and \(\) and \(2,\)"),
    ],
)
def test_arrays_that_do_not_broadcast_are_refused_in_a_sentence(ask, shapes):
    width = paths(windows=2)[1]
    close = 100 * np.exp(np.linspace(-9 / 16, 9 / 16, 19) * width[..., None])
    with pytest.raises(ModelError, match=f"shapes {shapes} do not broadcast: give as many targets as stops"):
        ask(Chances(FITTED, close[0], 100.0), Chances(FITTED, close, np.full(2, 100.0)))


@pytest.mark.parametrize(
    ("price", "shown"),
    [(np.float64("nan"), "nan"), ([101.0] * 999 + [-2.5], "-2.5"), (np.zeros((9, 9)), "0")],
)
def test_an_impossible_price_is_named_alone(forecast, price, shown):
    for ask in (forecast.touch, forecast.above, lambda price: forecast.first(price, 1)):
        with pytest.raises(ModelError, match=f"^The price {shown} cannot be "):
            ask(price)


def test_what_came_first_on_new_candles_is_what_was_stated():
    coins = [Series.from_frame(table(8000, seed), f"C{seed}", test=0.5) for seed in range(3)]
    (model,) = train_fleet(coins, "robust-har", "smoke", seeds=[1], device="cpu", scope="universal")
    for up, down in ((1, 1), (2, 1), (1, 2)):
        stated, came = [], []
        for series in coins:
            (forecast,) = predict([model], [series], [series.origins("test", 1, 10)])
            unit = np.median(extremes.width(forecast.quantiles)[:, -1]) / 2.5
            chances = Chances(forecast.extremes, np.exp(forecast.quantiles), np.ones(len(forecast.origins)))
            stated.append(chances.first(np.exp(up * unit), np.exp(-down * unit))[:, -1])
            hits = (
                extremes.reached(series, forecast.origins, 10) >= (unit * np.array([up, down]))[:, None, None]
            )
            first = [np.where(hit.any(axis=-1), hit.argmax(axis=-1), 10) for hit in hits]
            came.append(np.stack([first[0] < first[1], (first[1] <= first[0]) & (first[1] < 10)], axis=-1))
        np.testing.assert_allclose(
            np.concatenate(stated).mean(axis=0), np.concatenate(came).mean(axis=0), atol=0.02
        )


def test_the_chance_of_a_close_above_a_quantile_is_its_level(forecast):
    for step in (0, 9):
        above = forecast.above(forecast.close.array[step])[:, step]
        np.testing.assert_allclose(above, 1 - QUANTILES, atol=1e-9)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(-0.5, 0.5), min_size=19, max_size=19),
    st.lists(st.floats(-3, 3), min_size=2, max_size=9),
)
def test_a_close_above_a_higher_price_is_less_likely(moves, prices):
    chances = Chances(None, np.exp(np.sort(moves))[None], 1.0)
    above = chances.above(np.exp(np.sort(prices)))[:, 0]
    assert ((above > 0) & (above < 1)).all()
    assert (np.diff(above) <= 1e-12).all()


def test_beyond_the_outermost_quantile_the_chance_falls_as_a_power_of_the_distance():
    """Of a Pareto tail of index 3 around the median: the distances of 5, 10 % and any further are known."""
    upper = np.append(
        np.linspace(0, 1, 9), 2 ** (1 / 3)
    )  # 50 % .. 10 %, and 5 %: a power from the last two on
    quantiles = 0.01 * np.concatenate([-upper[:0:-1], upper])
    chances = Chances(None, np.exp(quantiles)[None], 1.0)
    for tail in (0.02, 0.01, 1e-4):
        far = 0.01 * (0.1 / tail) ** (1 / 3)
        np.testing.assert_allclose(chances.above(np.exp(far)), [tail], rtol=1e-6)
        np.testing.assert_allclose(chances.above(np.exp(-far)), [1 - tail], rtol=1e-6)
    np.testing.assert_allclose(chances.above(1e9), [1e-8])


def test_a_bracket_is_a_stop_and_a_target_with_their_chances(forecast):
    close = forecast.last_close
    for side, down in (("long", "down"), ("short", "up")):
        bracket = forecast.bracket(chance=0.1, reward=3, side=side)
        assert float(bracket.stop) == forecast.stop(0.1, down)[-1]
        assert float(bracket.target) - close == pytest.approx(3 * (close - float(bracket.stop)))
        np.testing.assert_array_equal(bracket.first, forecast.first(bracket.target, bracket.stop))
        assert bracket.first[-1, 1] <= 0.1 + 1e-9
        assert bracket.break_even == 0.25
        assert bracket.side == side
        assert isinstance(bracket.target, float)
        assert isinstance(bracket.stop, float)
    assert forecast.bracket().break_even == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        ({"side": "up"}, "long or short"),
        ({"reward": 0}, "a number above 0"),
        ({"reward": float("inf")}, "a number above 0"),
        ({"reward": [1, 2]}, "a number above 0"),
        ({"reward": "x"}, "neither a number"),
        ({"chance": 1}, "between 0 and 1"),
        (
            {"side": "short", "reward": "1e6"},
            "as a stop of 0.05 would not lie above 0: give a smaller reward",
        ),
        (
            {"chance": 1 - 1e-16, "reward": 3},
            "would lie at the close: give a larger reward or a smaller chance",
        ),
        ({"reward": 1e-300}, "would lie at the close"),
    ],
)
def test_an_impossible_bracket_is_refused(forecast, given_, why):
    with pytest.raises(ModelError, match=why):
        forecast.bracket(**given_)


def test_the_size_of_a_table_is_proportional_to_the_horizon():
    sizes = [
        sum(values.nbytes for values in extremes.fit(*paths(windows=200, steps=steps)).tensors().values())
        for steps in (1, 10, 20)
    ]
    assert sizes[1] == 10 * sizes[0] <= 24_000
    assert sizes[2] == 20 * sizes[0]


def test_widths_of_nothing_give_no_nonsense():
    """A price that never moves: no extremes, no width, and a table of zeros."""
    fitted = extremes.fit(np.zeros((2, 100, 3)), np.full((100, 3), extremes.TINY))
    first = chances_of(fitted, np.full(3, extremes.TINY)).first(1.01, 0.99)
    assert np.isfinite(first).all()
    assert (first < 0.01).all()
