"""Sources that want to hang cpb, fill its memory, or give it numbers that are no prices."""

import os
import re

import pytest

from schemas.errors import CpbError, UsageError
from tasks.market import simulator
from tasks.market.client import Limits, NotFound, SourceFault
from tasks.market.fetch import MAX_CSV
from tasks.market.folder import FolderSource
from tasks.market.ingest import update_store
from tasks.market.layout import source_file
from tasks.market.listing import MAX_PAGES
from tests.tools.folder_mirror import FolderMirror
from tests.tools.market_tables import hours, spoiled
from tests.tools.market_tables import stored as stored_table
from tests.tools.market_tools import FAST, Misbehaving, btc, build, csv_of, key, listed, listing, put, scope

MONTH = source_file(key(), "2024-02")


def from_folder(tmp_path):
    return update_store(scope(tmp_path / "home", tmp_path / "mirror", "BTC", since="2024-01"), limits=FAST)


@pytest.mark.parametrize("name", [MONTH.key, f"{MONTH.key}.CHECKSUM"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_in_a_mirror_is_not_read(tmp_path, name, kind):
    root = build(tmp_path / "mirror", symbols=("BTCUSDT",))
    (root / name).unlink()
    os.mkfifo(root / name) if kind == "pipe" else (root / name).symlink_to("/dev/zero")
    report = from_folder(tmp_path)
    assert report.exit == 3
    holes = sum(hole["bars"] for hole in btc(report).holes)
    assert btc(report).rows + holes == 91 * 24
    assert holes == 29 * 24
    if kind == "pipe":
        assert any("not a regular file" in note for note in btc(report).notes), btc(report).notes


def test_a_file_of_a_mirror_is_read_up_to_the_limit_alone(tmp_path):
    (tmp_path / "data").mkdir()
    with (tmp_path / "data/huge.zip").open("wb") as file:
        file.truncate(Limits().body + 1)  # a sparse file
    source = FolderSource(tmp_path)
    with pytest.raises(SourceFault, match="larger than the limit"):
        source.get("data/huge.zip")
    with pytest.raises(SourceFault, match="limit of 100 bytes"):
        source.get("data/huge.zip", 100)
    assert len(source.get("data/huge.zip", 64 << 20)) == Limits().body + 1
    with pytest.raises(NotFound):
        source.get("data")


def test_a_size_that_the_source_announces_does_not_lift_the_limit(tmp_path):
    root = build(tmp_path / "mirror", symbols=("BTCUSDT",))
    with (root / MONTH.key).open("r+b") as file:
        file.truncate(MAX_CSV + 1)  # a sparse file
    report = from_folder(tmp_path)
    assert any("larger than the limit" in note for note in btc(report).notes), btc(report).notes
    assert sum(hole["bars"] for hole in btc(report).holes) == 29 * 24


def growing(market_, count=1, name="{prefix}x{number:09d}.zip", most=10**6):
    """A listing each of whose pages names new keys, and is truncated; pages that were asked for."""
    pages = []

    def change(_xml, query):
        pages.append(query)
        first = len(pages) * count
        keys = [name.format(prefix=query["prefix"], number=first + k) for k in range(count)]
        body = "".join(f"<Contents><Key>{k}</Key><Size>1</Size></Contents>" for k in keys)
        marker = f"{query['prefix']}z{len(pages):09d}"
        more = str(len(pages) < most).lower()
        return (
            f"<ListBucketResult><IsTruncated>{more}</IsTruncated><NextMarker>{marker}</NextMarker>{body}"
            "</ListBucketResult>"
        )

    return listing(market_, change), pages


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "does not end after 200 entries"),
        ({"count": 3000}, "does not end after 201,000 entries"),
        ({"name": "{prefix}same.zip"}, "repeats its entries"),
        ({"name": "elsewhere/{number}.zip"}, "'elsewhere/1.zip', which is not below it"),
        ({"count": 0}, "repeats its entries"),
    ],
)
def test_a_listing_that_does_not_end_is_one_sentence(market, options, why):
    hook, pages = growing(market, **options)
    report = market.served(hook)
    assert (report.exit, btc(report).rows) == (3, 0)
    assert why in btc(report).reason
    assert len(pages) <= MAX_PAGES
    assert market.served().exit == 0


