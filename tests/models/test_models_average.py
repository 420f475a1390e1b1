"""The columns of `cpbmodels.data.wide`, the line and the walk on them, and averages of models."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpbmodels import ModelError, Series, ensemble, load, predict, preset, train_fleet
from cpbmodels.arch.heads import Bent, bent, pinball
from cpbmodels.arch.line import LEVELS, _gradient
from cpbmodels.arch.presets import by_timeframe
from cpbmodels.data.series import with_cross_section
from cpbmodels.data.wide import MARKET_COLUMNS, NO_MARKET, OWN_COLUMNS, QUARTER, WIDE_COLUMNS
from cpbmodels.fleet.config import sealed
from cpbmodels.fleet.fleet import Fleet

ROWS = 1200
COINS = ("BTCUSDT", "ETHUSDT", "SOLUSDT", "ADAUSDT")


def candles(seed, step=timedelta(hours=1), rows=ROWS):
    """A random walk whose candles are made of eight moves each."""
    random = np.random.default_rng(seed)
    size = 0.004 * np.exp(np.cumsum(random.normal(0, 0.03, rows)).clip(-1, 1))
    path = np.cumsum(random.normal(0, 1, (rows, 8)) * size[:, None] / np.sqrt(8), axis=1)
    opened = np.concatenate([[0.0], np.cumsum(path[:, -1])[:-1]])
    path = np.column_stack([np.zeros(rows), path]) + opened[:, None]
    prices = np.exp(np.column_stack([opened, path.max(axis=1), path.min(axis=1), path[:, -1]]))
    start = datetime(2024, 1, 1, tzinfo=UTC)
    times = pl.datetime_range(start, start + step * (rows - 1), step, time_unit="us", eager=True)
    named = {name: prices[:, i] for i, name in enumerate(("open", "high", "low", "close"))}
    return pl.DataFrame({"open_time": times, **named, "volume": random.lognormal(8, 1, rows)})


KLINES = {name: candles(seed) for seed, name in enumerate(COINS)}


def market(rows=ROWS, step=None):
    return with_cross_section([Series.from_frame(frame.head(rows), name) for name, frame in KLINES.items()])


@pytest.fixture(scope="module")
def coins():
    return market()


@pytest.fixture(scope="module")
def averages(coins):
    return train_fleet(coins, "average", "smoke", seeds=[1, 2], scope="universal", device="cpu", epochs=1)


# ---- columns


@settings(max_examples=15, deadline=None)
@given(st.integers(200, ROWS - 1))
def test_no_column_looks_ahead(cut):
    whole, part = market()[1].columns(WIDE_COLUMNS), market(cut)[1].columns(WIDE_COLUMNS)
    np.testing.assert_allclose(part, whole[:cut], atol=1e-9)


@settings(max_examples=10, deadline=None)
@given(st.integers(30, 300), st.integers(0, 3))
def test_a_coin_that_has_not_closed_its_last_candle_changes_no_earlier_row(missing, late):
    frames = list(KLINES.items())
    frames[late] = (frames[late][0], frames[late][1].head(ROWS - missing))
    series = with_cross_section([Series.from_frame(frame, name) for name, frame in frames])
    other = (late + 1) % 4
    now, whole = series[other].columns(MARKET_COLUMNS), market()[other].columns(MARKET_COLUMNS)
    np.testing.assert_allclose(now[: ROWS - missing], whole[: ROWS - missing], atol=1e-9)
    assert (series[other].columns((NO_MARKET,))[-missing:] == 0).all()  # three coins are enough


def test_columns_are_what_they_are_defined_as(coins):
    ether, row = coins[1], 1000
    close, sigma = np.log(ether.prices[:, 3]), ether.volatility[row]
    value = dict(zip(WIDE_COLUMNS, ether.columns(WIDE_COLUMNS)[row], strict=True))
    ranges = ether.columns(("log_range",))[:, 0]
    assert value["return_6"] == pytest.approx((close[row] - close[row - 6]) / (sigma * np.sqrt(6)))
    assert value["range_48"] == pytest.approx(np.log(ranges[row - 47 : row + 1].mean() / sigma))
    week = ranges[row - 167 : row + 1].mean()
    assert value["range_336"] == pytest.approx(np.log(ranges[row - 335 : row + 1].mean() / week))
    slots = [ranges[row - 24 * day + 1 : row - 24 * day + 5].mean() for day in range(1, 8)]
    assert value["slot_days_4"] == pytest.approx(np.log(np.mean(slots) / week))
    traded = np.log(KLINES["ETHUSDT"]["volume"].to_numpy()) + np.log(ether.prices[:, 1:].mean(axis=1))
    expected = traded[row - 5 : row + 1].mean() - traded[row - 167 : row + 1].mean()
    assert value["volume_6"] == pytest.approx(expected, abs=1e-6)
    returns = [s.columns(("return_3",))[row, 0] for s in coins]
    assert value["market_return_3"] == pytest.approx(np.mean(returns))
    assert value["market_spread_24"] == pytest.approx(
        np.log(np.std([s.columns(("return_24",))[row, 0] for s in coins]))
    )
    ethers, bitcoin = (s.columns(("log_range_mean_24",))[row, 0] for s in (ether, coins[0]))
    assert value["bitcoin_range_24"] == pytest.approx(bitcoin - ethers)


def test_the_quarter_of_the_day_is_new_yorks_in_summer_and_winter():
    frame = candles(1, timedelta(minutes=15), 96 * 200)
    series = Series.from_frame(frame, "BTCUSDT")
    clock = (frame["open_time"] + timedelta(minutes=15)).dt.convert_time_zone("America/New_York").dt
    expected = clock.hour().cast(pl.Int64) * 4 + clock.minute() // 15
    np.testing.assert_array_equal(series.columns((QUARTER,))[:, 0], expected.to_numpy())


def test_without_other_coins_or_a_long_past_every_column_has_its_neutral_value():
    series = Series.from_frame(KLINES["ETHUSDT"].head(400).drop("volume"))
    columns = dict(zip(WIDE_COLUMNS, series.columns(WIDE_COLUMNS).T, strict=True))
    assert np.isfinite(series.columns(WIDE_COLUMNS)).all()
    assert (columns["no_market"] == 1).all()
    assert (columns["no_long"] == 1).all()
    assert not any(columns[name].any() for name in (*MARKET_COLUMNS, "range_720", "volume_1"))


def test_origins_and_features_are_those_of_a_series_without_wide_columns(coins):
    plain = Series.from_frame(KLINES["ETHUSDT"], "ETHUSDT")
    np.testing.assert_array_equal(coins[1].usable(1, 10), plain.usable(1, 10))
    np.testing.assert_array_equal(coins[1].features, plain.features)


# ---- line and walk


def test_a_forecast_from_one_coin_alone_is_the_lines_without_columns_of_the_market(coins):
    (line,) = train_fleet(coins, "line", scope="universal", device="cpu", dtype="float64")
    (alone,) = train_fleet(
        [replace(coin, cross_section=None) for coin in coins],
        "line",
        scope="universal",
        device="cpu",
        dtype="float64",
    )
    origins = coins[1].origins("validation", 1, 10)
    bare = replace(coins[1], cross_section=None)
    with_it, without, other = (
        predict([model], [coin], [origins])[0].quantiles
        for model, coin in ((line, coins[1]), (line, bare), (alone, bare))
    )
    assert not np.allclose(with_it, without, rtol=1e-3)
    # Linear forecasts of the market's columns give the line on the own columns alone, up to the ridge.
    near = np.abs(np.log(without[..., -1] / other[..., -1])).mean()
    assert near < np.abs(np.log(with_it[..., -1] / other[..., -1])).mean() / 2


def test_the_training_of_an_average_says_which_of_its_members_it_trains(coins):
    epochs, steps = [], []
    train_fleet(
        coins[:1],
        "average",
        "smoke",
        seeds=[1],
        device="cpu",
        workers=1,
        on_epoch=epochs.append,
        on_step=steps.append,
    )
    stages = [("har", 1, 2)] * 3 + [("walk", 2, 2)]
    assert [(record.architecture, record.stage, record.stages) for record in epochs] == stages
    assert {(record.architecture, record.stage, record.stages) for record in steps} == {*stages}
    for record in epochs:
        (member,) = record.members
        assert record.last == {0: (member["train_loss"], member["val_loss"])}
        assert record.of_members == 1


def test_an_average_says_that_memory_ran_out_for_any_of_its_members(coins, monkeypatch):
    step = Fleet.step

    def scarce(self, bank, origins, weight, lr):
        if self.net.name == "gru" and len(origins) * origins.shape[1] / self.net.options.accumulate > 16:
            raise torch.OutOfMemoryError("no")
        return step(self, bank, origins, weight, lr)

    monkeypatch.setattr(Fleet, "step", scarce)
    options = {"members": ["har", "gru"], "epochs": 1, "device": "cpu", "workers": 1}
    members = train_fleet(coins[:2], "average", "smoke", seeds=[1, 2], **options)
    assert [(member.report["halved_to"], member.report["split_to"]) for member in members] == [(1, 2)] * 2


def test_an_average_cost_what_the_training_of_all_its_members_cost(coins):
    (model,) = train_fleet(coins[:1], "average", "smoke", members=["gru", "har", "robust-har"], epochs=1)
    parts = [part.report for part in model.parts]
    assert model.report["train_seconds"] == sum(report["train_seconds"] for report in parts)
    assert model.report["trained_at"] == parts[-1]["trained_at"]
    assert model.report["rss_peak_mb"] == max(report["rss_peak_mb"] for report in parts)
    slow, fast = sorted(report["windows_per_s"] for report in parts[:2])
    assert slow < model.report["windows_per_s"] < fast  # the closed form has no steps
    assert model.report["epochs_run"] == parts[0]["epochs_run"]


def test_the_walks_gradient_is_autograds():
    torch.manual_seed(0)
    added = (torch.randn(7, 10, 2) * 0.4).requires_grad_()
    base, truth, weight = torch.randn(7, 10) * 0.3, torch.randn(7, 10), torch.rand(7, 1)
    table = torch.randn(10, 19).sort(-1).values
    error = truth[..., None] - bent(base + added[..., 0], added[..., 1], table)
    (pinball(error, LEVELS).mean(-1) * weight).mean().backward()
    torch.testing.assert_close(
        _gradient(added.detach(), base, truth, weight, table), added.grad, atol=1e-8, rtol=1e-5
    )


def test_the_walk_is_near_its_line_after_few_steps(coins):
    line, walk = (
        train_fleet(coins, name, "smoke", scope="universal", device="cpu")[0] for name in ("line", "walk")
    )
    origins = coins[1].origins("validation", 1, 10)
    quantiles = [predict([model], [coins[1]], [origins])[0].quantiles for model in (line, walk)]
    ratio = np.log(quantiles[1][..., -1] / quantiles[0][..., -1])
    assert 0 < np.abs(ratio).mean() < 0.1
    assert (np.diff(quantiles[1], axis=-1) >= 0).all()


@pytest.mark.parametrize("name", ["line", "walk"])
def test_columns_of_line_and_walk_cannot_be_changed(name):
    with pytest.raises(ModelError, match="features and calendar"):
        preset("default", name, features=("log_sigma",))


# ---- averages


def test_the_quantiles_are_the_mean_of_its_members(averages, coins):
    average, origins = averages[0], coins[2].origins("validation", 1, 10)
    parts = [predict([part], [coins[2]], [origins])[0] for part in average.parts]
    whole = predict([average], [coins[2]], [origins])[0]
    np.testing.assert_allclose(whole.quantiles, (parts[0].quantiles + parts[1].quantiles) / 2, rtol=1e-12)
    assert (np.diff(whole.quantiles, axis=-1) >= 0).all()
    np.testing.assert_array_equal(whole.candle[..., 3], whole.quantiles[..., 9])
    assert (whole.candle[..., 1] >= whole.candle[..., [0, 3]].max(-1)).all()
    assert (whole.candle[..., 2] <= whole.candle[..., [0, 3]].min(-1)).all()


def test_a_member_is_the_model_that_it_would_be_alone(averages, coins):
    (har,) = train_fleet(coins, "har", "smoke", seeds=[1], scope="universal", device="cpu", epochs=1)
    torch.testing.assert_close(averages[0].parts[0].rows, har.rows, rtol=0, atol=0)


def test_an_average_of_copies_keeps_one_of_a_closed_form_and_is_read_back(averages, coins, tmp_path):
    both = ensemble(averages)
    assert [len(part.rows) for part in both.parts] == [2, 1]
    again = load(both.save(tmp_path / "model"))
    assert again.config == load(again.save(tmp_path / "again")).config
    np.testing.assert_array_equal(again.forecast(coins[0]).candle, both.forecast(coins[0]).candle)
    # From the newest rows alone it forecasts as from the whole past.
    newest = predict([both], [coins[0]], [np.array([ROWS - 1])])[0].quantiles[0]
    live = both.forecast(coins[0])
    np.testing.assert_allclose(np.log(live.close.array / live.last_close), newest, atol=1e-7)


def test_members_may_be_any_architectures_that_forecast_prices(coins):
    options = {"scope": "universal", "device": "cpu", "epochs": 1}
    (average,) = train_fleet(coins, "average", "smoke", members=("gru", "line"), **options)
    assert average.context == average.parts[0].context > 1
    assert np.isfinite(average.forecast(coins[0]).candle).all()


@pytest.mark.parametrize(
    ("name", "members", "why"),
    [
        ("average", ("har",), "two or more"),
        ("average", ("har", "average"), "other architectures"),
        ("average", ("har", "no"), "unknown"),
        ("average", ("har", "classifier-gru"), "forecast prices"),
        ("har", ("har", "line"), "applies only to average"),
    ],
)
def test_impossible_members_are_refused(name, members, why):
    with pytest.raises(ModelError, match=why):
        preset("default", name, members=members)
    assert preset("default", "average", members="har,line").members == ("har", "line")


def test_every_own_column_is_read_by_the_default():
    assert {*OWN_COLUMNS, *MARKET_COLUMNS} <= {*preset("default", "average").features}


# ---- the walk's location, which the preset default has at 15m alone


def test_the_preset_default_keeps_half_of_the_walks_location_at_15m_alone():
    share = {t: preset("default", "walk", timeframe=t).location_share for t in ("", "5m", "15m", "1h")}
    assert share == {"": 0, "5m": 0, "15m": 0.5, "1h": 0}
    assert preset("smoke", "walk", timeframe="15m").location_share == 0
    assert preset("default", "walk", timeframe="15m", location_share=0.2).location_share == 0.2
    assert preset("default", "har", timeframe="15m") == preset("default", "har")
    assert by_timeframe("default", "average", ("har", "walk")) == {"15m": {"location_share": 0.5}}
    assert by_timeframe("default", "average", ("har", "line")) == by_timeframe("smoke", "walk") == {}


def test_each_timeframe_of_a_training_has_the_options_of_its_own(coins):
    quarters = with_cross_section(
        [Series.from_frame(candles(seed, timedelta(minutes=15)), name) for seed, name in enumerate(COINS)]
    )
    options = {"scope": "universal", "device": "cpu", "epochs": 1, "steps_per_epoch": 5}
    both = train_fleet([*quarters, *coins], "average", "default", **options)
    parts = {(m.config["timeframe"], p.config["architecture"]): p for m in both for p in m.parts}
    assert {of: part.options.location_share for of, part in parts.items()} == {
        ("15m", "har"): 0,
        ("15m", "walk"): 0.5,
        ("1h", "har"): 0,
        ("1h", "walk"): 0,
    }
    (alone,) = train_fleet(coins, "walk", "default", **options)  # at 1h as without 15m beside it
    torch.testing.assert_close(parts["1h", "walk"].rows, alone.rows, rtol=0, atol=0)
    (without,) = train_fleet(quarters, "walk", "default", **options, location_share=0)
    assert without.rows.shape[1] < parts["15m", "walk"].rows.shape[1]


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_forecast_keeps_a_share_of_the_location_within_its_limit(share):
    torch.manual_seed(0)
    options = replace(preset("smoke", "walk"), location_share=share)
    head = Bent(options, torch.device("cpu"), torch.float64)
    steps, table = options.horizon, torch.randn(1, options.horizon, 19, dtype=torch.float64).sort(-1).values
    raw = torch.randn(1, 50, steps, head.size, dtype=torch.float64) * 0.3
    locations = raw[..., [6, 9]]  # after open, log-scale, high, low: addition, bend and location of each copy
    kept = (share * locations.mean(-1)).clamp(-0.1, 0.1)
    assert 0.1 < float((kept.abs() == 0.1).double().mean()) < 0.9

    plain = Bent(replace(options, location_share=0.0), torch.device("cpu"), torch.float64)
    bare = plain.forecast(raw[..., [0, 1, 2, 3, 4, 5, 7, 8]], table)
    quantiles, prices = head.forecast(raw, table)
    torch.testing.assert_close(quantiles, bare[0] + kept.unsqueeze(-1))
    torch.testing.assert_close(prices[..., 3], quantiles[..., 9])
    assert (prices[..., 1] >= prices[..., [0, 3]].max(-1).values).all()
    assert (prices[..., 2] <= prices[..., [0, 3]].min(-1).values).all()
    # The first candle opens at the last close, each other at the close before it.
    opens, step = prices[..., 0] - bare[1][..., 0], torch.arange(1, steps)
    torch.testing.assert_close(opens[..., 0], torch.zeros(1, 50, dtype=torch.float64))
    torch.testing.assert_close(opens[..., 1:] * (step + 1).sqrt(), kept[..., :-1] * step.sqrt())


def test_the_gradient_of_a_walk_with_a_location_is_autograds():
    torch.manual_seed(0)
    added = (torch.randn(7, 10, 3) * 0.4).requires_grad_()
    base, truth, weight = torch.randn(7, 10) * 0.3, torch.randn(7, 10), torch.rand(7, 1)
    table = torch.randn(10, 19).sort(-1).values
    quantiles = bent(base + added[..., 0], added[..., 1], table) + added[..., 2:]
    (pinball(truth[..., None] - quantiles, LEVELS).mean(-1) * weight).mean().backward()
    torch.testing.assert_close(
        _gradient(added.detach(), base, truth, weight, table), added.grad, atol=1e-8, rtol=1e-5
    )


def test_a_walk_learns_a_location_that_is_there():
    """Candles that go on as the one before them, for a half: what is kept of the location moves the median there."""
    random, series, rows = np.random.default_rng(3), [], 3000
    for name in COINS[:3]:
        moves = random.normal(0, 1, rows)
        for row in range(1, rows):
            moves[row] += 0.5 * moves[row - 1]
        close = np.exp(np.cumsum(0.004 * moves))
        opened = np.concatenate([[1.0], close[:-1]])
        wicks = np.exp(np.abs(random.normal(0, 0.002, (2, rows))))
        high, low = np.maximum(opened, close) * wicks[0], np.minimum(opened, close) / wicks[1]
        prices = {"open": opened, "high": high, "low": low, "close": close}
        frame = candles(0, rows=rows).with_columns(**{n: pl.Series(v) for n, v in prices.items()})
        series.append(Series.from_frame(frame, name))
    coins = with_cross_section(series)
    (without,), (walk,) = (
        train_fleet(coins, "walk", scope="universal", device="cpu", location_share=share) for share in (0, 1)
    )
    assert walk.history[-1]["val_loss"] < without.history[-1]["val_loss"]
    origins = coins[0].origins("validation", 1, 10)
    medians = predict([walk], [coins[0]], [origins])[0].quantiles[:, 0, 9]
    last = np.diff(np.log(coins[0].prices[:, 3]))[origins - 1]
    assert np.corrcoef(medians, last)[0, 1] > 0.2


@pytest.mark.parametrize("architecture", ["walk", "average"])
def test_a_model_from_before_the_walk_could_have_a_location_is_read_and_forecasts_the_same(
    architecture, coins, tmp_path
):
    (now,) = train_fleet(coins, architecture, "smoke", scope="universal", device="cpu", epochs=1)
    folder = now.save(tmp_path / "model")
    path = folder / "config.json"
    values = json.loads(path.read_text())
    for part in (values, *values.get("parts", [])):
        del part["location_share"]
    path.write_text(json.dumps(sealed(values, values["weights_sha256"])))
    before = load(folder)
    assert before.options == now.options
    np.testing.assert_array_equal(before.forecast(coins[1]).candle, now.forecast(coins[1]).candle)
    np.testing.assert_array_equal(before.forecast(coins[1]).close.array, now.forecast(coins[1]).close.array)
    again = load(before.save(tmp_path / "again"))
    np.testing.assert_array_equal(again.forecast(coins[1]).candle, now.forecast(coins[1]).candle)
