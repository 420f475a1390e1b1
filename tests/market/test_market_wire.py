"""What servers say between the lines: listings of every shape, redirects, dates, encodings, sizes."""

import gzip
import re
import socket
import time
from email.utils import formatdate
from hashlib import sha256

import polars as pl
import pytest

from schemas.errors import CpbError
from tasks.market import simulator
from tasks.market.client import HttpSource
from tasks.market.klines import read_klines
from tasks.market.layout import Remote, listed_file, period_bounds, source_file
from tasks.market.listing import Catalogue
from tests.tools.folder_mirror import FolderMirror
from tests.tools.market_tools import FAST, Flood, btc, key, listed, listing, put

MONTH = source_file(key(), "2024-02")
WHOLE = 91 * 24


SHAPES = {
    "no namespace": lambda xml, _: re.sub(r' xmlns="[^"]*"', "", xml),
    "another namespace": lambda xml, _: xml.replace("s3.amazonaws.com/doc", "example.org/s3"),
    "a prefixed namespace": lambda xml, _: re.sub(r"(</?)(?=[A-Z])", r"\1s3:", xml).replace(
        "xmlns", "xmlns:s3"
    ),
    "declaration": lambda xml, _: f"<?xml version='1.0' encoding='UTF-8'?>\n{xml}",
    "sizes that are no numbers": lambda xml, _: xml.replace("<Size>", "<Size>²"),
    "truncated, but nothing follows": lambda xml, query: xml.replace(
        "<IsTruncated>false", "<IsTruncated>true" if "marker" not in query else "<IsTruncated>false"
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_listing_is_read_whatever_its_dialect(market, shape):
    report = market.served(listing(market, SHAPES[shape]))
    assert (btc(report).rows, btc(report).files["ok"], report.exit) == (WHOLE, 3, 0)
    assert report.requests <= 9  # two listings or three, six files: no name was guessed


@pytest.mark.parametrize("broken", ["forbidden", "half", "the first page again"])
def test_a_listing_that_breaks_off_is_named_and_stores_nothing(market, monkeypatch, broken):
    monkeypatch.setattr(simulator, "PAGE", 2)

    def change(xml, query):
        if "2024-01.zip" not in query.get("marker", ""):
            return xml
        again = simulator.listing_page(market.folder.keys(query["prefix"]), query | {"marker": ""}).decode()
        return {"forbidden": (403, {}, b"no"), "half": xml[: len(xml) // 2]}.get(broken, again)

    report = market.served(listing(market, change))
    assert (report.exit, btc(report).rows) == (3, 0)
    assert "the listing breaks off after" in btc(report).reason
    assert market.served().exit == 0


def test_names_are_probed_where_only_the_listings_host_is_blocked(market):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        blocked = f"http://127.0.0.1:{free.getsockname()[1]}"
    with simulator.serve(market.folder, lists=False) as url:
        catalogue = Catalogue(HttpSource(url, listing=blocked, limits=FAST))
        files = catalogue.files(key(), "monthly", *period_bounds("2024-02"))
    assert [file.period for file in files] == ["2024-02"]


@pytest.mark.parametrize("status", [301, 501])
def test_names_are_probed_whatever_the_refusal(market, status):
    def hook(handler, name, query):
        return (status, {}, b"no listing here") if not name else None

    assert btc(market.served(hook)).rows == WHOLE


def test_every_pair_is_listed_over_many_pages_without_a_marker(tmp_path, monkeypatch):
    """S3 counts folders as entries of a page; NextMarker is not always there; new pairs have daily files only."""
    pairs = [f"{name}USDT" for name in ("AAA", "BBB", "CCC", "币安人生", "ZZZ")]
    for pair in pairs[:4]:
        put(tmp_path, source_file(key(pair), "2024-01"))
    put(tmp_path, source_file(key("ZZZUSDT"), "2024-03-31"))

    def hook(handler, name, query):
        if name:
            return None
        prefix, marker = query["prefix"], query.get("marker", "")
        folders = sorted(
            {k[: k.index("/", len(prefix)) + 1] for k, *_ in FolderMirror(tmp_path).keys(prefix)}
        )
        left = [f for f in folders if f > marker]
        body = "".join(f"<CommonPrefixes><Prefix>{f}</Prefix></CommonPrefixes>" for f in left[:2])
        more = str(len(left) > 2).lower()
        xml = f"<ListBucketResult><IsTruncated>{more}</IsTruncated>{body}</ListBucketResult>"
        return 200, {}, xml.encode()

    with simulator.serve(FolderMirror(tmp_path), hook) as url:
        assert listed(url) == sorted(pairs)
    assert listed(str(tmp_path)) == sorted(pairs)


def test_a_listing_cannot_name_a_folder_outside_the_store(tmp_path):
    def hook(handler, name, query):
        evil = f"<CommonPrefixes><Prefix>{query['prefix']}../../evilUSDT/</Prefix></CommonPrefixes>"
        return 200, {}, f"<ListBucketResult>{evil}</ListBucketResult>".encode()

    with (
        simulator.serve(FolderMirror(tmp_path), hook) as url,
        pytest.raises(CpbError, match="no pair of a coin"),
    ):
        listed(url)


def test_only_periods_that_exist_are_files():
    for period in ("2024-13", "2024-02-30", "0000-01", "9999-12"):
        assert listed_file(key(), Remote(MONTH.key.replace("2024-02", period))) is None


def once(answer):
    """A hook that answers the first request for the month in its own way."""
    asked = []

    def hook(handler, name, query):
        if name != MONTH.key or asked:
            return None
        asked.append(name)
        return answer

    return hook


def test_a_wait_given_as_a_date_is_obeyed(market):
    soon = {"Retry-After": formatdate(time.time() + 3, usegmt=True)}
    report = market.served(once((429, soon, b"")))
    assert btc(report).rows == WHOLE
    assert any(re.fullmatch("server asked to wait [1-3] s", note) for note in report.notes)


@pytest.mark.parametrize("wait", ["²", "-5", "9" * 5000, "Thu, 99 Foo 2024"])
def test_a_wait_that_makes_no_sense_is_no_wait(market, wait):
    answer = 429, {"Retry-After": wait.encode().decode("latin-1")}, b""
    assert btc(market.served(once(answer))).rows == WHOLE


def test_a_file_that_arrives_compressed_is_the_file(market):
    def hook(handler, name, query):
        body = market.folder.read(name) if name == MONTH.key else None
        return body and (200, {"Content-Encoding": "gzip"}, gzip.compress(body))

    assert btc(market.served(hook)).rows == WHOLE


@pytest.mark.parametrize("told", [b"Content-Length: 800000000\r\n", b""])
def test_a_body_far_larger_than_listed_is_cut_off(market, told):
    """A server that sends gigabytes must not fill the memory of 32 connections."""
    flood = Flood(MONTH.key, b"HTTP/1.1 200 OK\r\n" + told + b"\r\n")
    report = market.served(flood)
    assert any("answer larger than the limit of" in note for note in report.notes)
    assert flood.sent < 50


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"HELLO\r\n\r\n", "ConnectionError: HELLO"),
        (b"", "ConnectionError: Remote end closed connection without response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\nPK", "IncompleteRead(2 bytes read"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nPKxx",
            "DecodeError",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\nConnection: close\r\n\r\nPKxx", "checksum mismatch"),
    ],
)
def test_what_is_no_answer_is_one_plain_sentence(market, raw, says):
    def hook(handler, name, query):
        if name != MONTH.key:
            return None
        handler.wfile.write(raw)
        handler.close_connection = True
        return True

    report = market.served(hook)
    note = next(n for n in report.notes if n.startswith(str(MONTH)))
    assert says in note
    assert "('" not in note
    assert btc(report).rows == WHOLE - 29 * 24


NAME = MONTH.key.rsplit("/", 1)[-1]


@pytest.mark.parametrize(
    "form",
    [
        "{sha}",
        "{sha}\n",
        "{SHA}  {name}",
        "{sha} *{name}\r\n",
        "SHA256 ({name}) = {sha}\n",
        "{zero}  other.zip\n{sha}  {name}\n",
    ],
)
def test_a_checksum_file_of_any_common_form_is_understood(market, form):
    sha = sha256(market.folder.read(MONTH.key)).hexdigest()
    text = form.format(sha=sha, SHA=sha.upper(), name=NAME, zero="0" * 64)
    (market.root / f"{MONTH.key}.CHECKSUM").write_text(text)
    report = market.served()
    assert (btc(report).rows, btc(report).files["unverified"]) == (WHOLE, 0)


@pytest.mark.parametrize(
    "text", ["", "<html>maintenance</html>", "d" * 63, "0" * 64 + " a\n" + "1" * 64 + " b"]
)
def test_a_checksum_file_that_tells_nothing_is_not_taken_for_one(market, text):
    (market.root / f"{MONTH.key}.CHECKSUM").write_text(text)
    report = market.served()
    assert btc(report).files["quarantined"] == 1
    assert any("holds no sha256" in note for note in report.notes)
    assert (
        read_klines(market.home, key("BTCUSDT", "1h")).filter(pl.col("open_time").dt.month() == 2).is_empty()
    )
