"""Every figure is valid plotly, strict JSON and described, whatever it is given."""

import json
import math
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plotly import graph_objects

from cpbmodels.data.prediction import QUANTILE_COLUMNS
from schemas.decision import Decision
from schemas.identity import SeriesId
from tasks.figures import board, forecast, judged, over_time
from tasks.figures.themes import THEMES, themed
from tasks.judging.scores import LEVELS

START = datetime(2025, 6, 1, tzinfo=UTC)


def check(figure):
    """Fail unless the figure is what plotly and JSON take, in both themes; return the light one."""
    for theme in THEMES.values():
        shown = themed(figure, theme)
        text = json.dumps(shown, allow_nan=False)
        assert not any(f'"{role}"' in text for role in theme.roles)
        graph_objects.Figure(shown)  # refuses unknown attributes and values
    assert figure["layout"]["meta"]["alt"]
    return themed(figure, THEMES["light"])


def candles(count, price=100.0, step=timedelta(hours=1)):
    rows = [
        {
            "open_time": START + i * step,
            "open": price,
            "high": price * 1.02,
            "low": price * 0.97,
            "close": price * (1 + 0.01 * math.sin(i)),
            "volume": 5.0 * i,
        }
        for i in range(count)
    ]
    names = ("open", "high", "low", "close", "volume")
    return pl.DataFrame(
        rows, schema={"open_time": pl.Datetime("us", "UTC"), **dict.fromkeys(names, pl.Float64)}
    )


def frame(issued, price=100.0, steps=10, step=timedelta(hours=1)):
    rows = [
        {
            "issued_at": issued,
            "step": k,
            "target_time": issued + k * step,
            "last_close": price,
            **{name: price * (1 + (i - 9) * 0.001 * math.sqrt(k)) for i, name in enumerate(QUANTILE_COLUMNS)},
        }
        for k in range(1, steps + 1)
    ]
    return pl.DataFrame(rows)


def trace(figure, name):
    return next(trace for trace in figure["data"] if trace.get("name") == name)


@pytest.mark.parametrize("count", [0, 1, 500])
@pytest.mark.parametrize("steps", [0, 1, 10])
def test_a_forecast_is_drawn_over_any_candles(count, steps):
    issued = START + timedelta(hours=max(1, count))
    rows = frame(issued, steps=steps) if steps else None
    figure = check(forecast.forecast_figure(candles(count), rows))
    if count or steps:
        assert [t["type"] for t in figure["data"]][:2] == ["candlestick", "bar"]
        assert len(figure["data"][0]["x"]) == count
    else:
        assert figure["data"] == []
        assert "No candles" in figure["layout"]["annotations"][0]["text"]


def test_the_fan_starts_at_the_last_close_and_candles_stand_at_their_close():
    issued = START + timedelta(hours=48)
    figure = check(forecast.forecast_figure(candles(52), frame(issued)))
    band, median, real = (trace(figure, name) for name in ("90 %", "median", "actual close"))
    assert band["x"][0] == band["x"][-1] == median["x"][0] == "2025-06-03T00:00:00Z"
    assert band["y"][0] == median["y"][0] == 100.0
    assert max(band["y"]) == frame(issued)["q95"].max()
    assert min(band["y"]) == frame(issued)["q05"].min()
    assert real["x"] == ["2025-06-03T00:00:00Z", *(f"2025-06-03T0{h}:00:00Z" for h in range(1, 5))]
    assert real["y"][1:] == candles(52)["close"].to_list()[48:]
    assert figure["data"][0]["x"][0] == "2025-06-01T01:00:00Z"


def test_a_tiny_price_keeps_its_digits():
    figure = check(forecast.forecast_figure(candles(60, 1.2e-8), frame(START + timedelta(hours=60), 1.2e-8)))
    assert figure["layout"]["yaxis"]["tickformat"] == ",.12f"
    assert figure["layout"]["yaxis"]["range"][0] > 0
    assert trace(figure, "median")["customdata"][-1][0] == "0.000000011658"


