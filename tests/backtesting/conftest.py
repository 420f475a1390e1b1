"""Two coins with two folds each, and one that is too young, as feature files below a home of their own."""

from types import SimpleNamespace

import pytest

from cpbmodels.data.columns import feature_frame
from schemas.handover import SeriesRecord
from tasks.backtesting.folds import load_folds, plan_bounds
from tasks.backtesting.rolling import judge_series
from tasks.storage.records import file_digest
from tests.tools.known_markets import TINY, A, B, busy_hours

ROWS = 4000


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def records(home):
    """Features of A and B, and of a coin with 50 rows."""
    return [record_of(home, *arguments) for arguments in ((A, 0, ROWS), (B, 1, ROWS), (TINY, 2, 50))]


def record_of(home, series, seed, rows):
    klines = busy_hours(ROWS, seed).tail(rows)
    path = series.folder(home, "features") / "x.parquet"
    path.parent.mkdir(parents=True)
    feature_frame(klines, "1h").write_parquet(path)
    us = klines["open_time"].dt.epoch("us")
    return SeriesRecord(
        series=series,
        path=path.relative_to(home).as_posix(),
        digest=series.name,
        file_digest=file_digest(path),
        rows=rows,
        first_us=us[0],
        last_us=us[-1],
    )


@pytest.fixture(scope="session")
def folds(home, records):
    """Both coins in two folds, fold by fold, and what is said of the third."""
    return load_folds(home, records, plan_bounds(records, 2))


@pytest.fixture
def judges():
    """A judge in this process, for methods that no other process can import."""
    return SimpleNamespace(number=1, ask=lambda request: judge_series(*request))
