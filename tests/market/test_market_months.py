"""Candles of a calendar month: no step to count by, one candle in a file, no daily files, `1M` in REST."""

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.backtesting import BacktestSpec
from schemas.coins import MONTH
from schemas.errors import UsageError
from schemas.identity import INTERVAL_SECONDS
from schemas.run import RunSpec
from schemas.scope import IngestSpec, ScopeSpec
from tasks.market import simulator
from tasks.market.ingest import update_store
from tasks.market.klines import read_klines
from tasks.market.layout import grid_of, months, period_bounds, source_file, to_us, whole_candles
from tests.tools.folder_mirror import FolderMirror
from tests.tools.market_tools import FAST, csv_of, key, put, scope, stored

BTC = key(interval=MONTH)
PERIODS = months(period_bounds("2023-11")[0], period_bounds("2025-03")[1])  # a leap February, ms and µs
INSTANTS = st.integers(0, to_us(datetime(2200, 1, 1, tzinfo=UTC)))


@pytest.fixture
def market(tmp_path):
    """Seventeen months of BTC; `served` ingests them over loopback HTTP and counts what was asked for."""
    for period in PERIODS:
        put(tmp_path / "mirror", source_file(BTC, period))

    def served(hook=None, as_of="2025-04-01", tail=False, **options):
        asked = Counter()

        def count(handler, name, query):
            kind = query.get("interval") or Path(name or query.get("prefix", "")).suffix or "listing"
            asked[kind] += 1
            return hook(name, query) if hook else None

        with simulator.serve(FolderMirror(tmp_path / "mirror"), count) as url:
            made = scope(tmp_path / "home", url, "BTC", MONTH, as_of, **options)
            return update_store(made, limits=FAST, tail=tail), asked

    return served


def opens(home, **options):
    return [t.strftime("%Y-%m") for t in read_klines(home, key("BTCUSDT", MONTH), **options)["open_time"]]


def test_months_are_stored_whole_and_a_second_run_fetches_nothing(market, tmp_path):
    report, asked = market()
    (series,) = report.series
    assert (report.exit, series.status, series.holes, series.rows) == (0, "complete", [], 17)
    assert (series.first, series.last) == ("2023-11-01T00:00:00Z", "2025-03-01T00:00:00Z")
    assert series.odd_close == []
    assert asked == {"listing": 1, ".zip": 17, ".CHECKSUM": 17}  # there are no daily files to ask for
    assert (tmp_path / "home/klines/interval=1mo/symbol=BTCUSDT/2024-02.parquet").is_file()
    assert opens(tmp_path / "home") == PERIODS
    before = stored(tmp_path / "home")
    again, asked = market()
    assert (asked, again.series) == ({"listing": 1}, report.series)
    assert stored(tmp_path / "home") == before


@pytest.mark.parametrize(("as_of", "last"), [("2024-03-01", "2024-02"), ("2024-02-29T23:59:59", "2024-01")])
def test_no_month_that_ends_after_as_of_is_seen(market, tmp_path, as_of, last):
    report, _ = market(as_of=as_of)
    assert report.series[0].last == f"{last}-01T00:00:00Z"
    assert report.series[0].rows == PERIODS.index(last) + 1
    market()
    moment = datetime.fromisoformat(as_of).replace(tzinfo=UTC)
    assert opens(tmp_path / "home", as_of=moment)[-1] == last
    assert opens(tmp_path / "home", since=datetime(2024, 1, 2, tzinfo=UTC), as_of=moment)[:1] in (
        ["2024-02"],
        [],
    )


def rest(period):
    cells = csv_of(source_file(BTC, period)).decode().strip().split(",")
    return [int(cells[0]), *cells[1:6], int(cells[6]), cells[7], int(cells[8]), *cells[9:]]