def test_values_that_are_not_finite_become_gaps():
    broken = candles(5).with_columns(close=pl.Series([1.0, math.nan, math.inf, None, 2.0]))
    assert check(forecast.forecast_figure(broken, None))["data"][0]["close"] == [1.0, None, None, None, 2.0]


def test_earlier_forecasts_are_two_traces_with_gaps_and_a_forecast_of_the_past_is_in_view():
    issued = [START + timedelta(hours=h) for h in (20, 30, 40)]
    earlier = pl.concat([frame(trace) for trace in issued])
    figure = check(forecast.forecast_figure(candles(500), frame(issued[2]), earlier))
    assert trace(figure, "earlier forecasts (80 %)")["x"].count(None) == 3
    assert len(trace(figure, "actual close")["y"]) == 11
    first, last = figure["layout"]["xaxis"]["range"]
    assert first < "2025-06-02T16:00:00Z" < last


@pytest.mark.parametrize(("count", "hours"), [(40, 10), (44, 10), (60, 20), (100, 30)])
def test_a_forecast_has_a_quarter_of_the_first_view_and_what_came_after_at_most_half(count, hours):
    issued = START + timedelta(hours=40)
    layout = check(forecast.forecast_figure(candles(count), frame(issued)))["layout"]
    first, last = map(datetime.fromisoformat, layout["xaxis"]["range"])
    assert timedelta(hours=10) / (last - first) == 0.25
    assert last == issued + timedelta(hours=hours + 40 / 50)
    low, high = layout["yaxis"]["range"]
    assert low < 97
    assert high > 102


def recorded(count, bounded=True):
    days = [START.date() + timedelta(days=i) for i in range(count)]
    values = {
        name: pl.Series([0.98] * count, dtype=pl.Float64) for name in ("ratio", "low", "high", "rolling")
    }
    values |= {f"coverage_{band}": pl.Series([band / 100] * count, dtype=pl.Float64) for band in (50, 80, 90)}
    frame = pl.DataFrame({"day": pl.Series(days, dtype=pl.Date), **values})
    return frame if bounded else frame.with_columns(low=None, high=None, rolling=pl.lit(math.nan))


@pytest.mark.parametrize("count", [0, 1, 400])
@pytest.mark.parametrize("bounded", [True, False])
def test_the_record_is_drawn_with_its_interval_where_there_is_one(count, bounded):
    names = [trace["name"] for trace in check(over_time.record_figure(recorded(count, bounded)))["data"]]
    assert ("95 % interval" in names) == bool(bounded and count)
    assert len(check(over_time.coverage_figure(recorded(count)))["data"]) == (3 if count else 0)


def decision(outcome, day, number="7", reason="CRPS ratio 0.99 <b>better</b>"):
    return Decision(
        series=SeriesId("spot", "BTCUSDT", "1h"),
        outcome=outcome,
        rule="r",
        version_number=number,
        reason=reason,
        decided_at=START + timedelta(days=day),
    )


def test_decisions_are_marked_by_outcome_and_their_reasons_are_text():
    kinds = ("first", "refreshed", "switched", "kept", "unchanged", "forced", "retired")
    figure = check(over_time.decisions_figure([decision(kind, i, str(i)) for i, kind in enumerate(kinds)]))
    assert len({trace["marker"]["symbol"] for trace in figure["data"]}) >= 6
    assert not any("<b>" in text for trace in figure["data"] for text in trace["customdata"])
    assert figure["layout"]["yaxis"]["categoryarray"] == [f"v{i}" for i in range(7)]
    assert "retired, version 6" in figure["layout"]["meta"]["alt"]
    assert check(over_time.decisions_figure([]))["data"] == []


def row(name, ratio, low=None, high=None, **more):
    return {
        "architecture": name,
        "timeframe": "1h",
        "symbol": name,
        "crps_ratio": ratio,
        "crps_ratio_low": low,
        "crps_ratio_high": high,
        **more,
    }


