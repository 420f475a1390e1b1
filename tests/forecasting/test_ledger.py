import numpy as np
import polars as pl
import pytest
from forecast_tools import BTC, HOUR, PEPE, START, append, rows_at, write_candles
from live_record import ledger

from tasks.forecasting.months import load
from tasks.forecasting.record import score_due


def score(home, now, series=PEPE):
    """Score one series; returns the number of rows."""
    done = score_due(home, [series], now)
    assert done.failures == ()
    return done.rows


def test_a_forecast_is_scored_as_its_candles_close(tmp_path):
    append(tmp_path, PEPE, rows_at())
    write_candles(tmp_path, [8.25e-6 * (1 + 0.001 * i) for i in range(1, 11)])

    assert score(tmp_path, START) == 0
    assert score(tmp_path, START + 3 * HOUR) == 3
    assert score(tmp_path, START + 3 * HOUR) == 0
    assert score(tmp_path, START + 30 * HOUR) == 7

    rows = ledger(tmp_path, PEPE)
    assert rows["step"].to_list() == list(range(1, 11))
    assert rows["realised_close"].to_list() == [8.25e-6 * (1 + 0.001 * i) for i in range(1, 11)]
    assert rows["scored_at"].to_list() == [START + 3 * HOUR] * 3 + [START + 30 * HOUR] * 7


@pytest.mark.parametrize(("before", "scored"), [(3, 3), (0, 0)])
def test_no_row_is_scored_across_a_leap_of_the_price_level(tmp_path, before, scored):
    append(tmp_path, PEPE, rows_at())
    closes = [8e-6] * (1 + before) + [8e-3] * (10 - before)
    write_candles(tmp_path, closes, first=START - HOUR)
    assert score(tmp_path, START + 20 * HOUR) == scored


def test_a_candle_that_is_missing_stays_open_until_it_comes(tmp_path):
    append(tmp_path, PEPE, rows_at())

    write_candles(tmp_path, [8e-6] * 2)
    assert score(tmp_path, START + 20 * HOUR) == 2
    write_candles(tmp_path, [8e-6] * 10)
    assert score(tmp_path, START + 20 * HOUR) == 8


def test_scores_are_those_of_the_definition(tmp_path):
    frame = rows_at(horizon=1)
    append(tmp_path, PEPE, frame)
    quantiles = frame.select("^q[0-9]{2}$").row(0)
    realised = (quantiles[14] + quantiles[15]) / 2  # between the 75 % and the 80 % quantile
    write_candles(tmp_path, [realised])
    score(tmp_path, START + HOUR)

    row = ledger(tmp_path, PEPE).row(0, named=True)

    losses = []
    for level, quantile in zip(np.arange(1, 20) / 20, quantiles, strict=True):
        error = np.log(realised / 8.25e-6) - np.log(quantile / 8.25e-6)
        losses.append(max(level * error, (level - 1) * error))
    assert row["crps"] == pytest.approx(2 * np.mean(losses))
    assert (row["covered_50"], row["covered_80"], row["covered_90"]) == (False, True, True)
    assert row["direction_hit"] is None  # the median stays at the last close


def test_a_series_whose_candles_are_gone_is_a_failure_of_its_own(tmp_path):
    append(tmp_path, PEPE, rows_at())
    append(tmp_path, BTC, rows_at(series=BTC))
    write_candles(tmp_path, [8e-6] * 10)

    done = score_due(tmp_path, [BTC, PEPE], START + 20 * HOUR)

    assert done.rows == 10
    assert [(f.series, f.step) for f in done.failures] == [(BTC, "score")]


def test_months_that_are_scored_to_the_last_row_are_not_read_again(tmp_path, monkeypatch):
    append(tmp_path, PEPE, rows_at())
    append(tmp_path, PEPE, rows_at(12))
    write_candles(tmp_path, [8e-6] * 30)
    assert score(tmp_path, START + 40 * HOUR) == 20
    append(tmp_path, PEPE, rows_at(13))
    seen = []
    monkeypatch.setattr(
        "tasks.forecasting.score.load",
        lambda home, series, tree, path: (
            seen.append((tree.name, path.stem)) or load(home, series, tree, path)
        ),
    )

    score(tmp_path, START + 40 * HOUR)

    assert seen == [("forecasts", "2025-06"), ("ledger", "2025-06")]


def test_replays_are_told_from_live_forecasts_row_by_row(tmp_path):
    night = START + 2.5 * HOUR  # two candles had closed already
    append(tmp_path, PEPE, rows_at(0, made_at=night))
    append(tmp_path, PEPE, rows_at(1))  # a replay, months later by the clock
    append(tmp_path, PEPE, rows_at(1, made_at=START))  # which saying it again does not make older
    write_candles(tmp_path, [8.25e-6] * 20)
    score(tmp_path, START + 20 * HOUR)

    rows = ledger(tmp_path, PEPE)
    first = rows.filter(pl.col("issued_at") == START)
    assert first["live"].to_list() == [False] * 2 + [True] * 8
    assert not rows.filter(pl.col("issued_at") != START)["live"].any()
    assert rows.filter("live")["step"].to_list() == list(range(3, 11))
