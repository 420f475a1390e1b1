"""Whole ingestions: planning, increments, time ranges, outages, one writer, honest ends."""

import sqlite3
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from schemas.errors import CpbError, MemberError
from schemas.identity import SeriesId
from tasks.market import simulator
from tasks.market.ingest import update_store
from tasks.market.klines import read_klines
from tasks.market.layout import source_file
from tasks.market.store_state import hole_lines, series_rows
from tests.tools.folder_mirror import FolderMirror, rest_of
from tests.tools.market_tools import FAST, build, csv_of, frame, key, lines, put, scope

BTC = key()


def utc(*parts):
    return datetime(*parts, tzinfo=UTC)


def test_a_month_grows_by_days_and_the_monthly_file_takes_over(tmp_path):
    root, home = build(tmp_path / "mirror", symbols=["BTCUSDT"], months=["2024-01"]), tmp_path / "home"
    for day in (1, 2):
        put(root, source_file(BTC, f"2024-02-{day:02}"))
    update_store(scope(home, root, coins="BTC"))
    put(root, source_file(BTC, "2024-02-03"))
    report = update_store(scope(home, root, coins="BTC"))
    assert report.series[0].rows == (31 + 3) * 24
    put(root, source_file(BTC, "2024-02"))
    report = update_store(scope(home, root, coins="BTC"))
    assert report.series[0].rows == (31 + 29) * 24
    assert report.series[0].files["ok"] == 2
    with sqlite3.connect(home / "manifest.db") as db:
        assert [p for (p,) in db.execute("SELECT period FROM files ORDER BY period")] == [
            "2024-01",
            "2024-02",
        ]


def test_a_coin_that_is_not_listed_fails_alone(tmp_path):
    root = build(tmp_path / "mirror", symbols=["BTCUSDT"])
    report = update_store(scope(tmp_path / "home", root, coins="NOPE,BTC"))
    assert [s.status for s in report.series] == ["failed", "complete"]
    assert f"not listed at {root}" in report.series[0].reason
    assert report.exit == 3


@pytest.mark.parametrize("over_http", [False, True])
@pytest.mark.parametrize(
    ("coin", "listed", "named"),
    [
        ("PEPE", "1000PEPEUSDT", "1000PEPEUSDT"),
        ("MOG", "1000000MOGUSDT", "1000000MOGUSDT"),
        ("BABYDOGE", "1MBABYDOGEUSDT", "1MBABYDOGEUSDT"),
        ("1000SHIB", "SHIBUSDT", "SHIBUSDT"),
        ("INCH", "1INCHUSDT", ""),
        ("BTX", "ETHUSDT", ""),
        ("PEPE", "1000PEPEUSDC", ""),
    ],
)
def test_the_same_pair_by_another_number_of_coins_is_named(tmp_path, coin, listed, named, over_http):
    root = tmp_path / "mirror"
    for symbol in (listed, "BTCUSDT"):
        put(root, source_file(SeriesId("um", symbol, "1h"), "2024-03"))
    with simulator.serve(FolderMirror(root)) as url:
        report = update_store(
            scope(tmp_path / "home", url if over_http else root, coins=coin, market="um"), limits=FAST
        )
    reason = report.series[0].reason
    meant = {"INCH": " (did you mean 1INCH?)", "BTX": " (did you mean BTC?)"}.get(coin, "")
    told = f"; {named} is there: name that" if named else f"; check the name{meant} and since"
    assert told in reason


def test_candles_that_the_source_has_corrected_are_counted(tmp_path):
    root, home = build(tmp_path / "mirror", symbols=["BTCUSDT"]), tmp_path / "home"
    assert update_store(scope(home, root, coins="BTC")).warnings == []
    february = frame(file := source_file(BTC, "2024-02"))
    at = pl.int_range(pl.len())
    volume = pl.when(at.is_in([5, 7, 8])).then(pl.col("volume") * 2).otherwise("volume")
    corrected = february.with_columns(volume).filter(at != 9)  # three others, and one taken back
    put(root, file, simulator.to_csv(corrected, "1h"))
    report = update_store(scope(home, root, coins="BTC"))
    assert "BTCUSDT 1h: 4 stored candles replaced: the source has changed them" in report.warnings
    assert update_store(scope(home, root, coins="BTC")).warnings == []


