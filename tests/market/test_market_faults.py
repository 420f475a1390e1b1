"""Each row of the fault table, against a server or a file that is wrong on purpose."""

import io
import time
import zipfile

import polars as pl
import pytest

from cpbmodels.data.columns import PRICES
from cpbmodels.data.raw_tables import BINANCE_COLUMNS
from tasks.market import simulator
from tasks.market.ingest import update_store
from tasks.market.klines import read_klines
from tasks.market.layout import source_file
from tests.tools.folder_mirror import FolderMirror
from tests.tools.market_tools import (
    FAST,
    IMPATIENT,
    Misbehaving,
    build,
    csv_of,
    drafts,
    frame,
    key,
    lines,
    put,
    scope,
    stored,
)

BTC, MONTH = key(), source_file(key(), "2024-02")
NAME = "BTCUSDT-1h-2024-02.zip"


def served(tmp_path, hook=None, **options):
    """Ingest tmp_path/mirror over loopback HTTP."""
    limits = IMPATIENT if "trickle" in getattr(hook, "fault", "") else FAST
    with simulator.serve(FolderMirror(tmp_path / "mirror"), hook) as url:
        return update_store(scope(tmp_path / "home", url, **options), limits=limits)


def btc(report):
    return next(s for s in report.series if s.series.symbol == "BTCUSDT")


def check_store(tmp_path, report):
    """No accepted bad row, no temp file, and every missing candle is accounted for."""
    home = tmp_path / "home"
    assert not drafts(home)
    truth = pl.concat([frame(source_file(BTC, m)) for m in ("2024-01", "2024-02", "2024-03")])
    got = read_klines(home, key("BTCUSDT", "1h"))
    assert got.join(truth, on=got.columns, how="anti").height == 0
    assert got.height + sum(h["bars"] for h in btc(report).holes) == truth.height
    return got


@pytest.fixture
def market(tmp_path):
    build(tmp_path / "mirror")
    return tmp_path


def test_a_clean_mirror_is_stored_to_the_last_digit(market):
    report = served(market)
    assert report.exit == 0
    assert btc(report).files == {"ok": 3, "repaired": 0, "quarantined": 0, "unverified": 0, "missing": 0}
    assert check_store(market, report).height == 91 * 24


@pytest.mark.parametrize("fault", ["500", "529", "reset", "429", "html", "trickle"])
def test_a_passing_fault_is_tried_again(market, fault):
    report = served(market, Misbehaving(NAME, fault, times=1))
    assert report.exit == 0
    check_store(market, report)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("500", "server error 500"),
        ("reset", "IncompleteRead"),
        ("trickle", "timed out: not finished in 0.8 s"),
        ("404", "not found (404)"),
        ("451", "not available from your location (451)"),
        ("403", "(403)"),
        ("418", "(418)"),
    ],
)
def test_a_file_that_never_arrives_is_said_to_lack(market, fault, reason):
    report = served(market, Misbehaving(NAME, fault))
    assert report.exit == 3
    assert any(reason in note and "2024-02" in note for note in btc(report).notes), btc(report).notes
    assert [h["cause"] for h in btc(report).holes] == ["download failed"]
    assert btc(report).files["missing"] == 1
    check_store(market, report)


def test_what_failed_is_fetched_by_the_next_run(market):
    served(market, Misbehaving(NAME, "500"))
    report = served(market)
    assert report.exit == 0
    assert check_store(market, report).height == 91 * 24


def flip(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]


def zipped(*members) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members:
            archive.writestr(name, body)
    return buffer.getvalue()


BAD_ZIPS = {
    "truncated": (lambda good: good[:-100], "checksum mismatch"),
    "flipped byte": (flip, "checksum mismatch"),
    "crc": (flip, "damaged zip"),
    "html": (lambda _: b"<html>not here</html>", "not a zip (HTML error page)"),
    "empty": (lambda _: b"", "not a zip (empty)"),
    "two members": (lambda _: zipped((MONTH.member, csv_of(MONTH)), ("more.csv", b"1")), "must hold only"),
    "no member": (lambda _: zipped(), "holds nothing"),
    "path in the name": (lambda _: zipped((f"../../etc/{MONTH.member}", csv_of(MONTH))), "../../etc/"),
    "bomb": (lambda _: zipped((MONTH.member, b"1" * (30 << 20))), "would inflate"),
    "huge": (lambda _: zipped((MONTH.member, b"1" * (70 << 20))), "would inflate to 70 MB"),
}


