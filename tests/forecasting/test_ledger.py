import shlex
import subprocess

import numpy as np
import polars as pl
import pytest

from tasks.forecasting.months import load
from tasks.forecasting.record import score_due
from tasks.forecasting.score import settled_path
from tests.tools.forecast_tools import BTC, HOUR, PEPE, START, append, rows_at, write_candles
from tests.tools.live_record import ledger
from tests.tools.verifying import verify_ledger


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


@pytest.fixture
def reads(monkeypatch):
    """The months of forecasts that scoring reads."""
    seen = []
    monkeypatch.setattr(
        "tasks.forecasting.score.load",
        lambda home, series, tree, path: (
            seen.append(path.stem) if tree.name == "forecasts" else None,
            load(home, series, tree, path),
        )[1],
    )
    return seen


NEXT = START + 60 * HOUR


def test_a_month_that_lacks_a_candle_is_settled_and_opened_again_when_its_candles_change(tmp_path, reads):
    append(tmp_path, PEPE, rows_at())
    closes = [8e-6] * 10
    write_candles(tmp_path, closes[5:], first=START + 5 * HOUR)  # of June; those of May are missing
    scored = score(tmp_path, NEXT)
    assert 0 < scored < 10
    assert score(tmp_path, NEXT) == 0
    assert reads == ["2025-05"] * 2
    for hours in range(3):
        assert score(tmp_path, NEXT + hours * HOUR) == 0
    assert reads == ["2025-05"] * 2
    write_candles(tmp_path, closes)
    assert score(tmp_path, NEXT) == 10 - scored
    assert score(tmp_path, NEXT) == 0
    assert reads == ["2025-05"] * 3


def test_a_price_level_that_leapt_settles_a_month(tmp_path, reads):
    append(tmp_path, PEPE, rows_at())
    write_candles(tmp_path, [8e-6] * 2 + [8e-3] * 9, first=START - HOUR)
    assert score(tmp_path, NEXT) == 1
    score(tmp_path, NEXT)
    reads.clear()
    assert score(tmp_path, NEXT) == 0
    assert reads == []


def test_a_settled_month_with_new_forecasts_is_opened_again(tmp_path, reads):
    append(tmp_path, PEPE, rows_at())
    write_candles(tmp_path, [8e-6] * 4)
    score(tmp_path, NEXT)
    score(tmp_path, NEXT)
    append(tmp_path, PEPE, rows_at(version=2))
    reads.clear()
    assert score(tmp_path, NEXT) == 4
    assert reads == ["2025-05"]


def test_a_month_is_not_settled_before_its_last_target(tmp_path, reads):
    append(tmp_path, PEPE, rows_at())
    write_candles(tmp_path, [8e-6] * 2)
    assert score(tmp_path, START + 5 * HOUR) == 2
    score(tmp_path, START + 5 * HOUR)
    reads.clear()
    score(tmp_path, START + 5 * HOUR)
    assert reads == ["2025-05"]


def test_provisional_candles_open_a_settled_month_too(tmp_path, reads):
    append(tmp_path, PEPE, rows_at())
    write_candles(tmp_path, [8e-6] * 2)
    score(tmp_path, NEXT)
    score(tmp_path, NEXT)
    write_candles(tmp_path, [8e-6] * 8, first=START + 2 * HOUR, tree="provisional", name="tail")
    tail = PEPE.folder(tmp_path, "provisional") / "tail.parquet"
    whole = pl.concat([pl.read_parquet(path) for path in sorted(tail.parent.glob("*.parquet"))])
    whole.write_parquet(tail)
    assert score(tmp_path, NEXT) > 0


def test_a_damaged_record_of_settled_months_is_named_and_made_again(tmp_path, caplog):
    append(tmp_path, PEPE, rows_at())
    write_candles(tmp_path, [8e-6] * 2)
    score(tmp_path, NEXT)
    score(tmp_path, NEXT)
    path = settled_path(tmp_path, PEPE)
    whole = path.read_text()
    path.write_text(whole.replace('"forecasts": 10', '"forecasts": 11'))
    (damage,) = verify_ledger(tmp_path)
    assert damage.path == path.relative_to(tmp_path).as_posix()
    assert score(tmp_path, NEXT) == 0
    assert "is damaged" in caplog.text
    assert path.read_text() == whole
    path.write_text("")
    subprocess.run(shlex.split(next(iter(verify_ledger(tmp_path))).command), check=True)
    assert list(verify_ledger(tmp_path)) == []