ODD = {
    "utf-7": b'<?xml version="1.0" encoding="utf-7"?><ListBucketResult/>',
    "unknown": b'<?xml version="1.0" encoding="klingon"?><ListBucketResult/>',
    "no text": b'<?xml version="1.0" encoding="hex"?><ListBucketResult/>',
    "utf-32": b'<?xml version="1.0" encoding="utf-32"?><ListBucketResult/>',
    "idna": b'<?xml version="1.0" encoding="idna"?><ListBucketResult/>',
    "entities": b'<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;">]><ListBucketResult>&c;</ListBucketResult>',
}


@pytest.mark.parametrize("odd", ODD)
def test_a_listing_in_an_odd_encoding_is_one_sentence(market, odd):
    report = market.served(listing(market, lambda _xml, _query: (200, {}, ODD[odd])))
    assert (report.exit, btc(report).rows) == (3, 0)
    assert re.search("encoding that cannot be read|XML entities", btc(report).reason)
    assert "\n" not in btc(report).reason
    hook = listing(market, lambda _xml, _query: (200, {}, ODD[odd]))
    with simulator.serve(FolderMirror(market.root), hook) as url, pytest.raises(CpbError) as caught:
        listed(url)
    assert re.search("encoding that cannot be read|XML entities", str(caught.value))


@pytest.mark.parametrize("price", ["1e308", "1e16", "1e-16"])
def test_a_price_that_is_no_money_is_quarantined(tmp_path, price):
    root = build(tmp_path / "mirror", symbols=("BTCUSDT",))
    rows = csv_of(MONTH).decode().splitlines()
    cells = rows[3].split(",")
    rows[3] = ",".join([cells[0], *[price] * 4, *cells[5:]])
    put(root, MONTH, "\n".join(rows).encode())
    report = from_folder(tmp_path)
    assert btc(report).files["quarantined"] == 1
    assert sum(hole["bars"] for hole in btc(report).holes) == 29 * 24


def test_a_volume_that_is_no_amount_is_quarantined(tmp_path):
    root = build(tmp_path / "mirror", symbols=("BTCUSDT",))
    rows = csv_of(MONTH).decode().splitlines()
    cells = rows[3].split(",")
    rows[3] = ",".join([*cells[:5], "1e308", *cells[6:]])
    put(root, MONTH, "\n".join(rows).encode())
    assert btc(from_folder(tmp_path)).files["quarantined"] == 1


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_with_an_impossible_price_stores_nothing(tmp_path, suffix):
    table = spoiled(hours(), 30, **dict.fromkeys(("open", "high", "low", "close"), 1e308))
    path = tmp_path / f"BTCUSDT-1h.{suffix}"
    table.write_csv(path) if suffix == "csv" else table.write_parquet(path)
    with pytest.raises(UsageError, match="prices must lie between"):
        stored_table(tmp_path / "home", path)
    assert not list((tmp_path / "home").rglob("*.parquet"))


@pytest.mark.parametrize("factor", [1e-12, 1e-10, 1e10])
def test_tiny_and_redenominated_prices_are_stored(tmp_path, factor):
    names = ("open", "high", "low", "close")
    table = hours().with_columns(hours()[name] * (factor / hours()["close"][0]) for name in names)
    table.write_parquet(tmp_path / "BTCUSDT-1h.parquet")
    report, candles = stored_table(tmp_path / "home", tmp_path / "BTCUSDT-1h.parquet")
    assert (report.exit, candles.height) == (0, 100)


def test_a_table_that_is_a_pipe_is_one_sentence(tmp_path):
    os.mkfifo(tmp_path / "BTCUSDT-1h.csv")
    with pytest.raises(UsageError, match="not a regular file"):
        stored_table(tmp_path / "home", tmp_path / "BTCUSDT-1h.csv")


def test_a_fault_that_passes_is_still_tried_again(market):
    assert market.served(Misbehaving(f"{MONTH.key}", "500", times=1)).exit == 0