@pytest.mark.parametrize("fault", BAD_ZIPS)
def test_a_bad_zip_is_quarantined_with_its_reason(market, fault):
    path = market / "mirror" / MONTH.key
    good, (spoil, reason) = path.read_bytes(), BAD_ZIPS[fault]
    payload = put(market / "mirror", MONTH, payload=spoil(good))
    if reason == "checksum mismatch":
        path.with_name(NAME + ".CHECKSUM").write_bytes(simulator.to_checksum(NAME, good))
    report = served(market)
    quarantined = market / "home/quarantine" / MONTH.key.removeprefix("data/")
    assert quarantined.read_bytes() == payload
    assert reason in quarantined.with_name(NAME + ".reason.txt").read_text()
    assert report.exit == 3
    assert btc(report).files["quarantined"] == 1
    assert [h["cause"] for h in btc(report).holes] == ["quarantined"]
    check_store(market, report)


def test_a_wrong_length_is_noticed(market):
    good = (market / "mirror" / MONTH.key).read_bytes()
    hook = Misbehaving(NAME, "bytes", body=good + b"x")
    path = market / "mirror" / (MONTH.key + ".CHECKSUM")
    path.write_bytes(simulator.to_checksum(NAME, good + b"x"))
    report = served(market, hook)
    assert any("wrong length" in n for n in btc(report).notes)
    check_store(market, report)


def test_a_file_without_checksum_is_accepted_if_its_etag_is_its_md5_and_marked(market):
    (market / "mirror" / (MONTH.key + ".CHECKSUM")).unlink()
    report = served(market)
    assert report.exit == 0
    assert btc(report).files["unverified"] == 1
    assert any("unverified, no CHECKSUM published" in n for n in btc(report).notes)


def test_a_file_without_checksum_and_with_another_etag_is_refused(market):
    (market / "mirror" / (MONTH.key + ".CHECKSUM")).unlink()
    body = (market / "mirror" / MONTH.key).read_bytes()
    report = served(market, Misbehaving(NAME, "bytes", body=flip(body)))
    assert any("the ETag is of other bytes" in n for n in btc(report).notes)


def edit(csv, line, column, value):
    rows = lines(csv)
    cells = rows[line].split(b",")
    cells[column] = value
    rows[line] = b",".join(cells)
    return b"".join(rows)


GOOD = csv_of(MONTH)
BAD_CONTENTS = {
    "cut last line": (GOOD[:-40], "is missing"),
    "NaN": (edit(GOOD, 5, 4, b"NaN"), "close is not finite"),
    "infinite": (edit(GOOD, 5, 2, b"inf"), "not finite"),
    "null": (edit(GOOD, 5, 4, b""), "line 6: close is missing"),
    "zero price": (edit(GOOD, 7, 3, b"0.00000000"), "line 8"),
    "negative volume": (edit(GOOD, 7, 5, b"-1.0"), "volume is negative (-1)"),
    "high below low": (edit(GOOD, 7, 2, b"0.00000001"), "high is below"),
    "taker above total": (edit(GOOD, 7, 9, b"99999999"), "taker volume exceeds"),
    "other month": (csv_of(source_file(BTC, "2024-03")), "outside the file's period"),
    "wrong interval": (
        csv_of(source_file(key(interval="4h"), "2024-02")),
        "expected 3600 s between candles, found 14400 s",
    ),
    "finer interval": (
        csv_of(source_file(key(interval="15m"), "2024-02")),
        "expected 3600 s between candles, found 900 s",
    ),
    "other symbol": (csv_of(source_file(key("SHIBUSDT"), "2024-02")), "another symbol"),
    "unknown header": (b"time,price\n" + GOOD, "header 'time,price'"),
    "words": (GOOD.replace(b"170", b"abc", 1), "header"),
    "words inside": (edit(GOOD, 9, 1, b"abc"), "not twelve numbers"),
    "too many columns": (edit(GOOD, 9, 11, b"0,0\n"), "not twelve numbers"),
    "blank line inside": (GOOD.replace(b"\n", b"\n\n", 5), "open_time is missing"),
    "nothing": (b"\n", "holds no candle"),
    "off the grid": (GOOD.replace(b"1706832000000", b"1706832007000"), "off the grid"),
}


