"""A damaged manifest: whatever byte is flipped, only what its rows recorded is fetched again, and it is always told."""

import random
import re
import shlex
import shutil
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing

import pytest

from tasks.market import manifest as manifests
from tasks.market.folder import FolderSource
from tasks.market.ingest import update_store
from tasks.market.klines import read_klines
from tasks.market.manifest import Anomaly, Manifest
from tests.tools.market_tools import build, key, scope
from tests.tools.verifying import verify_market

BTC, ETH = key(), key("ETHUSDT")
CELLS = {
    "files": ("market", "symbol", "interval", "period", "key", "version", "sha256", "status", "facts"),
    "parts": ("market", "symbol", "interval", "month", "digest", "runs", "edges"),
    "oddities": ("symbol", "kind", "detail"),
    "searched": ("symbol",),
}


@pytest.fixture(scope="module")
def ingested(tmp_path_factory):
    """A mirror and a home that was ingested from it, with a row in every table."""
    folder = tmp_path_factory.mktemp("ingested")
    update_store(scope(folder / "home", build(folder / "mirror")))
    with Manifest(folder / "home/manifest.db") as manifest:
        manifest.save(BTC, anomalies=[Anomaly(1_706_000_000_000_000, "off-grid", "a detail")])
        manifest.save_searched(BTC, [(1, 2, 3)])
    return folder


@pytest.fixture
def home(ingested, tmp_path):
    shutil.copytree(ingested, tmp_path, dirs_exist_ok=True)
    return tmp_path / "home"


@pytest.fixture
def fetched(monkeypatch):
    """The files that are fetched from a folder, without their CHECKSUM."""
    keys = Counter()
    get = FolderSource.get

    def counted(self, name, max_bytes=0):
        if name.endswith(".zip"):
            keys[name.rsplit("/", 1)[1]] += 1
        return get(self, name, max_bytes)

    monkeypatch.setattr(FolderSource, "get", counted)
    return keys


def again(home, **more):
    return update_store(scope(home, home.parent / "mirror", **more))


def flip_cell(home, table, column, row=0):
    """Flip one bit in the first byte of a cell, in the file itself: SQLite stores the values of a row side by side."""
    path = home / "manifest.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        cursor = db.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4 LIMIT 1 OFFSET {row}")
        names, values = [name for name, *_ in cursor.description], cursor.fetchone()
    content = bytearray(path.read_bytes())
    sizes = list(map(_size, values))
    begin = content.rindex(values[-1].encode()) - sum(sizes[:-1])
    content[begin + sum(sizes[: names.index(column)])] ^= 1
    path.write_bytes(content)


def _size(value):
    """Return the number of bytes of a value in SQLite's record format."""
    if isinstance(value, str):
        return len(value.encode())
    return (
        0
        if value in (0, 1)
        else next(n for n in (1, 2, 3, 4, 6, 8) if -(1 << 8 * n - 1) <= value < 1 << 8 * n - 1)
    )


@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table, columns in CELLS.items() for column in columns]
)
def test_a_flipped_cell_is_told_and_only_its_month_is_fetched_again(home, fetched, caplog, table, column):
    candles = {series: read_klines(home, series) for series in (BTC, ETH)}
    flip_cell(home, table, column)
    (damage,) = verify_market(home)
    assert damage.path == "manifest.db"
    assert damage.command == "cpb ingest --coins BTCUSDT,ETHUSDT --timeframes 1h"
    report = again(home)
    assert report.exit == 0
    assert "manifest.db is damaged" in caplog.text
    assert list(verify_market(home)) == []
    assert {series: read_klines(home, series) for series in candles}.keys() == candles.keys()
    assert all(read_klines(home, series).equals(rows) for series, rows in candles.items())
    assert (home / "manifest.db.damaged").exists()
    most = {"files": 1, "parts": 1, "searched": 0}.get(table)
    if most is not None:
        assert sum(fetched.values()) <= most
        assert not [name for name in fetched if name.startswith("ETH")]
    else:  # which months the lost anomaly was of is not known
        assert {name[:3] for name in fetched} >= {"BTC"}
    fetched.clear()
    again(home)
    assert not fetched


def test_offline_the_series_of_intact_rows_go_on(home, caplog):
    flip_cell(home, "parts", "runs", row=1)
    report = update_store(scope(home, home.parent / "mirror").model_copy(update={"offline": True}))
    assert {entry.series.symbol: entry.status for entry in report.series} == {
        "BTCUSDT": "partial",
        "ETHUSDT": "complete",
    }
    assert "its intact rows are used" in caplog.text
    assert not (home / "manifest.db.damaged").exists()


