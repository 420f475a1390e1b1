"""Spans of time: shared, apart, and enough in each."""

from datetime import UTC, datetime, timedelta

import pytest

from schemas.errors import MemberError, UsageError
from schemas.handover import SeriesRecord
from schemas.identity import INTERVAL_SECONDS, SeriesId
from tasks.signals.splits import check_enough, fold_bounds, shortened, split_bounds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def record(symbol="BTCUSDT", timeframe="1h", rows=20_000, end=datetime(2025, 6, 6, tzinfo=UTC)):
    step = INTERVAL_SECONDS[timeframe]
    last = end - timedelta(seconds=step)
    first = last - timedelta(seconds=step * (rows - 1))
    us = [(t - EPOCH) // timedelta(microseconds=1) for t in (first, last)]
    return SeriesRecord(
        series=SeriesId("spot", symbol, timeframe),
        path="x.parquet",
        digest="d",
        file_digest="f",
        rows=rows,
        first_us=us[0],
        last_us=us[1],
    )


def test_a_long_history_is_judged_on_its_last_120_days():
    bounds = split_bounds([record(), record("NEWUSDT", rows=3000)])
    assert bounds.test == (datetime(2025, 2, 6, tzinfo=UTC), datetime(2025, 6, 6, tzinfo=UTC))
    assert bounds.validation[1] - bounds.validation[0] == timedelta(days=60)
    assert bounds.train[0] == datetime(2025, 6, 6, tzinfo=UTC) - timedelta(hours=20_000)


def test_a_short_series_is_named_with_what_it_needs():
    bounds = split_bounds([record(rows=20_000)])
    with pytest.raises(
        MemberError, match=r"NEWUSDT 1h: only 50 rows; needs at least \d+ for train, validation and test"
    ):
        check_enough(SeriesId("spot", "NEWUSDT", "1h"), {"train": 0, "validation": 0, "test": 50}, 50, bounds)
    with pytest.raises(MemberError, match="delisted"):
        check_enough(
            SeriesId("spot", "OLDUSDT", "1h"), {"train": 9000, "validation": 1440, "test": 0}, 10_440, bounds
        )
    check_enough(
        SeriesId("spot", "BTCUSDT", "1h"), {"train": 9000, "validation": 1440, "test": 2880}, 20_000, bounds
    )


def test_too_many_folds_are_refused():
    with pytest.raises(UsageError) as refused:
        fold_bounds([record(rows=3000)], 9)
    assert refused.value.field == "folds"


def days(span):
    return (span[1] - span[0]) / timedelta(days=1)


def test_fifteen_minutes_are_tested_on_120_days_where_every_series_keeps_180_to_learn_from():
    year = record(timeframe="15m", rows=96 * 365)
    short = record("NEWUSDT", timeframe="15m", rows=96 * 300)
    assert days(split_bounds([year]).test) == 120
    assert days(split_bounds([year]).validation) == 60
    assert year.candles_in(split_bounds([year]).train) >= 96 * 180
    assert days(split_bounds([year, short]).test) == 30
    assert [days(fold.test) for fold in fold_bounds([year], 2)] == [30, 30]
    assert [days(fold.test) for fold in fold_bounds([record(timeframe="15m", rows=96 * 500)], 2)] == [
        120,
        120,
    ]


def test_the_series_that_shorten_a_test_span_are_named():
    """The last series has ended 100 days before the others: no long test span holds half of its candles."""
    year, end = record(timeframe="15m", rows=96 * 500), datetime(2025, 2, 26, tzinfo=UTC)
    ended = record("OLDUSDT", timeframe="15m", rows=96 * 400, end=end)
    assert days(split_bounds([year, ended]).test) == 30
    assert shortened([year, ended], 1) == (
        "Test spans at 15m are 30 days instead of 120, because 1 of 2 series end or begin within the longer ones: "
        "OLDUSDT-15m; without them the test is longer"
    )
    assert shortened([year], 1) == ""
    assert shortened([ended], 3) == ""  # too short by itself
    assert shortened([record(rows=20_000), record("NEWUSDT", rows=3000)], 1) == ""  # 1h: 120 days as it is


@pytest.mark.parametrize(
    ("first", "last", "expected"), [(300, 100, 30), (300, 250, 120), (60, 20, 120), (100, 0, 30)]
)
def test_a_hole_counts_as_no_candles(first, last, expected):
    """A hole from `first` to `last` days before the end: in training it may be, in most of another span not."""
    whole = record(timeframe="15m", rows=96 * 900)
    hole = [whole.last_us - days * 86_400_000_000 for days in (first, last)]
    runs = [(whole.first_us, hole[0])] + ([(hole[1], whole.last_us)] if last else [])
    holed = whole.model_copy(update={"runs": tuple(runs)})
    assert days(split_bounds([whole, holed]).test) == expected