@pytest.mark.parametrize("fault", BAD_CONTENTS)
def test_bad_contents_are_quarantined_although_the_checksum_is_right(market, fault):
    csv, reason = BAD_CONTENTS[fault]
    put(market / "mirror", MONTH, csv)
    report = served(market)
    assert btc(report).files["quarantined"] == 1
    assert any(reason in note for note in btc(report).notes), btc(report).notes
    got = check_store(market, report)
    assert got.height == (31 + 31) * 24


@pytest.mark.parametrize("fault", ["NaN", "wrong interval", "500"])
def test_daily_files_replace_a_month_that_is_refused_or_does_not_arrive(market, fault):
    for day in range(1, 30):
        put(market / "mirror", source_file(BTC, f"2024-02-{day:02}"))
    if fault == "500":
        report = served(market, Misbehaving(NAME, fault))
    else:
        put(market / "mirror", MONTH, BAD_CONTENTS[fault][0])
        report = served(market)
    assert (report.exit, btc(report).files["repaired"]) == (0, 29)
    assert any("used 29 daily files" in note for note in report.notes), report.notes
    assert check_store(market, report).height == 91 * 24
    if fault != "500":
        again = served(market)
        assert again.series == report.series
        assert again.requests == 2  # a listing for each series


def shuffled(csv):
    rows = lines(csv)
    return b"".join(rows[10:] + rows[:10])


def microseconds(csv, upto):
    rows = [line.split(b",") for line in lines(csv)]
    for cells in rows[:upto]:
        cells[0], cells[6] = cells[0] + b"000", cells[6] + b"999"
    return b"".join(b",".join(cells) for cells in rows)


HEADER = ",".join(BINANCE_COLUMNS).encode() + b"\n"
BOM = b"\xef\xbb\xbf"
ODD_FORMS = {
    "header": (HEADER + GOOD, ["header line dropped"]),
    "bom": (BOM + GOOD, ["byte order mark dropped"]),
    "bom and header": (BOM + HEADER + GOOD, ["byte order mark dropped", "header line dropped"]),
    "no last newline": (GOOD[:-1], []),
    "crlf": (GOOD.replace(b"\n", b"\r\n"), []),
    "shuffled": (shuffled(GOOD), ["candles out of order, sorted"]),
    "ms and us": (microseconds(GOOD, 100), ["milliseconds and microseconds in one file"]),
    "us": (microseconds(GOOD, 10**6), []),
    "duplicate": (
        GOOD + lines(GOOD)[3],
        ["candles out of order, sorted", "identical duplicates dropped: 1"],
    ),
}


@pytest.mark.parametrize("form", ODD_FORMS)
def test_odd_forms_are_normalised_and_told_without_losing_a_row(market, form):
    csv, notes = ODD_FORMS[form]
    put(market / "mirror", MONTH, csv)
    report = served(market)
    assert report.exit == 0
    assert btc(report).notes == [f"{MONTH}: {note}" for note in notes]
    assert check_store(market, report).height == 91 * 24


def test_of_conflicting_duplicates_none_is_believed_until_a_daily_file_decides(market):
    conflicting = edit(GOOD, 30, 8, b"7")
    put(market / "mirror", MONTH, GOOD + lines(conflicting)[30])
    report = served(market)
    assert [(h["bars"], h["cause"]) for h in btc(report).holes] == [(1, "quarantined")]
    assert report.exit == 3
    assert any("conflicting candles dropped: 1" in note for note in btc(report).notes)
    check_store(market, report)
    put(market / "mirror", source_file(BTC, "2024-02-02"))
    put(market / "mirror", MONTH, GOOD + lines(conflicting)[30] + lines(GOOD)[3])  # published again
    report = served(market)
    assert btc(report).holes == []
    assert check_store(market, report).height == 91 * 24


