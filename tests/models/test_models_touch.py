"""The chance that a price is touched: the table of extremes, its chances and stops, and where models carry it."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow.exceptions import MlflowException
from safetensors.numpy import load_file, save_file

from cpbmodels import ModelError, Series, ensemble, load, predict, train_fleet
from cpbmodels.data import extremes
from cpbmodels.data.chances import Chances
from cpbmodels.data.extremes import CHANCES, Extremes
from cpbmodels.fleet.config import DIGEST, WEIGHTS_DIGEST, sealed
from cpbmodels.mlflow import CandleModel
from tasks.storage.records import file_digest
from tests.tools.candles import series_for, table, walk

SERIES = Series.from_frame(table(1500), "BTCUSDT", test=0.3)


def fit(ratios):
    """The table of ratios [2, N, H] of running extremes to widths."""
    return extremes.fit(np.maximum.accumulate(ratios, axis=-1), np.ones(ratios.shape[1:]))


def of_width(fitted, width):
    """Chances of a forecast from 1 whose q90 - q10 has these widths."""
    close = np.ones((len(width), 19))
    close[:, 17] = np.exp(width)
    return Chances(fitted, close, 1.0)


def assert_same(table, other):
    for name, values in table.tensors().items():
        np.testing.assert_array_equal(values, other.tensors()[name])


@pytest.fixture(scope="module")
def member():
    return train_fleet([SERIES], "robust-har", "smoke", seeds=[1], device="cpu")[0]


@pytest.fixture(scope="module")
def forecast(member):
    return member.forecast(SERIES)


def test_extremes_are_the_highest_high_and_the_lowest_low_so_far():
    up, down = extremes.reached(SERIES, np.array([400]), 3)[:, 0]
    last, candles = SERIES.prices[400, 3], SERIES.prices[401:404]
    np.testing.assert_allclose(up, np.log(np.maximum.accumulate(candles[:, 1]) / last))
    np.testing.assert_allclose(down, np.log(last / np.minimum.accumulate(candles[:, 2])))


def test_the_table_is_the_quantiles_of_extremes_over_widths():
    origins = SERIES.origins("train", 30, 10)
    reached = extremes.reached(SERIES, origins, 10)
    fitted = extremes.fit(reached, np.full((len(origins), 10), 0.16))
    half, hundredth = (int(np.flatnonzero(chance == CHANCES)[0]) for chance in (0.5, 0.01))
    for at, expected in (
        (fitted.distance[1, 6, half], np.median(reached[1, :, 6]) / 0.16),
        (fitted.distance[0, 9, hundredth], np.quantile(reached[0, :, 9], 0.99) / 0.16),
    ):
        np.testing.assert_allclose(at, expected, rtol=6e-4)  # of float16


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-9, 500), min_size=2, max_size=8), st.sampled_from((1, -1)), st.integers(0, 99))
def test_a_chance_falls_with_the_distance_and_grows_with_the_step(distances, sign, seed):
    draw = np.random.default_rng(seed)
    fitted = fit(draw.standard_t(3, (2, 200, 5)) * np.arange(1, 6))
    width = draw.uniform(0.001, 2, 5)
    chances = of_width(fitted, width).touch(np.exp(sign * np.sort(distances)))
    assert ((chances > 0) & (chances <= 1)).all()
    assert (np.diff(chances, axis=0) <= 0).all()
    assert (np.diff(chances, axis=1) >= 0).all()


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-7, 0.999), st.sampled_from(extremes.SIDES))
def test_a_stop_is_touched_with_its_chance(probability, side):
    fitted = fit(np.abs(np.random.default_rng(1).standard_t(3, (2, 500, 6))))
    width = np.sqrt(np.arange(1.0, 7)) / 500
    chances = of_width(fitted, width)
    prices = chances.stop(probability, side)
    assert ((prices > 1) == (side == "up")).all()
    np.testing.assert_allclose(np.diag(chances.touch(prices)), probability, rtol=1e-6)


def test_chances_are_what_happens_on_new_candles():
    """A market that stays as it is: of prices stated to be touched with some chance, that share is touched."""
    coins = [Series.from_frame(table(8000, seed), f"C{seed}", test=0.5) for seed in range(3)]
    (model,) = train_fleet(coins, "robust-har", "smoke", seeds=[1], device="cpu", scope="universal")
    for chance in (0.5, 0.2, 0.05):
        for number, side in enumerate(extremes.SIDES):
            hits = []
            for series in coins:
                forecast = predict([model], [series], [series.origins("test", 1, 10)])[0]
                stated = Chances(
                    forecast.extremes, np.exp(forecast.quantiles), np.ones(len(forecast.origins))
                )
                reached = extremes.reached(series, forecast.origins, 10)[number]
                hits.append(reached >= np.abs(np.log(stated.stop(chance, side))))
            assert np.concatenate(hits).mean() == pytest.approx(chance, abs=0.02)


def test_the_last_close_is_touched_and_prices_far_away_hardly(forecast):
    np.testing.assert_array_equal(forecast.touch(forecast.last_close), 1)
    near, far = forecast.touch([forecast.last_close * 1.01, forecast.last_close * 100])
    assert near.shape == (10,)
    assert ((near > far) & (far < 1e-3) & (far > 0)).all()


def test_a_stop_in_prices_is_touched_with_its_chance(forecast):
    for side, beyond in (("up", 1), ("down", -1)):
        prices = forecast.stop(0.05, side)
        assert (np.sign(prices - forecast.last_close) == beyond).all()
        np.testing.assert_allclose(np.diag(forecast.touch(prices)), 0.05, rtol=1e-9)


@pytest.mark.parametrize("price", [0, -5, float("nan"), float("inf"), [100, 0]])
def test_an_impossible_price_is_refused(forecast, price):
    with pytest.raises(ModelError, match="give a number above 0"):
        forecast.touch(price)


@pytest.mark.parametrize(
    "wrong", [(0, "up"), (1, "down"), (0.1, "left"), (float("nan"), "up"), ([0.05, 0.1], "up")]
)
def test_an_impossible_stop_is_refused(forecast, wrong):
    with pytest.raises(ModelError, match="give up or down, and a chance between 0 and 1"):
        forecast.stop(*wrong)


@pytest.mark.parametrize("text", ["x", None, 10**400, object()])
def test_what_is_no_number_is_a_model_error(forecast, text):
    for ask in (
        forecast.touch,
        lambda text: forecast.stop(text, "up"),
        lambda text: forecast.to_frame(touch=[text]),
    ):
        with pytest.raises(ModelError, match=r"neither a number|above 0|between 0 and 1"):
            ask(text)


def test_rows_carry_chances_and_stops(member, forecast):
    price = round(forecast.last_close * 1.02, 2)
    rows = forecast.to_frame(touch=[price], stop=[0.05])
    np.testing.assert_array_equal(rows[f"touch_{price:.12g}"], forecast.touch(price))
    np.testing.assert_array_equal(rows["stop_down_0.05"], forecast.stop(0.05, "down"))
    assert forecast.to_pandas(stop=0.1).columns[-2:].tolist() == ["stop_up_0.1", "stop_down_0.1"]
    every = member.predict(SERIES, touch=[price], stop=[0.05])
    assert every.columns == rows.columns
    np.testing.assert_allclose(
        every.tail(10).select(rows.columns[3:]), rows.select(rows.columns[3:]), rtol=1e-5
    )


def test_nothing_is_learnt_across_a_gap_or_from_the_test_span():
    frame = table(1500)
    changed = frame.with_columns(high=frame["high"].scatter(range(1100, 1500), frame["high"][1100:] * 50))
    fitted = [
        train_fleet([Series.from_frame(f, test=0.3)], "robust-har", "smoke", seeds=[1], device="cpu")[0]
        for f in (frame, changed)
    ]
    assert_same(fitted[0].extremes, fitted[1].extremes)

    leap = SERIES.prices.copy()
    leap[700:] *= 40  # as of a coin that was split
    series = Series.from_ohlc(leap, times=SERIES.times)
    origins = np.concatenate([series.origins(split, 1, 10) for split in ("train", "validation")])
    assert extremes.reached(series, origins, 10).max() < 1


def test_a_model_of_all_coins_has_one_table_of_all():
    coins = [series_for("har", seed=seed, symbol=f"C{seed}") for seed in range(3)]
    options = {"device": "cpu", "epochs": 1, "steps_per_epoch": 2}
    (universal,) = train_fleet(coins, "har", "smoke", seeds=[1], scope="universal", **options)
    origins = [np.concatenate([c.origins(split, 1, 10) for split in ("train", "validation")]) for c in coins]
    forecasts = predict([universal] * 3, coins, origins)
    reached = [extremes.reached(coin, rows, 10) for coin, rows in zip(coins, origins, strict=True)]
    widths = np.concatenate([extremes.width(forecast.quantiles) for forecast in forecasts])
    of_all = extremes.fit(np.concatenate(reached, 1), widths)
    # Forecasts of all coins at once differ in the last digit of float32 from those of one by one.
    np.testing.assert_allclose(universal.extremes.distance, of_all.distance, rtol=1e-3)
    np.testing.assert_allclose(universal.extremes.first, of_all.first, atol=3e-3)


def test_coins_and_copies_give_their_tables_hours_of_their_own():
    """Twenty coins that move as one: a table of the same 200 hours of each would miss what all hours hold by 3 %."""
    coins = [Series.from_frame(table(5000), f"C{i}") for i in range(20)]
    copies = train_fleet(coins, "robust-har", "smoke", seeds=[1, 2], scope="universal", device="cpu")
    origins = np.concatenate([coins[0].origins(split, 1, 10) for split in ("train", "validation")])
    (of_all,) = predict(copies[:1], coins[:1], [origins])
    ratios = extremes.reached(coins[0], origins, 10) / extremes.width(of_all.quantiles)
    for copy in copies:
        beyond = (ratios[..., None] > copy.extremes.distance[:, None].astype(float)).mean(axis=1)
        assert np.abs(beyond - CHANCES).mean() < 0.007
    assert (copies[0].extremes.distance != copies[1].extremes.distance).any()


def test_an_average_carries_one_table_and_an_ensemble_the_mean(tmp_path):
    coins = [Series.from_frame(table(1200, seed), f"C{seed}") for seed in range(2)]
    options = {"device": "cpu", "epochs": 1, "steps_per_epoch": 2, "members": ("har", "robust-har")}
    copies = train_fleet(coins[:1] * 2, "average", "smoke", seeds=[1, 2], **options)
    both = ensemble(copies)
    for name, mean in both.extremes.tensors().items():
        each = [copy.extremes.tensors()[name].astype(float) for copy in copies]
        np.testing.assert_allclose(mean, np.mean(each, axis=0), rtol=1e-3, atol=1e-6)
    assert all(part.extremes is None for part in both.parts)
    assert_same(load(both.save(tmp_path)).extremes, both.extremes)


def test_a_folder_keeps_the_table_and_a_wrong_one_is_refused(member, tmp_path):
    loaded = load(member.save(tmp_path / "kept"))
    assert_same(loaded.extremes, member.extremes)
    assert sum(values.nbytes for values in member.extremes.tensors().values()) <= 24_000
    without = load(replace(member, extremes=None).save(tmp_path / "without"))
    with pytest.raises(ModelError, match="no table of extremes"):
        without.forecast(SERIES).touch(100)
    distance, first = member.extremes.distance, member.extremes.first
    for number, (wrong, why) in enumerate(
        (
            (Extremes(distance[:, :4], first), "extremes.distance is not a table of 10 steps"),
            (Extremes(distance, first[:, :, :18]), "extremes.first is not a table of 10 steps"),
            (Extremes(distance.astype(np.float32), first), "extremes.distance is not a table"),
            (
                Extremes(distance.astype(np.float64), first),
                "'extremes.distance' is not as config.json describes",
            ),
            (Extremes(distance * np.float16("nan"), first), "extremes.distance holds NaN or infinity"),
            (Extremes(distance, first * np.float16(2)), "extremes.first holds values beyond 0 .. 1"),
            (Extremes(distance), "touch.table is not a table of 10 steps"),
        )
    ):
        with pytest.raises(ModelError, match=why):
            load(replace(member, extremes=wrong).save(tmp_path / str(number)))


@pytest.mark.parametrize("missing", [extremes.DISTANCE, extremes.FIRST])
def test_half_a_table_is_refused(member, tmp_path, missing):
    folder = member.save(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors[missing]
    config = json.loads((folder / "config.json").read_text())
    save_file(tensors, folder / "model.safetensors")
    fields = {name: value for name, value in config.items() if name not in (DIGEST, WEIGHTS_DIGEST)}
    (folder / "config.json").write_text(json.dumps(sealed(fields, file_digest(folder / "model.safetensors"))))
    with pytest.raises(ModelError, match=f"damaged .{missing} is not of the same table"):
        load(folder)


def test_a_model_of_before_answers_touch_and_stop_but_not_what_comes_first(member, forecast, tmp_path):
    # Distances that grow with the step, as real ones do: what was reached before is reached.
    levels = np.sort(np.random.default_rng(0).exponential(0.5, (2, 1, 99)))
    reached = (levels * np.arange(10, 20)[:, None] / 10).astype(np.float32)
    folder = replace(member, extremes=Extremes(reached)).save(tmp_path)
    assert "touch.table" in load_file(folder / "model.safetensors")
    of_before = load(folder).forecast(SERIES)
    np.testing.assert_array_equal(of_before.close.array, forecast.close.array)
    # The distance of the median extreme, in prices: half of the windows go beyond it.
    width = np.log(of_before.close[0.9] / of_before.close[0.1])
    prices = of_before.last_close * np.exp(reached[0, :, 49] * width)
    np.testing.assert_allclose(np.diag(of_before.touch(prices)), 0.5, atol=1e-6)
    assert (of_before.stop(0.05, "down") < of_before.last_close).all()
    assert of_before.above(of_before.last_close).shape == (10,)
    for ask in (
        lambda: of_before.first(of_before.last_close * 1.02, of_before.last_close * 0.98),
        of_before.bracket,
    ):
        with pytest.raises(
            ModelError, match="does not know which of two prices is reached first: train it again"
        ):
            ask()


def test_a_flipped_bit_of_the_table_is_damage(member, tmp_path):
    folder = member.save(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors[extremes.FIRST].view(np.int16)[0, 3, 7, 7] ^= 1
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match="damaged"):
        load(folder)


def test_a_classifier_has_no_chances():
    classifier = train_fleet([walk()], "classifier-gru", "smoke", seeds=[1], device="cpu", epochs=1)[0]
    assert classifier.extremes is None
    with pytest.raises(ModelError, match="forecasts up, flat or down"):
        classifier.forecast(walk()).touch(100)


def test_mlflow_takes_prices_and_chances_as_texts(member, forecast):
    candles = table(1500).to_dict(as_series=False)
    rows = CandleModel(member).predict(pd.DataFrame(candles), {"touch": "99.5,120", "stop": "0.05"})
    np.testing.assert_allclose(rows["touch_99.5"], forecast.touch(99.5))
    assert {"touch_120", "stop_up_0.05", "stop_down_0.05"} < {*rows.columns}
    with pytest.raises(MlflowException, match=r"\['x'\] is neither a number nor a list"):
        CandleModel(member).predict(pd.DataFrame(candles), {"touch": "x"})


def test_beyond_the_last_level_the_chance_falls_at_the_rate_of_the_last_tenth():
    levels = np.interp(1 - CHANCES, [0, 0.9, 0.99], [0, 1, 1.5])  # 90 %: 1, 99 %: 1.5
    table = Extremes(np.broadcast_to(levels, (2, 1, 18)), np.zeros((3, 1, 19, 19)))
    for times in range(1, 4):
        chance, distance = 0.01 * 0.1**times, 1.5 * 1.5**times
        np.testing.assert_allclose(table.reach(0, chance), [distance])
        np.testing.assert_allclose(table.touched(0, np.array([[distance]])), [[chance]])
