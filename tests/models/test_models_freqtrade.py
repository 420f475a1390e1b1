"""Forecasts as columns, and stakes from them, without freqtrade; with it: tests/e2e/test_e2e_freqtrade.py."""

import logging
import runpy
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from cpbmodels import ModelError, Series, train_fleet
from cpbmodels import freqtrade as adapter
from cpbmodels.data.extremes import Extremes
from cpbmodels.data.student_t import QUANTILES, t_quantiles
from cpbmodels.freqtrade import RiskFromForecast, add_forecasts, forecast_sigma
from tests.tools.candles import table

EXAMPLE = Path(__file__).parents[2] / "docs/examples/freqtrade/CpbBracketStrategy.py"
START = pd.Timestamp("2024-03-01", tz="UTC")
STOPS = ["stop_up_0.05", "stop_down_0.05"]
BRACKETS = [
    f"{name}_{side}_0.75_3R"
    for side in ("long", "short")
    for name in ("target", "target_first", "stop_first")
]
LEVELS = [f"q{round(100 * level):02d}" for level in QUANTILES]


def candles(rows=1500, seed=0):
    """As freqtrade has them: a `date` column, UTC, and a plain index."""
    columns = table(rows, seed).to_dict()
    times = pd.to_datetime(columns.pop("open_time").dt.replace_time_zone(None).to_numpy(), utc=True)
    return pd.DataFrame({"date": times, **{name: values.to_numpy() for name, values in columns.items()}})


@pytest.fixture(scope="module", params=["robust-har", "har", "gru"])
def model(request):
    options = {} if request.param == "robust-har" else {"epochs": 1, "steps_per_epoch": 3}
    series = Series.from_frame(candles()[:1000], "BTCUSDT")
    return train_fleet([series], request.param, "smoke", seeds=[1], device="cpu", **options)[0]


@pytest.fixture(scope="module")
def quick():
    series = Series.from_frame(candles()[:1000], "BTCUSDT")
    return train_fleet([series], "robust-har", "smoke", seeds=[1], device="cpu")[0]


def new_columns(frame):
    return frame[[name for name in frame.columns if name.startswith("cpb_")]]


def test_every_row_is_what_the_model_predicts_there(model):
    frame = candles()
    table = add_forecasts(frame, "BTC/USDT", "1h", model)
    pd.testing.assert_frame_equal(table[frame.columns], frame)
    assert table.index.equals(frame.index)
    assert list(new_columns(table).columns) == [
        f"cpb_{name}_{h}" for h in range(1, 11) for name in ("sigma", *LEVELS)
    ]
    wanted = model.predict(Series.from_frame(frame, "BTCUSDT"), since=model.known_until).to_pandas()
    issued = frame["date"] + timedelta(hours=1)
    for h in (1, 4, 10):
        rows = wanted[wanted.step == h].set_index("issued_at").reindex(issued)
        for name in LEVELS:
            # six digits
            np.testing.assert_allclose(table[f"cpb_{name}_{h}"], rows[name].to_numpy(), rtol=6e-6)
    unseen = issued >= model.known_until
    assert 400 < unseen.sum() < 1000
    np.testing.assert_array_equal(new_columns(table).notna().all(axis=1), unseen)
    np.testing.assert_array_equal(new_columns(table).isna().all(axis=1), ~unseen)


