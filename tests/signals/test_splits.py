"""Spans of time: shared, apart, and enough in each."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from schemas.errors import MemberError, UsageError
from schemas.handover import SeriesRecord
from schemas.identity import SeriesId
from schemas.universe import INTERVAL_SECONDS
from tasks.signals.splits import SplitPolicy, check_enough, folds, split_bounds

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


@pytest.mark.parametrize("rows", [900, 1500, 20_000, 70_000])
def test_spans_are_ordered_with_an_embargo_between(rows):
    policy = SplitPolicy()
    bounds = split_bounds([record(rows=rows)], policy)
    gap = timedelta(hours=policy.embargo)
    assert bounds.train[1] + gap == bounds.validation[0]
    assert bounds.validation[1] + gap == bounds.test[0]
    assert bounds.train[0] < bounds.train[1]
    assert (bounds.test[1] - bounds.test[0]) / timedelta(hours=1) <= 0.15 * rows + 1


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


def test_fifty_rows_alone_are_refused_too():
    bounds = split_bounds([record(rows=50)])
    with pytest.raises(MemberError, match="only 50 rows; needs at least"):
        check_enough(SeriesId("spot", "TINYUSDT", "1h"), {"train": 0, "validation": 3, "test": 7}, 50, bounds)


def test_folds_roll_the_origin():
    rolled = folds([record()], 3)
    assert rolled[-1] == split_bounds([record()])
    for earlier, later in pairwise(rolled):
        assert earlier.test[1] == later.test[0]
        assert earlier.train[0] == later.train[0]
    sliding = folds([record()], 3, kind="sliding")
    lengths = {b.train[1] - b.train[0] for b in sliding}
    assert len(lengths) == 1
    assert [b.test for b in sliding] == [b.test for b in rolled]


def test_too_many_folds_are_refused():
    with pytest.raises(UsageError) as refused:
        folds([record(rows=3000)], 9)
    assert refused.value.field == "folds"


def test_timeframes_are_not_mixed():
    with pytest.raises(ValueError, match="one timeframe"):
        split_bounds([record(), record(timeframe="15m")])
