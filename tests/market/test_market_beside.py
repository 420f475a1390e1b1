"""`sim` is a market of its own, and nothing of the user's is touched."""

import sqlite3
from contextlib import closing

import pytest

from schemas.errors import BusyError, CpbError
from tasks.market.client import Limits
from tasks.market.ingest import update_store
from tasks.market.store_files import writer_lock
from tests.tools.market_tools import FAST, build, key, scope

SIM = key("BTCUSDT", "1h", "sim")
USERS = (
    "reports/summary.txt",
    "hub/index.html",
    "features/notes.md",
    "cache/browser.bin",
    "fleets/cars.csv",
    "klines/interval=1h/symbol=BTCUSDT/my notes.txt",
    "quarantine/letter.txt",
    "sim.txt",
    "data.parquet",
    "features/interval=1h/symbol=BTCUSDT/plot.png",
    "manifest.db-backup",
)


def simulated(home, coins="BTC", **options):
    return update_store(scope(home, "sim", coins, as_of="2025-03-01", since="2025-01", **options))


def contents(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def add_users_files(home):
    for place in USERS:
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        (home / place).write_text(f"mine: {place}")


@pytest.mark.parametrize("source", ["real", "misspelt", "unreachable", "sim"])
def test_no_run_destroys_anything(tmp_path, source):
    """Neither a misspelt coin, nor a source out of reach, nor real candles after simulated ones."""
    home = tmp_path / "home"
    simulated(home)
    add_users_files(home)
    mirror = build(tmp_path / "mirror", ["BTCUSDT"])
    before = contents(home)
    if source == "unreachable":
        with pytest.raises(CpbError) as caught:
            update_store(scope(home, "http://127.0.0.1:9", "BTC"), limits=Limits(tries=1))
        assert caught.value.code == "unreachable"
    elif source == "sim":
        assert simulated(home, "NOPECOIN").series[0].status == "failed"
    else:
        report = update_store(scope(home, mirror, "BTC" if source == "real" else "NOPECOIN"), limits=FAST)
        assert report.series[0].status == ("complete" if source == "real" else "failed")
    after = contents(home)
    assert {name: after.get(name) for name in before} == before


def test_leftovers_are_swept_and_similar_files_of_the_users_are_not(tmp_path):
    root, home = build(tmp_path / "mirror", ["BTCUSDT"]), tmp_path / "home"
    folder = home / "klines/interval=1h/symbol=BTCUSDT"
    folder.mkdir(parents=True)
    ours = [folder / ".2024-02.parquet.0123456789ab"]
    users = [
        home / "cache/download.tmp",
        home / "reports/draft.tmp",
        folder / "notes.tmp",
        folder / ".x.0123456789ab",
    ]
    for path in (*ours, *users):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    update_store(scope(home, root, "BTC"))
    assert [path.exists() for path in ours] == [False]
    assert all(path.exists() for path in users)


def test_real_candles_are_fetched_while_the_simulator_writes(tmp_path):
    """They share no lock, no manifest and no file; two real writers do."""
    root, home = build(tmp_path / "mirror", ["BTCUSDT"]), tmp_path / "home"
    with writer_lock(home / "sim"):
        assert update_store(scope(home, root, "BTC")).exit == 0
        with pytest.raises(BusyError):
            simulated(home)
    with writer_lock(home):
        assert simulated(home).exit == 0
        with pytest.raises(BusyError):
            update_store(scope(home, root, "BTC"))
    assert {p.name for p in home.glob("**/manifest.db")} == {"manifest.db"}
    with closing(sqlite3.connect(home / "manifest.db")) as db:
        assert db.execute("SELECT DISTINCT market FROM parts").fetchall() == [("spot",)]
    with closing(sqlite3.connect(home / "sim/manifest.db")) as db:
        assert db.execute("SELECT DISTINCT market FROM parts").fetchall() == [("sim",)]