def test_the_board_has_the_best_on_top_and_tells_verdicts_apart_without_colour():
    rows = [
        row("gru", 1.02, 1.01, 1.03, verdict="worse"),
        row("har", 0.97, 0.96, 0.98, verdict="better"),
        row("naive", 1.0),
        row("lost", math.nan),
    ]
    figure = check(board.board_figure(rows))
    assert figure["layout"]["yaxis"]["categoryarray"] == ["gru", "naive", "har"]  # from the bottom
    assert [(trace["name"], trace["y"], trace["marker"]["symbol"]) for trace in figure["data"]] == [
        ("better than the random walk", ["har"], "circle"),
        ("no different", ["naive"], "square-open"),
        ("worse than the random walk", ["gru"], "diamond"),
    ]
    assert figure["data"][0]["error_x"]["array"] == pytest.approx([0.01])


@pytest.mark.parametrize("value", [1.7976931348623157e308, math.inf, -math.inf, math.nan, None])
def test_what_no_figure_can_show_is_a_gap(value):
    check(board.board_figure([row("har", 0.9, -1e300, 9.99e299), row("gru", value, value, value)]))


ratios = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.floats(0.5, 1.5))
# "$up" would read like a role
names = st.text(st.characters(exclude_characters="$"), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(names, names, ratios, ratios, ratios), max_size=6))
def test_boards_of_any_rows_are_valid(rows):
    board_rows = [row(a, r, low, high) | {"symbol": s} for a, s, r, low, high in rows]
    check(board.board_figure(board_rows))
    check(board.coins_figure(board_rows))
    pairs = [(s, r, low) for _, s, r, low, _ in rows if r is not None and low is not None]
    check(board.compare_figure("a", "b", [{"symbol": s, "first": r, "second": low} for s, r, low in pairs]))


def test_two_models_side_by_side_are_joined_by_coin():
    rows = [{"symbol": "B", "first": 1.0, "second": 0.9}, {"symbol": "A", "first": 0.8, "second": 0.85}]
    figure = check(board.compare_figure("har", "gru", rows))
    assert figure["data"][0]["x"] == [0.8, 0.85, None, 1.0, 0.9, None]
    assert "on 2 coins: har has the lower ratio on 1" in figure["layout"]["meta"]["alt"]


@pytest.mark.parametrize(("epochs", "apart"), [(0, None), (1, 1), (3, 1), (50, 5), (61, 7)])
def test_losses_are_two_lines_a_model_with_ticks_at_whole_epochs(epochs, apart):
    rows = [
        {"epoch": e + 1, "train_loss": 1 / (e + 1), "val_loss": math.nan if e == 3 else 2 / (e + 1)}
        for e in range(epochs)
    ]
    figure = check(board.losses_figure({"har": rows, "gru": rows, "none": []}))
    assert len(figure["data"]) == (4 if epochs else 0)
    if epochs:
        assert figure["data"][0]["x"][0] == 1
        assert figure["layout"]["xaxis"]["dtick"] == apart
        assert figure["data"][0]["line"]["dash"] != figure["data"][1]["line"]["dash"]


def test_text_that_reads_like_a_role_stays_as_it_is():
    figure = themed(board.board_figure([row("$ink", 0.9)]), THEMES["dark"])
    assert figure["data"][0]["y"] == ["$ink"]


def test_calibration_is_drawn_around_what_is_stated():
    observed = np.arange(1, 20) * 0.05 + 0.01
    figure = check(judged.reliability_figure({"har": (LEVELS, observed)}, "closes"))
    assert figure["data"][0]["y"] == pytest.approx([0.01] * 19)
    steps = check(judged.steps_figure({"har": np.array([0.9, math.inf, 0.99])}))
    assert (steps["data"][0]["x"], steps["data"][0]["y"]) == ([1, 2, 3], [0.9, None, 0.99])
    for empty in (judged.reliability_figure({}, "closes"), judged.steps_figure({})):
        assert check(empty)["data"] == []