def test_targets_lie_beside_stops_and_their_chances_are_those_of_the_forecast(quick):
    frame = candles()
    table = add_forecasts(frame, "BTC/USDT", "1h", quick, steps=[1, 10], stops=[0.75], rewards=[3])
    stops = ["stop_up_0.75", "stop_down_0.75"]
    assert list(new_columns(table).columns) == [
        f"cpb_{name}_{h}" for h in (1, 10) for name in ("sigma", *LEVELS, *stops, *BRACKETS)
    ]
    forecast = quick.forecast(Series.from_frame(frame[:1300], "BTCUSDT"))
    row, close = table.loc[1299], frame["close"][1299]
    for side, stop_side in (("long", "down"), ("short", "up")):
        for h in (1, 10):
            stop, target = row[f"cpb_stop_{stop_side}_0.75_{h}"], row[f"cpb_target_{side}_0.75_3R_{h}"]
            assert target - close == pytest.approx(3 * (close - stop), rel=1e-3)
            chances = [row[f"cpb_{name}_first_{side}_0.75_3R_{h}"] for name in ("target", "stop")]
            assert chances == pytest.approx(forecast.first(target, stop)[h - 1], abs=2e-4)
            assert chances == np.round(chances, 5).tolist()
    bracket = forecast.bracket(0.75, 3, "short")
    assert row["cpb_target_short_0.75_3R_10"] == pytest.approx(float(bracket.target), rel=1e-4)
    assert row["cpb_stop_first_short_0.75_3R_10"] == pytest.approx(bracket.first[-1, 1], abs=2e-4)
    assert 0.1 < row["cpb_target_first_long_0.75_3R_10"] < 0.3


def test_what_is_asked_twice_is_given_once(quick):
    asked = {"steps": [10], "stops": [0.05, 0.1], "rewards": [3]}
    twice = asked | {"stops": [0.05, 0.1, 0.05], "rewards": [3, 3.0]}
    once, again = (add_forecasts(candles(), "BTC/USDT", "1h", quick, **of) for of in (asked, twice))
    pd.testing.assert_frame_equal(once, again)


def test_a_short_target_below_zero_has_no_chance_and_a_chance_of_zero_is_one(quick):
    far = add_forecasts(candles(), "BTC/USDT", "1h", quick, stops=[0.05], rewards=[15, 100])
    known = far["cpb_sigma_1"].notna()
    assert (far.loc[known, "cpb_target_first_long_0.05_100R_10"] == 0).any()
    possible = 16 * far["close"] > 15 * far["cpb_stop_up_0.05_10"]
    assert 0 < possible[known].sum() < known.sum()
    for name in adapter.BRACKET_COLUMNS:
        np.testing.assert_array_equal(far[f"cpb_{name}_short_0.05_15R_10"].notna(), known & possible)
        assert far.loc[known, f"cpb_{name}_long_0.05_100R_10"].notna().all()


@pytest.mark.parametrize("wrong", [[0], [-1], [np.nan], [np.inf], [2, 0]])
def test_impossible_rewards_are_refused(quick, wrong):
    with pytest.raises(ModelError, match=r"rewards .* are impossible: give numbers above 0"):
        add_forecasts(candles(), "BTC/USDT", "1h", quick, stops=[0.05], rewards=wrong)
    with pytest.raises(ModelError, match="and the chances of their stops"):
        add_forecasts(candles(), "BTC/USDT", "1h", quick, rewards=[3])


def test_a_model_of_before_has_stops_but_no_rewards(quick):
    levels = np.sort(np.random.default_rng(0).exponential(0.5, (2, 1, 99))) * np.arange(10, 20)[:, None] / 10
    of_before = replace(quick, extremes=Extremes(levels.astype(np.float32)))
    stops = add_forecasts(candles(), "BTC/USDT", "1h", of_before, stops=[0.05])
    assert (stops["cpb_stop_down_0.05_10"] < stops["close"])[stops["cpb_sigma_1"].notna()].all()
    with pytest.raises(ModelError, match="train it again"):
        add_forecasts(candles(), "BTC/USDT", "1h", of_before, stops=[0.05], rewards=[3])


def test_the_past_of_a_row_decides_it_and_nothing_else_to_the_last_bit(model):
    frame = candles()
    asked = {"stops": [0.05, 0.75], "rewards": [1, 3]}
    whole = add_forecasts(frame, "BTC/USDT", "1h", model, **asked)
    for rows in (1001, 1237, 1499):
        cut = add_forecasts(frame[:rows], "BTC/USDT", "1h", model, **asked)
        pd.testing.assert_frame_equal(cut, whole[:rows], check_exact=True)
    for start in (100, 301):  # the history that freqtrade loads, and more of it
        cut = add_forecasts(frame[start:], "BTC/USDT", "1h", model, **asked)
        late = cut.loc[start + adapter.STARTUP_CANDLES :]
        pd.testing.assert_frame_equal(late, whole.loc[late.index], check_exact=True)


