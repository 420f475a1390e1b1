"""Bit rot is found, named and fetched anew; one file's damage stops no other series."""

import os
import random
import shutil
import subprocess

import pytest

from schemas.errors import MemberError
from tasks.market.ingest import update_store
from tasks.market.klines import read_klines
from tasks.market.layout import source_file
from tasks.steps import features
from tasks.verify.verification import verify_all
from tests.tools.market_tools import build, key, put, scope
from tests.tools.verifying import verify_market as verify

BTC, ETH = key(), key("ETHUSDT")
FLIPS = 12
FETCH = "cpb ingest --coins BTCUSDT --timeframes 1h --since 2024-02 --as-of 2024-03-01"


@pytest.fixture(scope="module")
def ingested(tmp_path_factory):
    """A mirror and a home that was ingested from it."""
    folder = tmp_path_factory.mktemp("ingested")
    update_store(scope(folder / "home", build(folder / "mirror")))
    return folder


@pytest.fixture
def home(ingested, tmp_path):
    """The test's own copy of that home, with the mirror beside it."""
    shutil.copytree(ingested, tmp_path, dirs_exist_ok=True)
    return tmp_path / "home"


def part(home, month="2024-02", symbol="BTCUSDT"):
    return home / f"klines/interval=1h/symbol={symbol}/{month}.parquet"


