from datetime import UTC, datetime

import polars as pl

from flows.deploy import status
from flows.deploy.status import Newest


def put(path, column, *times):
    path.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame({column: list(times)}, schema={column: pl.Datetime("us", "UTC")}).write_parquet(path)


def at(day, hour):
    return datetime(2026, 5, day, hour, tzinfo=UTC)


def test_the_newest_of_all_series_is_shown_per_timeframe_and_market(tmp_path):
    put(tmp_path / "klines/interval=1h/symbol=BTCUSDT/2026-04.parquet", "open_time", at(1, 0))
    put(tmp_path / "klines/interval=1h/symbol=BTCUSDT/2026-05.parquet", "open_time", at(3, 4), at(3, 5))
    put(tmp_path / "klines/interval=1h/symbol=ETHUSDT/2026-05.parquet", "open_time", at(2, 0))
    put(tmp_path / "provisional/interval=1h/symbol=ETHUSDT/tail.parquet", "open_time", at(4, 7))
    put(tmp_path / "forecasts/interval=1h/symbol=BTCUSDT/2026-05.parquet", "issued_at", at(3, 6))
    put(tmp_path / "sim/klines/interval=15m/symbol=BTCUSDT/2026-05.parquet", "open_time", at(1, 0))
    problems = []
    assert status.newest(tmp_path, problems) == [
        Newest("sim", "15m", datetime(2026, 5, 1, 0, 15, tzinfo=UTC), None),
        Newest("spot", "1h", at(4, 8), at(3, 6)),
    ]
    assert problems == []


def test_a_damaged_file_is_named_and_stops_no_other(tmp_path):
    bad = tmp_path / "klines/interval=1h/symbol=BTCUSDT/2026-05.parquet"
    bad.parent.mkdir(parents=True)
    bad.write_bytes(b"PAR1 not really")
    put(tmp_path / "klines/interval=1h/symbol=ETHUSDT/2026-05.parquet", "open_time", at(2, 0))
    problems = []
    assert status.newest(tmp_path, problems) == [Newest("spot", "1h", at(2, 1), None)]
    (problem,) = problems
    assert str(bad) in problem