def test_a_short_month_is_partial_and_daily_files_repair_it(market):
    put(market / "mirror", MONTH, b"".join(lines(GOOD)[:168]))
    report = served(market)
    assert report.exit == 3
    assert btc(report).holes == [
        {
            "from": "2024-02-08T00:00:00Z",
            "to": "2024-03-01T00:00:00Z",
            "bars": 528,
            "cause": "absent at source",
        }
    ]
    put(market / "mirror", MONTH, b"".join(lines(GOOD)[:169]))
    for day in range(8, 30):
        put(market / "mirror", source_file(BTC, f"2024-02-{day:02}"))
    report = served(market)
    assert btc(report).holes == []
    assert report.exit == 0
    check_store(market, report)


def test_a_republished_file_replaces_its_part(market):
    served(market)
    changed = edit(edit(GOOD, 3, 8, b"7"), 4, 8, b"7")
    put(market / "mirror", MONTH, changed)
    served(market)
    got = read_klines(market / "home", key("BTCUSDT", "1h")).filter(pl.col("count") == 7)
    assert got.height == 2


def test_a_good_file_published_later_leaves_the_quarantine(market):
    put(market / "mirror", MONTH, BAD_CONTENTS["NaN"][0])
    served(market)
    put(market / "mirror", MONTH)
    report = served(market)
    assert report.exit == 0
    assert not [p for p in (market / "home/quarantine").rglob("*") if p.is_file()]
    check_store(market, report)


def test_nothing_new_means_listings_only_and_no_write(market):
    first = served(market)
    before = stored(market / "home")
    stamps = {p: p.stat().st_mtime_ns for p in (market / "home").rglob("*") if p.is_file()}
    hook = Misbehaving("nothing", "500")
    again = served(market, hook)
    assert again.series == first.series
    assert all(name.startswith("data/") and name.endswith("/1h/") for name in hook.asked)
    assert stored(market / "home") == before
    assert {p: p.stat().st_mtime_ns for p in (market / "home").rglob("*") if p.is_file()} == stamps


@pytest.mark.parametrize("period", ["2024-01", "2024-03"])
def test_another_symbols_file_is_noticed_at_either_end_of_a_series(market, period):
    put(market / "mirror", source_file(BTC, period), csv_of(source_file(key("SHIBUSDT"), period)))
    report = served(market)
    assert any("another symbol" in note and period in note for note in btc(report).notes), btc(report).notes
    check_store(market, report)


@pytest.mark.parametrize("factor", [1000, 1 / 10])
@pytest.mark.parametrize("start", ["2024-03-01 00:00", "2024-02-15 05:00"])
def test_another_unit_from_some_candle_on_is_reported_and_kept(market, factor, start):
    for month in ("2024-02", "2024-03", "2024-04"):
        file = source_file(BTC, month)
        later = pl.col("open_time").dt.strftime("%F %R") >= start
        prices = [pl.when(later).then(pl.col(name) * factor).otherwise(name).alias(name) for name in PRICES]
        put(market / "mirror", file, simulator.to_csv(frame(file).with_columns(prices), "1h", decimals=None))
    report = served(market, coins="BTC", as_of="2024-05-01")
    assert (report.exit, btc(report).files["ok"], btc(report).rows) == (3, 4, 121 * 24)
    assert f"at {start} UTC: another unit or coin" in btc(report).reason
    assert btc(served(market, coins="BTC", as_of="2024-05-01")).leaps == btc(report).leaps  # of the store


def test_a_checksum_put_right_is_noticed_after_a_week(market, monkeypatch):
    path = market / "mirror" / (MONTH.key + ".CHECKSUM")
    right = path.read_bytes()
    path.write_bytes(simulator.to_checksum(NAME, b"wrong"))
    assert btc(served(market)).files["quarantined"] == 1
    path.write_bytes(right)
    assert btc(served(market)).files["quarantined"] == 1
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 8 * 86_400)
    report = served(market)
    assert report.exit == 0
    check_store(market, report)