def flip(path, seed):
    """Flip one bit somewhere in a file."""
    body = bytearray(path.read_bytes())
    at = random.Random(seed).randrange(len(body) * 8)
    body[at // 8] ^= 1 << at % 8
    path.write_bytes(body)


def outcome(home):
    """The candles, or None where they are refused in a sentence that names the way out."""
    try:
        return read_klines(home, BTC)
    except MemberError as error:
        return (
            None
            if error.code == "damaged" and "`cpb ingest --coins BTCUSDT --timeframes 1h`" in str(error)
            else pytest.fail(str(error))
        )


@pytest.mark.parametrize("seed", range(FLIPS))
def test_a_flipped_bit_in_a_month_is_found_by_reading_and_by_verify(home, seed):
    """A whole read compares each month with its digest; padding and statistics carry no candle."""
    before, body = read_klines(home, BTC), part(home).read_bytes()
    flip(part(home), seed)
    rows = outcome(home)
    assert rows is None or rows.equals(before)
    damage = list(verify(home))
    if rows is None:
        assert [d.path for d in damage] == ["klines/interval=1h/symbol=BTCUSDT/2024-02.parquet"]
        assert damage[0].command == FETCH
    assert part(home).read_bytes() != body  # verify changes nothing


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone", "other candles"])
def test_a_damaged_month_is_fetched_again(home, tmp_path, damage):
    before = read_klines(home, BTC)
    path = part(home)
    if damage == "flip":
        flip(path, 1)
    elif damage == "gone":
        path.unlink()
    elif damage == "other candles":  # a sound file that is not the one on record
        path.write_bytes(part(home, symbol="ETHUSDT").read_bytes())
    else:
        path.write_bytes(path.read_bytes()[:500] if damage == "cut" else b"")
    (damage,) = verify(home)
    assert (damage.path, damage.command) == ("klines/interval=1h/symbol=BTCUSDT/2024-02.parquet", FETCH)
    report = update_store(scope(home, tmp_path / "mirror", since="2024-02", as_of="2024-03-01"))
    assert report.exit == 0
    assert read_klines(home, BTC).equals(before)
    assert not list(verify(home))


def test_ingest_fetches_a_month_anew_that_its_report_cannot_read(home, tmp_path):
    """The report reads the month that `as_of` cuts; the other series is reported all the same."""
    part(home).write_bytes(b"x" * part(home).stat().st_size)
    report = update_store(scope(home, tmp_path / "mirror", as_of="2024-02-10"))
    assert [s.status for s in report.series] == ["complete", "complete"]
    assert any("fetched anew" in note for note in report.notes)


def test_a_damaged_tail_is_passed_over(home, caplog):
    tail = home / "provisional/interval=1h/symbol=BTCUSDT/tail.parquet"
    tail.parent.mkdir(parents=True)
    tail.write_bytes(b"half")
    assert read_klines(home, BTC, confirmed=False).height == 91 * 24
    assert any("ingest --tail" in r.getMessage() for r in caplog.records)
    (damage,) = verify(home)
    assert damage.command == "cpb ingest --coins BTCUSDT --timeframes 1h --tail"


def test_a_damaged_manifest_is_named(home):
    path = home / "manifest.db"
    body = bytearray(path.read_bytes())
    body[4096:8192] = b"\xff" * 4096
    path.write_bytes(body)
    (damage,) = verify(home)
    assert (damage.path, damage.command) == (
        "manifest.db",
        "cpb ingest --coins BTCUSDT,ETHUSDT --timeframes 1h",
    )


def test_a_damaged_manifest_that_markets_share_is_named_once(home):
    (home / "manifest.db").write_bytes(b"no database" * 1000)
    assert [d.path for d in verify(home, "um")] == ["manifest.db"]
    assert [d.path for d in verify_all(home, ("spot", "um", "cm")).damaged] == ["manifest.db"]


@pytest.fixture
def full_disk(tmp_path):
    """Return a function that moves a folder to a disk of its own, which is full then."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(command, check=False).returncode:
        pytest.skip("a small tmpfs needs root")

    def fill(folder):
        shutil.copytree(folder, disk / "home")
        (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free))
        return disk / "home"

    yield fill
    subprocess.run(["umount", "-l", str(disk)], check=False)


def test_candles_on_a_full_disk_are_checked(home, full_disk):
    home = full_disk(home)
    result = verify_all(home, ("spot",))
    assert (result.damaged, result.unchecked) == ([], [])
    assert result.checked > 6


def test_a_manifest_that_sqlite_cannot_open_is_a_sentence_and_the_other_kinds_are_checked(home):
    (home / "manifest.db-wal").mkdir()
    (sentence,) = verify_all(home, ("spot",)).unchecked
    assert "the candles of market spot could not be checked: " in sentence
    assert (
        "manifest.db cannot be opened (unable to open database file); check that its disk has free"
        in sentence
    )


def test_a_damaged_manifest_is_begun_anew_by_the_next_ingest_which_fetches_all_again(home, tmp_path):
    before = read_klines(home, BTC)
    (home / "manifest.db").write_bytes(b"no database" * 1000)
    report = update_store(scope(home, tmp_path / "mirror"))
    assert report.exit == 0
    assert read_klines(home, BTC).equals(before)
    assert not list(verify(home))


def test_a_damaged_month_that_a_step_met_is_fetched_by_the_next_ingest(home, tmp_path):
    before = read_klines(home, BTC)
    flip(part(home), 3)
    failure = features(scope(home, tmp_path / "mirror"), BTC)
    assert (failure.step, failure.code, failure.series) == ("features", "damaged", BTC)
    with pytest.raises(MemberError):  # until then no step goes on with a hole
        read_klines(home, BTC)
    assert update_store(scope(home, tmp_path / "mirror")).exit == 0
    assert read_klines(home, BTC).equals(before)


def test_an_off_grid_month_is_made_again(tmp_path):
    put(tmp_path / "mirror", source_file(BTC, "2018-02"))
    update_store(scope(tmp_path / "home", tmp_path / "mirror", "BTC", as_of="2018-03-01"))
    extra = tmp_path / "home/offgrid/interval=1h/symbol=BTCUSDT/2018-02.parquet"
    extra.parent.mkdir(parents=True)
    extra.write_bytes(b"half")
    (damage,) = verify(tmp_path / "home")
    assert damage.path.startswith("offgrid/")
    update_store(scope(tmp_path / "home", tmp_path / "mirror", "BTC", as_of="2018-03-01"))
    assert not list(verify(tmp_path / "home"))