def test_a_model_that_does_not_say_what_it_knows_is_refused(quick):
    unknown = replace(quick, config={k: v for k, v in quick.config.items() if k != "known_until"})
    with pytest.raises(ModelError, match="known_until"):
        add_forecasts(candles(), "BTC/USDT", "1h", unknown)
    stated = add_forecasts(candles(), "BTC/USDT", "1h", unknown, known_until=START + timedelta(hours=1200))
    assert stated["cpb_sigma_1"].first_valid_index() == 1199
    earlier = add_forecasts(candles(), "BTC/USDT", "1h", quick, known_until="2024-03-02")
    pd.testing.assert_frame_equal(earlier, add_forecasts(candles(), "BTC/USDT", "1h", quick))
    with pytest.raises(ModelError, match="time zone"):
        add_forecasts(candles(), "BTC/USDT", "1h", quick, known_until=datetime(2024, 5, 1))


def test_steps_are_chosen_and_columns_replaced(quick):
    table = add_forecasts(candles(), "BTC/USDT", "1h", quick, steps=[10, 2])
    assert list(new_columns(table).columns[::20]) == ["cpb_sigma_10", "cpb_sigma_2"]
    again = add_forecasts(table, "BTC/USDT", "1h", quick, steps=[10, 2])
    pd.testing.assert_frame_equal(again, table)
    for wrong in ([0], [11], [1.5], []):
        with pytest.raises(ModelError, match="from 1 to 10"):
            add_forecasts(candles(), "BTC/USDT", "1h", quick, steps=wrong)


def test_live_tables_that_are_short_damaged_or_unfinished_give_nan_and_no_error(quick, caplog):
    frame = candles()
    with caplog.at_level(logging.WARNING):
        for rows in (0, 1, 20, 900):
            table = add_forecasts(frame[:rows], "BTC/USDT", "1h", quick)
            assert len(table) == rows
            assert new_columns(table).isna().all(axis=None)
    assert [r.getMessage().count("no forecast in these") for r in caplog.records] == [1, 1, 1, 1]

    hour = pd.Timestamp.now(tz="UTC").floor("h")
    live = frame.assign(date=frame["date"] + (hour - frame["date"].iloc[-1]))
    table = add_forecasts(live, "BTC/USDT", "1h", quick)
    assert new_columns(table).iloc[-1].isna().all()  # has not closed
    assert new_columns(table).iloc[-2].notna().all()

    for column, value in {"low": -1.0, "close": np.nan, "high": 1e-9, "volume": np.nan}.items():
        broken = frame.copy()
        broken.loc[1200, column] = value
        table = new_columns(add_forecasts(broken, "BTC/USDT", "1h", quick))
        assert table.loc[1200:1360].isna().all(axis=None)  # rolling windows of a week
        assert table.loc[1400:].notna().all(axis=None)
        whole = new_columns(add_forecasts(frame, "BTC/USDT", "1h", quick))
        pd.testing.assert_frame_equal(table.loc[:1199], whole.loc[:1199])


def test_sigma_is_the_standard_deviation_of_a_normal_and_half_a_68_percent_band_of_others():
    normal = t_quantiles(np.array(1e7)) * 0.02 + 0.001
    assert forecast_sigma(normal) == pytest.approx(0.02, rel=1e-4)
    fat = t_quantiles(np.array(4.0))
    exact = t_quantiles(np.array(4.0), np.array([0.8413447]))[0]
    assert forecast_sigma(np.stack([fat, 3 * fat])) == pytest.approx([exact, 3 * exact], rel=5e-3)


