"""What the gate sees of the ledger."""

import numpy as np
import polars as pl
import pytest

from tasks.forecasting.record import score_due
from tasks.forecasting.score import evidence_rows
from tests.tools.forecast_tools import HOUR, PEPE, START, append, rows_at, write_candles
from tests.tools.live_record import ledger

LAST = 8.25e-6
CLOSES = [LAST * (1 + 0.002 * (-1) ** i * i) for i in range(1, 60)]


def with_reference(rows, scale=1.3):
    """The same rows with a reference `scale` times as wide."""
    last = pl.col("last_close")
    wider = [(last * (pl.col(f"q{n:02d}") / last) ** scale).alias(f"ref_q{n:02d}") for n in range(5, 100, 5)]
    return rows.with_columns(*wider)


def filled(home, series=PEPE, hours=3):
    """Live forecasts of two versions, an hour apart, all scored."""
    for hour in range(hours):
        made = {"made_at": START + hour * HOUR, "series": series}
        append(home, series, with_reference(rows_at(hour, **made)))
        append(home, series, with_reference(rows_at(hour, version=2, **made), 0.9))
    write_candles(home, CLOSES, series)
    assert score_due(home, [series], START + 40 * HOUR).failures == ()


def test_a_row_is_the_mean_over_the_steps_of_one_forecast(tmp_path):
    filled(tmp_path)
    scored = ledger(tmp_path, PEPE).filter(
        pl.col("model_version").str.ends_with("/1"), pl.col("issued_at") == START
    )

    row = evidence_rows(tmp_path, PEPE).row(0, named=True)

    assert (row["model_version"], row["issued_at"]) == (f"{PEPE.registered}/1", START)
    assert row["crps"] == pytest.approx(scored["crps"].mean())
    assert row["ref_crps"] == pytest.approx(scored["ref_crps"].mean())
    assert row["ref_crps"] != pytest.approx(row["crps"])
    width = np.log(scored["ref_q90"] / scored["ref_q10"]).mean()
    assert row["ref_width"] == pytest.approx(width)
    assert row["covered_80_step_1"] == scored["covered_80"][0]


def test_unfinished_replayed_and_reference_less_forecasts_are_left_out(tmp_path):
    append(tmp_path, PEPE, with_reference(rows_at(0)))  # a replay
    append(tmp_path, PEPE, rows_at(1, made_at=START + HOUR))  # without a reference
    # its first step had closed
    append(tmp_path, PEPE, with_reference(rows_at(2, made_at=START + 3.5 * HOUR)))
    append(tmp_path, PEPE, with_reference(rows_at(30, made_at=START + 30 * HOUR)))
    write_candles(tmp_path, CLOSES)

    score_due(tmp_path, [PEPE], START + 39 * HOUR)
    assert evidence_rows(tmp_path, PEPE).is_empty()  # the last one's last step has not closed

    score_due(tmp_path, [PEPE], START + 40 * HOUR)
    assert evidence_rows(tmp_path, PEPE)["issued_at"].to_list() == [START + 30 * HOUR]