def test_a_month_that_is_refused_comes_from_rest_in_one_question(market, tmp_path):
    whole = market()[0].series[0].digest
    put(tmp_path / "mirror", source_file(BTC, "2024-02"), payload=b"not a zip")
    queries = []

    def hook(name, query):
        if "interval" not in query:
            return None
        queries.append(query)
        return 200, {}, json.dumps([rest("2024-02")]).encode()

    (tmp_path / "home").rename(tmp_path / "older")
    report, asked = market(hook)
    assert (report.exit, report.series[0].holes, report.series[0].digest) == (0, [], whole)
    assert asked["1M"] == 1
    assert queries[0]["startTime"] == str(period_bounds("2024-02")[0] // 1000)
    unanswered, _ = market(lambda name, query: (404, {}, b"") if "interval" in query else None)
    assert unanswered.series == report.series


HOUR, DAYS = 3_600_000, 24 * 3_600_000  # in milliseconds, as the file of February 2024 is
FAULTS = {
    "a candle of a week": (lambda a, b: [(a, b - 22 * DAYS)], "found 604800 s: a different interval"),
    "a month too short by a day": (lambda a, b: [(a, b - DAYS)], "found 2419200 s: a different interval"),
    "a day late": (lambda a, b: [(a + DAYS, b + DAYS)], "off the grid"),
    "the month after": (lambda a, b: [(a + 29 * DAYS, b + 31 * DAYS)], "outside the file's period"),
    "hours": (
        lambda a, b: [(t, t + HOUR - 1) for t in range(a, b, HOUR)],
        "expected 2505600 s between candles, found 3600 s: a different interval",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_month_is_refused(market, tmp_path, fault):
    change, says = FAULTS[fault]
    cells = csv_of(source_file(BTC, "2024-02")).split(b",")
    times = change(int(cells[0]), int(cells[6]))
    rows = [b",".join([b"%d" % a, *cells[1:6], b"%d" % b, *cells[7:]]) for a, b in times]
    put(tmp_path / "mirror", source_file(BTC, "2024-02"), b"".join(rows))
    report, _ = market()
    assert any(says in note for note in report.series[0].notes)
    assert [(h["bars"], h["cause"]) for h in report.series[0].holes] == [(1, "quarantined")]
    assert (report.exit, report.series[0].rows) == (3, 16)


def test_the_simulator_has_months_made_of_its_hours(tmp_path):
    made = scope(tmp_path, "sim", "BTC", "1h,1mo", "2025-03-10", since="2024-12")
    report = update_store(made)
    assert (report.exit, [s.rows for s in report.series]) == (0, [98 * 24 + 24, 3])
    assert report.series[1].last == "2025-02-01T00:00:00Z"
    hours = read_klines(tmp_path, key("BTCUSDT", "1h", "sim")).filter(pl.col("open_time").dt.month() != 3)
    month = hours.group_by_dynamic("open_time", every="1mo").agg(pl.col("high").max(), pl.col("count").sum())
    assert month.equals(read_klines(tmp_path, key("BTCUSDT", MONTH, "sim")).select(month.columns))


@pytest.mark.parametrize("spec", [ScopeSpec, RunSpec, BacktestSpec])
def test_models_of_months_are_refused_in_one_sentence(spec):
    with pytest.raises(UsageError, match=r"months differ in length.*leave 1mo out") as caught:
        spec(timeframes="1h,1mo", source="sim")
    assert "\n" not in str(caught.value)
    assert IngestSpec(timeframes="1h,1mo", source="sim").scope.timeframes == ("1h", "1mo")


@given(st.sampled_from([*INTERVAL_SECONDS, MONTH]), INSTANTS, INSTANTS)
def test_a_grid_agrees_with_itself(interval, instant, other):
    grid = grid_of(interval)
    opened = grid.floor(instant)
    assert opened <= instant < grid.end(opened)
    assert grid.latest(grid.end(opened)) == opened == grid.floor(opened)
    assert (grid.end(np.array([opened])) == [grid.end(opened)]).all()
    near = min(max(instant, other), grid.end(opened) + 5 * (grid.end(opened) - opened))
    first, last = whole_candles(grid, min(instant, near), near, grid.phase)
    times = grid.opens(first, last)
    assert len(times) == grid.count(first, last)
    assert [grid.end(int(t)) for t in times] == [*map(int, times[1:]), last][: len(times)]