class Strategy(RiskFromForecast):
    timeframe = "1h"

    def __init__(self, frame, wallet=10_000.0):
        self.dp = SimpleNamespace(get_analyzed_dataframe=lambda pair, timeframe: (frame, None))
        self.wallets = SimpleNamespace(get_total_stake_amount=lambda: wallet)

    def stake(self, time, max_stake=1e9, leverage=1.0):
        return self.custom_stake_amount(
            "BTC/USDT", time, 100.0, 50.0, 10.0, max_stake, leverage, None, "long"
        )


def test_the_stake_is_target_risk_over_forecast_width(quick):
    frame = add_forecasts(candles(), "BTC/USDT", "1h", quick)
    strategy = Strategy(frame)
    opens = (frame["date"].iloc[1300] + timedelta(hours=1)).to_pydatetime()
    wanted = 0.005 * 10_000 / frame["cpb_sigma_10"].iloc[1300]
    assert strategy.stake(opens) == wanted
    assert strategy.stake(opens + timedelta(minutes=59)) == wanted  # the next candle has not closed
    assert strategy.stake(opens + timedelta(minutes=60)) != wanted
    assert strategy.stake(opens, leverage=2.0) == wanted / 2
    assert strategy.stake(opens, max_stake=100.0) == 100.0


def test_without_a_forecast_there_is_no_trade(quick):
    frame = add_forecasts(candles(), "BTC/USDT", "1h", quick)
    assert Strategy(frame).stake(START + timedelta(hours=500)) == 0.0  # the model knows this time
    assert Strategy(frame).stake(START - timedelta(hours=5)) == 0.0
    assert Strategy(pd.DataFrame()).stake(START) == 0.0
    end = frame["date"].iloc[-1] + timedelta(hours=1)
    assert Strategy(frame).stake(end + timedelta(hours=9)) > 0  # an exchange's pause
    assert Strategy(frame).stake(end + timedelta(hours=10)) == 0.0  # what was forecast is over


class IStrategy:
    """What freqtrade's class has since 2025.5."""

    use_custom_roi = False

    def custom_roi(self, *_args, **_options):
        return None


class Bracketed(Strategy, IStrategy):
    cpb_stop_chance, cpb_reward = 0.75, 3.0


def traded(frame, row, side="long"):
    """A trade that opens when a row's candle has closed; profit without fees."""
    rate = frame["close"].iloc[row]
    return SimpleNamespace(
        open_date_utc=(frame["date"].iloc[row] + timedelta(hours=1)).to_pydatetime(),
        is_short=side == "short",
        leverage=1.0,
        calc_profit_ratio=lambda target: target / rate - 1,
    )


@pytest.mark.parametrize(("side", "stop_side"), [("long", "down"), ("short", "up")])
def test_with_a_reward_stop_and_target_stay_where_they_lay_when_the_trade_opened(
    quick, monkeypatch, side, stop_side
):
    module = SimpleNamespace(stoploss_from_absolute=lambda rate, *_args, **_options: rate)
    monkeypatch.setitem(sys.modules, "freqtrade.strategy", module)
    frame = add_forecasts(candles(), "BTC/USDT", "1h", quick, stops=[0.75], rewards=[3])
    trade = traded(frame, 1300, side)
    for hours in (0, 5, 100):
        time = trade.open_date_utc + timedelta(hours=hours)
        stop = Bracketed(frame).custom_stoploss("BTC/USDT", trade, time, 100.0, 0.0, after_fill=False)
        assert stop == frame[f"cpb_stop_{stop_side}_0.75_10"].iloc[1300]
        profit = Bracketed(frame).custom_roi("BTC/USDT", trade, time, 60 * hours, None, side)
        target = frame[f"cpb_target_{side}_0.75_3R_10"].iloc[1300]
        assert profit == target / frame["close"].iloc[1300] - 1
    # Without one, each candle brings a new stop, and there is no target.
    follows = Strategy(frame)
    follows.cpb_stop_chance = 0.75
    at = trade.open_date_utc + timedelta(hours=5)
    stop = follows.custom_stoploss("BTC/USDT", trade, at, 100.0, 0.0, after_fill=False)
    assert stop == frame[f"cpb_stop_{stop_side}_0.75_10"].iloc[1305]
    assert follows.custom_roi("BTC/USDT", trade, at, 300, None, side) is None
    unknown = traded(frame, 500, side)  # when the model's training data had not ended
    assert Bracketed(frame).custom_roi("BTC/USDT", unknown, at, 0, None, side) is None