def test_no_candle_that_closes_after_as_of_is_seen(tmp_path):
    root, home = build(tmp_path / "mirror", symbols=["BTCUSDT"]), tmp_path / "home"
    late = update_store(scope(home, root, coins="BTC")).series[0]
    early = update_store(scope(home, root, coins="BTC", as_of="2024-02-10T12:30")).series[0]
    assert early.last == "2024-02-10T11:00:00Z"
    assert early.rows == (31 + 9) * 24 + 12
    fresh = update_store(scope(tmp_path / "other", root, coins="BTC", as_of="2024-02-10T12:30")).series[0]
    assert early.digest == fresh.digest != late.digest
    rows = read_klines(home, key("BTCUSDT", "1h"), as_of=utc(2024, 2, 10, 12, 30))
    assert rows.height == early.rows
    closes = read_klines(home, key("BTCUSDT", "1h"), as_of=utc(2024, 2, 10, 12, 30), columns=["close"])
    assert closes.equals(rows.select("open_time", "close"))
    assert not (tmp_path / "other/klines/interval=1h/symbol=BTCUSDT/2024-03.parquet").exists()


def test_digests_tell_values_not_files(tmp_path):
    root = build(tmp_path / "a", symbols=["BTCUSDT"], months=["2024-01"])
    other = tmp_path / "b"
    for day in range(1, 32):
        put(other, source_file(BTC, f"2024-01-{day:02}"))
    digests = {
        update_store(scope(tmp_path / f"home{r.name}", r, coins="BTC")).series[0].digest
        for r in (root, other)
    }
    assert len(digests) == 1


def without(file, *spans):
    """A file's CSV without the candles of some line ranges."""
    rows = lines(csv_of(file))
    return b"".join(r for i, r in enumerate(rows) if not any(a <= i < b for a, b in spans))


def test_an_outage_is_what_every_symbol_lacks(tmp_path):
    root = build(tmp_path / "mirror", symbols=["BTCUSDT", "ETHUSDT", "SOLUSDT"])
    month = "2024-02"
    put(
        root,
        source_file(key("BTCUSDT"), month),
        without(source_file(key("BTCUSDT"), month), (100, 103), (300, 302)),
    )
    put(root, source_file(key("ETHUSDT"), month), without(source_file(key("ETHUSDT"), month), (100, 103)))
    put(root, source_file(key("SOLUSDT"), month), without(source_file(key("SOLUSDT"), month), (100, 104)))
    report = update_store(scope(tmp_path / "home", root, coins="BTC,ETH,SOL"))
    causes = {s.series.symbol: [(h["bars"], h["cause"]) for h in s.holes] for s in report.series}
    assert causes == {
        "BTCUSDT": [(3, "exchange outage"), (2, "absent at source")],
        "ETHUSDT": [(3, "exchange outage")],
        "SOLUSDT": [(3, "exchange outage"), (1, "absent at source")],
    }
    assert [s.status for s in report.series] == ["partial", "complete", "partial"]
    alone = update_store(
        scope(tmp_path / "home", root, coins="BTC")
    )  # the store's other symbols still testify
    assert [h["cause"] for h in alone.series[0].holes] == ["exchange outage", "absent at source"]


def test_unpublished_months_are_a_hole_of_their_own_kind(tmp_path):
    root = build(tmp_path / "mirror", months=["2024-01", "2024-03"])
    report = update_store(scope(tmp_path / "home", root))
    assert [(h["from"], h["to"], h["cause"]) for h in report.series[0].holes] == [
        ("2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z", "not published")
    ]
    assert report.exit == 0
    assert "not published" in "".join(hole_lines(report))
    assert [row["series"] for row in series_rows(report)] == ["BTCUSDT 1h", "ETHUSDT 1h"]


