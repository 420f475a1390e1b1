"""The edges of a series: odd grids, cut ranges, missing first months, cut last ones, versions that come and go."""

from datetime import UTC, datetime

import polars as pl
import pytest

from schemas.candles import KLINES
from schemas.errors import CpbError
from tasks.market import simulator
from tasks.market.ingest import update_store
from tasks.market.klines import read_klines
from tasks.market.layout import source_file
from tests.tools.folder_mirror import FolderMirror
from tests.tools.market_tools import FAST, build, csv_of, key, lines, put, scope

BTC = key()
MONTHS = ("2024-01", "2024-02", "2024-03")


def run(tmp_path, lists=True, coins="BTC", **options):
    with simulator.serve(FolderMirror(tmp_path / "mirror"), lists=lists) as url:
        return update_store(scope(tmp_path / "home", url, coins, **options), limits=FAST)


def flat(file, start):
    """Candles of one price on the grid that goes through `start`, as far as they open in the file's period."""
    step, (first, last) = file.series.seconds * 1_000_000, file.bounds
    times = range(first + (start - first) % step, last, step)
    values = dict.fromkeys(KLINES, 100.0) | {"volume": 0.0, "count": 0}
    values |= dict.fromkeys([c for c in KLINES if "quote" in c or "taker" in c], 0.0)
    return pl.DataFrame({"open_time": times}).with_columns(
        pl.col("open_time").cast(KLINES["open_time"]),
        *(pl.lit(values[c], KLINES[c]).alias(c) for c in KLINES if c != "open_time"),
    )


MONDAY = source_file(BTC, "2024-01").bounds[0]  # and no multiple of three days since 1970


def publish(tmp_path, interval, lacking=()):
    for month in MONTHS:
        file = source_file(key(interval=interval), month)
        rows = flat(file, MONDAY)
        kept = [i for i in range(rows.height) if (month, i) not in lacking]
        put(tmp_path / "mirror", file, csv_of(file, rows[kept]))


def test_a_hole_of_a_shifted_grid_is_as_long_as_it_is(tmp_path):
    publish(tmp_path, "3d", [("2024-02", 3), ("2024-02", 4)])
    (hole,) = run(tmp_path, timeframes="3d").series[0].holes
    assert hole["bars"] == 2


@pytest.mark.parametrize(
    ("interval", "options"),
    [
        ("1w", {"as_of": "2024-03-20"}),
        ("1w", {"since": "2024-01-10"}),
        ("3d", {"as_of": "2024-03-20"}),
        ("3d", {"since": "2024-01-09"}),
        ("1h", {"since": "2024-01-10T12:30", "as_of": "2024-03-20T12:30"}),
    ],
)
def test_what_is_reported_is_what_is_read(tmp_path, interval, options):
    """Weeks open on Mondays and days in threes anywhere: a range cuts between candles, not through them."""
    publish(tmp_path, interval)
    report = run(tmp_path, timeframes=interval, **options).series[0]
    asked = {"since": "2017-01-01", "as_of": "2024-04-01"} | options
    since, as_of = (datetime.fromisoformat(asked[k]).replace(tzinfo=UTC) for k in ("since", "as_of"))
    rows = read_klines(tmp_path / "home", key("BTCUSDT", interval), since, as_of)
    times = rows["open_time"].dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert (report.rows, report.first, report.last) == (rows.height, times[0], times[-1])


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("since", ["2024-01", "2023-11"])
def test_a_first_month_without_a_monthly_file_comes_from_daily_ones(tmp_path, lists, since):
    build(tmp_path / "mirror", ["BTCUSDT"], MONTHS[1:])
    for day in range(10, 32):
        put(tmp_path / "mirror", source_file(BTC, f"2024-01-{day}"))
    report = run(tmp_path, lists, since=since).series[0]
    assert (report.first, report.rows) == ("2024-01-10T00:00:00Z", (22 + 29 + 31) * 24)


def test_seconds_come_from_monthly_files_where_there_are_no_daily_ones(tmp_path):
    file = source_file(key(interval="1s"), "2024-01")
    put(tmp_path / "mirror", file, csv_of(file, flat(file, MONDAY).tail(86_400)))
    report = run(tmp_path, timeframes="1s", since="2024-01-31", as_of="2024-02-01").series[0]
    assert report.rows == 86_400


def cut(tmp_path):
    """BTC's last month ends on the 8th, days before the requested end; ETH's does not."""
    build(tmp_path / "mirror", months=MONTHS)
    last = source_file(BTC, "2024-03")
    put(tmp_path / "mirror", last, b"".join(lines(csv_of(last))[: 7 * 24]))


def test_a_truncated_last_month_is_repaired_before_it_counts_as_the_end(tmp_path):
    cut(tmp_path)
    for day in range(1, 32):
        put(tmp_path / "mirror", source_file(BTC, f"2024-03-{day:02}"))
    report = run(tmp_path, coins="BTC,ETH", as_of="2024-04-10")
    assert (report.series[0].rows, report.series[0].holes) == (91 * 24, [])
    assert run(tmp_path, coins="BTC,ETH", as_of="2024-04-10").requests == 4  # listings


def test_a_pair_that_ended_is_searched_once_and_then_not_published(tmp_path):
    cut(tmp_path)
    report = run(tmp_path, coins="BTC,ETH", as_of="2024-04-10")
    assert [h["cause"] for h in report.series[0].holes] == ["not published"]
    again = run(tmp_path, coins="BTC,ETH", as_of="2024-04-10")
    assert again.series == report.series
    assert again.requests == 4  # listings


def test_a_folder_that_cannot_be_written_in_is_named(tmp_path):
    build(tmp_path / "mirror", ["BTCUSDT"])
    taken = tmp_path / "home/klines/interval=1h/symbol=BTCUSDT/2024-02.parquet/x"
    taken.mkdir(parents=True)
    with pytest.raises(CpbError, match=r"cannot work in .*2024-02.parquet.*set CPB_HOME"):
        run(tmp_path)


def test_a_part_damaged_without_a_trace_is_fetched_anew_with_a_new_day(tmp_path):
    for day in range(1, 11):
        put(tmp_path / "mirror", source_file(BTC, f"2024-02-{day:02}"))
    build(tmp_path / "mirror", ["ETHUSDT"], ["2024-02"])
    run(tmp_path, coins="BTC,ETH")
    part = tmp_path / "home/klines/interval=1h/symbol=BTCUSDT/2024-02.parquet"
    part.write_bytes(b"x" * part.stat().st_size)
    put(tmp_path / "mirror", source_file(BTC, "2024-02-11"))
    put(tmp_path / "mirror", source_file(key("ETHUSDT"), "2024-03"))
    report = run(tmp_path, coins="BTC,ETH")
    assert [s.status for s in report.series] == ["complete", "complete"]  # the ten days came again
    assert report.series[0].rows == 11 * 24
    assert any("was damaged" in note and "fetched anew" in note for note in report.notes)
    assert run(tmp_path, coins="BTC,ETH").requests == 3  # listings