def test_the_chance_of_the_target_is_a_column_for_entries(quick, tmp_path):
    strategy = Bracketed(None)
    strategy.config = {"user_data_dir": tmp_path}
    quick.save(tmp_path / "cpb")
    frame = strategy.add_forecasts(candles(), {"pair": "BTC/USDT"})
    for side in ("long", "short"):
        chances = strategy.target_first(frame, side)
        pd.testing.assert_series_equal(chances, frame[f"cpb_target_first_{side}_0.75_3R_10"])
    with pytest.raises(ModelError, match="set cpb_reward"):
        Strategy(frame).target_first(frame)


def test_a_freqtrade_that_would_ignore_the_target_is_refused(quick, tmp_path):
    quick.save(tmp_path / "cpb")
    assert Bracketed(None).use_custom_roi  # freqtrade would not ask for the target otherwise

    class Old(Strategy):
        config = {"user_data_dir": tmp_path}  # noqa: RUF012

    assert "cpb_stop_up_0.05_10" in Old(None).add_forecasts(candles(), {"pair": "BTC/USDT"})
    Old.cpb_reward = 3.0
    with pytest.raises(
        ModelError, match=r"would ignore the target.* needs freqtrade 2025\.5 or later: update it"
    ):
        Old(None).add_forecasts(candles(), {"pair": "BTC/USDT"})


def test_the_example_tags_an_entry_with_the_chance_of_its_candle_and_decides_by_it(
    quick, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "freqtrade.strategy", SimpleNamespace(IStrategy=IStrategy))
    strategy = runpy.run_path(str(EXAMPLE))["CpbBracketStrategy"]()
    strategy.config = {"user_data_dir": tmp_path}
    quick.save(tmp_path / "cpb")

    def entries():
        frame = strategy.populate_indicators(candles(), {"pair": "BTC/USDT"})
        return strategy.populate_entry_trend(frame, {"pair": "BTC/USDT"})

    frame = entries()
    entered = frame[frame["enter_long"] == 1]
    assert len(entered) > 5
    chances = entered["cpb_target_first_long_0.75_3R_10"]
    assert entered["enter_tag"].tolist() == [
        f"3 R with this stop comes first in {chance:.0%}".replace("%", " %") for chance in chances
    ]
    assert frame.loc[frame["enter_long"] != 1, "enter_tag"].isna().all()
    strategy.min_target_first = chances.median()
    assert entries()["enter_long"].sum() == (chances >= chances.median()).sum() < len(entered)


def test_models_lie_by_symbol_and_timeframe_or_one_serves_all(quick, tmp_path):
    strategy = Strategy(None)
    strategy.config = {"user_data_dir": tmp_path}
    quick.save(tmp_path / "cpb" / "BTCUSDT" / "1h")
    table = strategy.add_forecasts(candles(), {"pair": "BTC/USDT:USDT"})
    assert list(new_columns(table).columns) == [f"cpb_{name}_10" for name in ("sigma", *LEVELS, *STOPS)]
    with pytest.raises(ModelError, match="ETHUSDT"):
        strategy.add_forecasts(candles(), {"pair": "ETH/USDT"})
    quick.save(tmp_path / "one")
    strategy.cpb_models = tmp_path / "one"
    pd.testing.assert_frame_equal(strategy.add_forecasts(candles(), {"pair": "ETH/USDT"}), table)
    assert quick.known_until < datetime(2025, 1, 1, tzinfo=UTC)
