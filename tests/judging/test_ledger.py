from datetime import timedelta

import numpy as np
import polars as pl
import pytest
from test_forecast_store import START, rows_at

from schemas.errors import MemberError
from tasks.judging.forecast_store import append
from tasks.judging.ledger import ledger, score_due, summary

HOUR = timedelta(hours=1)


def candles(closes, first=START):
    times = [first + HOUR * i for i in range(len(closes))]
    frame = pl.DataFrame({"open_time": times, "close": closes})
    frame = frame.with_columns(pl.col("open_time").cast(pl.Datetime("us", "UTC")))

    def read(symbol, timeframe, since=None, as_of=None):
        assert (symbol, timeframe) == ("PEPEUSDT", "1h")
        closed = pl.col("open_time") + HOUR <= as_of if as_of else pl.lit(True)
        return frame.filter((pl.col("open_time") >= since) & closed)

    return read


def test_a_forecast_is_scored_as_its_candles_close(tmp_path):
    append(tmp_path, rows_at())
    read = candles([8.25e-6 * (1 + 0.001 * i) for i in range(1, 11)])

    assert score_due(tmp_path, read, START) == 0
    assert score_due(tmp_path, read, START + 3 * HOUR) == 3
    assert score_due(tmp_path, read, START + 3 * HOUR) == 0
    assert score_due(tmp_path, read, START + 30 * HOUR) == 7

    rows = ledger(tmp_path, "PEPEUSDT", "1h")
    assert rows["step"].to_list() == list(range(1, 11))
    assert rows["realised_close"].to_list() == [8.25e-6 * (1 + 0.001 * i) for i in range(1, 11)]
    assert rows["scored_at"].to_list() == [START + 3 * HOUR] * 3 + [START + 30 * HOUR] * 7


def test_scoring_leaves_the_forecasts_untouched(tmp_path):
    append(tmp_path, rows_at())
    (path,) = (tmp_path / "forecasts").rglob("*.parquet")
    before = path.read_bytes()

    assert score_due(tmp_path, candles([8e-6] * 10), START + 20 * HOUR) == 10

    assert path.read_bytes() == before
    assert [p.name for p in (tmp_path / "forecasts").rglob("*.parquet")] == [path.name]
    assert len(list((tmp_path / "ledger").rglob("*.parquet"))) == 1


def test_a_candle_that_is_missing_stays_open_until_it_comes(tmp_path):
    append(tmp_path, rows_at())

    assert score_due(tmp_path, candles([8e-6] * 2), START + 20 * HOUR) == 2
    assert score_due(tmp_path, candles([8e-6] * 10), START + 20 * HOUR) == 8


def test_scores_are_those_of_the_definition(tmp_path):
    frame = rows_at(horizon=1)
    append(tmp_path, frame)
    quantiles = frame.select("^q[0-9]{2}$").row(0)
    realised = (quantiles[14] + quantiles[15]) / 2  # between the 75 % and the 80 % quantile
    score_due(tmp_path, candles([realised]), START + HOUR)

    row = ledger(tmp_path, "PEPEUSDT", "1h").row(0, named=True)

    losses = []
    for level, quantile in zip(np.arange(1, 20) / 20, quantiles, strict=True):
        error = np.log(realised / 8.25e-6) - np.log(quantile / 8.25e-6)
        losses.append(max(level * error, (level - 1) * error))
    assert row["crps"] == pytest.approx(2 * np.mean(losses))
    assert (row["covered_50"], row["covered_80"], row["covered_90"]) == (False, True, True)
    assert row["direction_hit"] is None  # the median stays at the last close


def test_summary_counts_and_averages(tmp_path):
    append(tmp_path, rows_at(0))
    append(tmp_path, rows_at(1))
    score_due(tmp_path, candles([8.25e-6] * 11), START + 20 * HOUR)

    found = summary(ledger(tmp_path, "PEPEUSDT", "1h"))

    assert (found["scored"], found["forecasts"]) == (20, 2)
    assert (found["coverage_50"], found["coverage_90"]) == (1.0, 1.0)
    empty = summary(ledger(tmp_path, "BTCUSDT", "1h"))
    assert (empty["scored"], empty["crps"], empty["coverage_80"]) == (0, None, None)


def test_a_series_whose_candles_are_gone_does_not_stop_the_others(tmp_path, caplog):
    append(tmp_path, rows_at())
    append(tmp_path, rows_at(symbol="AUSDT", model="cpb-AUSDT-1h/1"))
    good = candles([8e-6] * 10)

    def read(symbol, timeframe, **bounds):
        if symbol == "AUSDT":
            raise MemberError("AUSDT 1h: no candles")
        return good(symbol, timeframe, **bounds)

    assert score_due(tmp_path, read, START + 20 * HOUR) == 10
    assert "AUSDT 1h: no candles" in caplog.text


def test_only_the_series_asked_for_are_scored(tmp_path):
    append(tmp_path, rows_at())

    assert score_due(tmp_path, candles([8e-6] * 10), START + 20 * HOUR, symbols=["BTCUSDT"]) == 0


def test_replays_are_told_from_live_forecasts_row_by_row(tmp_path):
    append(tmp_path, rows_at(0), made_at=START + 2.5 * HOUR)  # the night's: two candles had closed already
    append(tmp_path, rows_at(1))  # a replay, months later by the clock
    append(tmp_path, rows_at(1), made_at=START)  # which saying it again does not make older
    score_due(tmp_path, candles([8.25e-6] * 20), START + 20 * HOUR)

    rows = ledger(tmp_path, "PEPEUSDT", "1h")
    first = rows.filter(pl.col("issued_at") == START)
    assert first["live"].to_list() == [False] * 2 + [True] * 8
    assert not rows.filter(pl.col("issued_at") != START)["live"].any()
    assert summary(rows.filter("live"))["scored"] == 8


def test_a_forecast_whose_time_of_writing_is_unknown_is_not_live(tmp_path):
    append(tmp_path, rows_at(), made_at=START)
    score_due(tmp_path, candles([8.25e-6] * 20), START + 20 * HOUR)
    assert ledger(tmp_path, "PEPEUSDT", "1h")["live"].all()
    for file in (tmp_path / "issued").rglob("*.parquet"):
        file.unlink()
    assert ledger(tmp_path, "PEPEUSDT", "1h")["live"].to_list() == [False] * 10