def test_a_home_that_is_a_file_is_named(tmp_path):
    (tmp_path / "home").write_text("")
    with pytest.raises(CpbError, match="cannot write in"):
        update_store(scope(tmp_path / "home", build(tmp_path / "mirror"), coins="BTC"))


def test_any_market(tmp_path):
    root = tmp_path / "mirror"
    for symbol in ("BTCUSDT", "ETHUSDT", "ETHBTC"):
        put(root, source_file(key(symbol, "4h", "um"), "2024-01"))
    made = scope(tmp_path / "home", root, coins="BTC", timeframes="4h", market="um")
    report = update_store(made.model_copy(update={"symbols": ("BTCUSDT", "ETHUSDT")}))
    assert report.exit == 0
    assert read_klines(tmp_path / "home", key("ETHUSDT", "4h", "um")).height == 31 * 6
    with pytest.raises(MemberError, match="no candles"):
        read_klines(tmp_path / "home", key("ETHUSDT", "4h"))


def test_the_tail_is_provisional_and_holds_no_unfinished_candle(tmp_path):
    root, home = build(tmp_path / "mirror", symbols=["BTCUSDT"]), tmp_path / "home"
    april = frame(source_file(key(), "2024-04"))
    with simulator.serve(FolderMirror(root), rest_of(april)) as url:
        report = update_store(scope(home, url, coins="BTC", as_of="2024-04-02T05:30"), tail=True, limits=FAST)
    assert report.series[0].last == "2024-03-31T23:00:00Z"
    assert read_klines(home, key("BTCUSDT", "1h")).height == 91 * 24
    with_tail = read_klines(home, key("BTCUSDT", "1h"), confirmed=False)
    assert with_tail.height == 91 * 24 + 29
    assert with_tail["open_time"].is_sorted()
    assert (
        read_klines(home, key("BTCUSDT", "1h"), confirmed=False, as_of=utc(2024, 4, 1, 2)).height
        == 91 * 24 + 2
    )


def test_an_archive_that_lacks_candles_of_the_tail_decides_for_its_own_days(tmp_path):
    root, home = build(tmp_path / "mirror", symbols=["BTCUSDT"]), tmp_path / "home"
    april = frame(source_file(key(), "2024-04"))
    with simulator.serve(FolderMirror(root), rest_of(april)) as url:
        update_store(scope(home, url, coins="BTC", as_of="2024-04-02T05:30"), tail=True, limits=FAST)
    day = source_file(key(), "2024-04-01")
    put(root, day, csv_of(day, frame(day).filter(~pl.col("open_time").dt.hour().is_in([10, 11]))))
    update_store(scope(home, root, coins="BTC", as_of="2024-04-02T05:30"), limits=FAST)

    times = read_klines(home, key("BTCUSDT", "1h"), since=utc(2024, 4, 1), confirmed=False)["open_time"]
    hours = [*range(10), *range(12, 24), *range(24, 29)]
    assert times.to_list() == [utc(2024, 4, 1) + timedelta(hours=h) for h in hours]
    assert read_klines(home, key("BTCUSDT", "1h"), confirmed=False)["open_time"].is_sorted()
    for hour in range(1, 29):  # of the archive's day, and of the tail's: no candle that closes later is seen
        as_of = utc(2024, 4, 1) + timedelta(hours=hour)
        some = read_klines(home, key("BTCUSDT", "1h"), since=utc(2024, 4, 1), as_of=as_of, confirmed=False)
        assert some["open_time"].to_list() == [t for t in times if t < as_of]


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_span_that_ends_before_it_begins_is_empty(tmp_path, confirmed):
    root, home = build(tmp_path / "mirror", symbols=["BTCUSDT"]), tmp_path / "home"
    update_store(scope(home, root, coins="BTC"))
    span = {"since": utc(2024, 2, 20), "as_of": utc(2024, 2, 10)}
    assert read_klines(home, key("BTCUSDT", "1h"), **span, confirmed=confirmed).is_empty()


def test_reading_what_was_never_fetched_says_how_to_get_it(tmp_path):
    with pytest.raises(MemberError, match="cpb ingest --coins BTCUSDT"):
        read_klines(tmp_path, key("BTCUSDT", "1h"))
