"""The record day by day ends where the summary stands."""

import pytest
from forecast_tools import PEPE
from test_live_record import DAY, FIRST, entry, fill, scored

from tasks.forecasting.record import DAYS_SCHEMA, read_sums, record_by_day


def by_day(home, now, live=True):
    return record_by_day(read_sums(home, PEPE), PEPE, now, live=live)


def test_its_last_day_is_the_summary(tmp_path):
    now = fill(tmp_path, 60, reference=3.0)
    scored(tmp_path, now)
    found = by_day(tmp_path, now)
    known, last = entry(tmp_path), found.row(-1, named=True)
    assert dict(found.schema) == DAYS_SCHEMA
    assert (len(found), last["day"]) == (known.days, known.last)
    assert last["ratio"] == pytest.approx(known.crps_ratio)
    assert (last["low"], last["high"]) == pytest.approx((known.crps_ratio_low, known.crps_ratio_high))
    assert found["low"].null_count() == 29  # too few days to tell
    assert last["rolling"] != pytest.approx(last["ratio"], rel=1e-6)
    assert found["rolling"][29] == pytest.approx(found["ratio"][29])


def test_days_that_may_still_come_due_are_left_out(tmp_path):
    scored(tmp_path, fill(tmp_path, 5))
    assert len(by_day(tmp_path, FIRST + 3 * DAY)) == 2


def test_live_forecasts_and_replays_are_apart_and_none_is_an_empty_frame(tmp_path):
    now = fill(tmp_path, 5)
    assert by_day(tmp_path, now).is_empty()
    scored(tmp_path, now)
    assert dict(by_day(tmp_path, now, live=False).schema) == DAYS_SCHEMA
    assert by_day(tmp_path, now, live=False).is_empty()
