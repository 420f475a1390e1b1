"""Whatever the history: folds roll, spans keep their distance, and no window crosses a hole or a border."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cpbmodels import Series
from schemas.errors import UsageError
from schemas.handover import SeriesRecord
from schemas.identity import INTERVAL_SECONDS, SeriesId
from tasks.signals.splits import EMBARGO, fold_bounds

START = datetime(2019, 1, 1, tzinfo=UTC)
lengths = st.lists(st.integers(300, 40_000), min_size=1, max_size=4)


def records(rows, late, timeframe):
    """Series that end within `late` candles of one another."""
    step = INTERVAL_SECONDS[timeframe]
    end = START + timedelta(seconds=step * 50_000)
    made = []
    for i, n in enumerate(rows):
        last = end - timedelta(seconds=step * (i * late))
        us = [round((last - timedelta(seconds=step * k)).timestamp() * 1e6) for k in (n - 1, 0)]
        record = SeriesRecord(
            series=SeriesId("spot", f"C{i}USDT", timeframe),
            path="x",
            digest="d",
            file_digest="f",
            rows=n,
            first_us=us[0],
            last_us=us[1],
        )
        made.append(record)
    return made


@settings(max_examples=150, deadline=None)
@given(
    rows=lengths,
    late=st.integers(0, 500),
    count=st.integers(1, 8),
    tf=st.sampled_from(["15m", "1h", "1d"]),
)
def test_folds_keep_their_distance_whatever_the_history(rows, late, count, tf):
    step = timedelta(seconds=INTERVAL_SECONDS[tf])
    coins = records(rows, late, tf)
    try:
        rolled = fold_bounds(coins, count)
    except UsageError:
        assert count > 1  # one fold is always made; a series too short for it is named later
        return
    assert len(rolled) == count
    newest = max(r.last_us for r in coins)
    assert round(rolled[-1].test[1].timestamp() * 1e6) == newest + round(step.total_seconds() * 1e6)
    for fold in rolled:
        assert fold.train[0] <= fold.train[1]
        assert fold.validation[0] - fold.train[1] == EMBARGO * step
        assert fold.test[0] - fold.validation[1] == EMBARGO * step
        assert fold.validation[0] < fold.validation[1]
        assert fold.test[0] < fold.test[1]
    for earlier, later in pairwise(rolled):
        assert later.test[0] == earlier.test[1]
        assert later.train[1] > earlier.train[1]
        assert later.train[0] == earlier.train[0]
        # what a later fold has seen of an earlier test span is the past by then: it ends an embargo before its own
        assert later.train[1] + EMBARGO * step <= later.validation[0]


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    holes=st.integers(0, 6),
    context=st.integers(1, 40),
    horizon=st.integers(1, 12),
    stride=st.integers(1, 7),
)
def test_no_window_crosses_a_hole_a_gap_in_a_column_or_a_border(seed, holes, context, horizon, stride):
    draw = np.random.default_rng(seed)
    rows = 400
    segments = np.sort(draw.integers(0, holes + 1, rows))
    features = draw.normal(size=(rows, 2))
    features[draw.random(rows) < 0.02, 1] = np.nan
    a, b, c = np.sort(draw.integers(0, rows, 3))
    series = Series(
        prices=np.ones((rows, 4)),
        features=features,
        names=("x", "y"),
        volatility=np.ones(rows),
        segments=segments,
        spans={"train": (0, int(a)), "validation": (int(b), int(c)), "test": (int(c), rows)},
    )
    for split, (first, last) in series.spans.items():
        honest = [
            t
            for t in range(context - 1, rows - horizon)
            if first <= t
            and t + horizon < last
            and len(set(segments[t - context + 1 : t + horizon + 1])) == 1
            and np.isfinite(features[t - context + 1 : t + 1]).all()
        ]
        assert series.origins(split, context, horizon, stride).tolist() == honest[::stride]
