"""What the ceilings say of a market whose volatility wanders: knowing more never scores worse."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from cpbmodels.data.columns import feature_frame
from research.ceiling import HORIZON, ceilings, other_days
from schemas.handover import SplitBounds
from schemas.identity import SeriesId
from tasks.signals.feature_files import series_of

ROWS, PARTS = 5000, 8
START = datetime(2024, 1, 1, tzinfo=UTC)


def wandering(seed):
    """A coin whose log-volatility is an AR(1); its candles' ranges show it."""
    random = np.random.default_rng(seed)
    level = np.zeros(ROWS)
    for i in range(1, ROWS):
        level[i] = 0.97 * level[i - 1] + random.normal(0, 0.15)
    inside = np.cumsum(random.normal(0, 0.002, (ROWS, PARTS)) * np.exp(level)[:, None], axis=1)
    opened = np.concatenate([[0], np.cumsum(inside[:, -1])[:-1]])
    path = np.column_stack([np.zeros(ROWS), inside]) + opened[:, None]
    prices = np.exp(np.column_stack([opened, path.max(axis=1), path.min(axis=1), path[:, -1]]))
    times = pl.datetime_range(START, START + timedelta(hours=ROWS - 1), "1h", time_unit="us", eager=True)
    named = {name: prices[:, i] for i, name in enumerate(("open", "high", "low", "close"))}
    klines = pl.DataFrame({"open_time": times.dt.replace_time_zone("UTC"), **named, "volume": np.ones(ROWS)})
    at = [START + timedelta(hours=h) for h in (0, 3200, 3400, 3700, 3900, ROWS)]
    bounds = SplitBounds(timeframe="1h", train=(at[0], at[1]), validation=(at[2], at[3]), test=(at[4], at[5]))
    return series_of(feature_frame(klines, "1h"), SeriesId("spot", f"C{seed}USDT", "1h"), bounds)


@pytest.fixture
def series():
    return [wandering(1), wandering(2)]


def test_knowing_more_scores_better(series):
    found = {name: spans["all"]["crps_ratio"] for name, spans in ceilings(series).items()}

    assert found["past"] < 1
    assert found["oracle"] < found["memorised"] < found["itself"] < found["past"]
    assert found["past"] - 0.02 < found["other days"] < found["past"] + 0.02


def test_each_month_of_the_test_span_has_a_line_of_its_own(series):
    months = {name: dict(spans) for name, spans in ceilings(series).items()}
    tested = [(one, one.origins("test", 1, HORIZON)) for one in series]
    named = {str(t.astype("datetime64[us]"))[:7] for one, rows in tested for t in one.times[rows]}

    for spans in months.values():
        whole = spans.pop("all")["crps_ratio"]
        assert set(spans) == named
        ratios = [figures["crps_ratio"] for figures in spans.values()]
        assert min(ratios) <= whole <= max(ratios)


def test_other_days_hold_nothing_of_the_day_that_is_forecast(series):
    train, test = ([(one, one.origins(split, 1, HORIZON)) for one in series] for split in ("train", "test"))
    one, origins = test[0]
    before = other_days(train, test)(one, origins)
    one.prices[origins[-1] + 1 :] *= 1.5  # the targets of the last origins, all in the last block
    after = other_days(train, test)(one, origins)

    last = slice(-len(origins) // 5 + 1, None)
    assert np.array_equal(before[last], after[last])
    assert not np.array_equal(before[: len(origins) // 5], after[: len(origins) // 5])