def test_rows_before_and_after_an_unreadable_page_are_kept(home, fetched):
    with Manifest(home / "manifest.db") as manifest:
        many = [
            manifests.FileRecord(f"{year}-{m:02}", "k" * 200, "v")
            for year in range(1600, 1700)
            for m in range(1, 13)
        ]
        manifest.save(BTC, many)
    with closing(sqlite3.connect(home / "manifest.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray((home / "manifest.db").read_bytes())
    page = content.find(b"1650-06") // 4096
    content[page * 4096 : page * 4096 + 8] = b"\xff" * 8
    (home / "manifest.db").write_bytes(content)
    again(home)
    with Manifest(home / "manifest.db") as manifest:
        periods = manifest.files(BTC).keys()
        assert manifest.damage() == ""
    assert {"1600-01", "1699-12"} <= periods
    assert 1000 < len(periods) < 1203
    assert not [name for name in fetched if name.startswith("ETH")]


@pytest.mark.parametrize("how", ["missing", "empty"])
def test_a_manifest_that_is_gone_is_told_and_its_candles_are_fetched_again(home, fetched, caplog, how):
    candles = read_klines(home, BTC)
    for path in home.glob("manifest.db*"):
        path.unlink()
    if how == "empty":
        (home / "manifest.db").touch()
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    (damage,) = verify_market(home)
    assert (damage.path, damage.reason) == ("manifest.db", f"it is {how}, though candles are stored")
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    assert damage.command == "cpb ingest --coins BTCUSDT,ETHUSDT --timeframes 1h"
    assert again(home).exit == 0
    assert f"it is {how}, though candles are stored" in caplog.text
    assert len(fetched) == 6
    assert read_klines(home, BTC).equals(candles)
    assert list(verify_market(home)) == []


def test_a_damaged_manifest_hides_no_damaged_month(home):
    flip_cell(home, "files", "key")
    month = home / "klines/interval=1h/symbol=ETHUSDT/2024-02.parquet"
    month.write_bytes(month.read_bytes()[:-9])
    assert [damage.path for damage in verify_market(home)] == [
        "manifest.db",
        "klines/interval=1h/symbol=ETHUSDT/2024-02.parquet",
    ]


def test_without_candles_a_damaged_manifest_is_removed(tmp_path):
    with Manifest(tmp_path / "manifest.db") as manifest:
        manifest.save_searched(BTC, [(1, 2, 3)])
    flip_cell(tmp_path, "searched", "symbol")
    (damage,) = verify_market(tmp_path)
    subprocess.run(shlex.split(damage.command), check=True)
    assert list(verify_market(tmp_path)) == []


def _flip(content, rng):
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def _flip_header(content, rng):
    content[rng.randrange(100)] ^= 1 << rng.randrange(8)


def _flip_schema(content, rng):
    content[rng.randrange(4096)] ^= 1 << rng.randrange(8)


def _page(content, rng):
    begin = rng.randrange(len(content) // 4096) * 4096
    content[begin : begin + 4096] = rng.randbytes(4096)


def _truncate(content, rng):
    del content[rng.randrange(len(content)) :]


def _text(content, rng):
    content[:] = b"a note of mine\n" * rng.randrange(1, 900)


@pytest.mark.parametrize("damage", [_flip, _flip_header, _flip_schema, _page, _truncate, _text])
def test_no_damage_of_the_file_ends_in_a_traceback_or_is_used(home, damage, caplog):
    """Afterwards the store has the same candles, and each row is one that was written."""
    candles = {series: read_klines(home, series) for series in (BTC, ETH)}
    path, rng = home / "manifest.db", random.Random(damage.__name__)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = path.read_bytes()
    with Manifest(path) as manifest:
        rows = _all_rows(manifest)
    for _ in range(25):
        for file in home.glob("manifest.db*"):
            file.unlink()
        content = bytearray(whole)
        damage(content, rng)
        path.write_bytes(content)
        caplog.clear()
        found = [d.path for d in verify_market(home)]
        assert path.read_bytes() == content
        report = again(home)
        assert report.exit == 0
        assert bool(found) == ("manifest.db is damaged" in caplog.text)
        with Manifest(path) as manifest:
            assert manifest.damage() == ""
            if not found:  # the byte is of no row: padding, or a counter of SQLite
                assert _all_rows(manifest) == rows
            assert manifest.parts(BTC).keys() == {"2024-01", "2024-02", "2024-03"}
        assert all(read_klines(home, series).equals(rows) for series, rows in candles.items())
        assert not re.search(r"\.manifest\.db\.", " ".join(p.name for p in home.iterdir()))


def _all_rows(manifest):
    return [
        (manifest.files(s), manifest.parts(s), manifest.anomalies(s), manifest.searched(s))
        for s in (BTC, ETH)
    ]
