"""`sim` is a market of its own: homes of earlier versions are moved once, and nothing of the user's is touched."""

import shutil
import sqlite3
from contextlib import closing

import polars as pl
import pytest
from market_tools import FAST, build, key, scope

from schemas.errors import BusyError, CpbError
from tasks.market import migrate
from tasks.market.client import Limits
from tasks.market.ingest import ingest
from tasks.market.migrate import adopt_simulated
from tasks.market.store import read_klines, writer_lock

SIM = key("BTCUSDT", "1h", "sim")
USERS = ("reports/summary.txt", "hub/index.html", "features/notes.md", "cache/browser.bin", "fleets/cars.csv",
         "klines/interval=1h/symbol=BTCUSDT/my notes.txt", "quarantine/letter.txt", "sim.txt", "data.parquet",
         "features/interval=1h/symbol=BTCUSDT/plot.png", "manifest.db-backup")  # fmt: skip


def simulated(home, coins="BTC", **options):
    return ingest(scope(home, "sim", coins, as_of="2025-03-01", since="2025-01", **options))


def contents(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def old_home(tmp_path, name="home"):
    """A home as earlier versions left it: simulated candles and what was made of them at the top, as spot."""
    home = tmp_path / name
    simulated(home)
    read_klines(home, SIM)  # leaves a cache
    for path in list((home / "sim").iterdir()):
        path.rename(home / path.name)
    (home / "sim").rmdir()
    with closing(sqlite3.connect(home / "manifest.db")) as db, db:
        for table in ("files", "parts", "oddities", "searched"):
            db.execute(f"UPDATE {table} SET market='spot'")
    files = {
        "features/interval=1h/symbol=BTCUSDT/0123456789abcdef-01234567.parquet": b"features",
        "forecasts/interval=1h/symbol=BTCUSDT/2025-02.parquet": b"forecasts",
        "issued/interval=1h/symbol=BTCUSDT/2025-02.parquet": b"issued",
        "ledger/interval=1h/symbol=BTCUSDT/2025-02.parquet": b"ledger",
        "quarantine/spot/monthly/klines/BTCUSDT/1h/BTCUSDT-1h-2024-12.zip": b"refused",
        "fleets/0123abcd/job.json": b"{}",
        "fleets/0123abcd/members/BTCUSDT-1h/model/config.json": b"{}",
    }
    for place, body in files.items():
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        (home / place).write_bytes(body)
    (home / "SIMULATED").touch()
    return home


def add_users_files(home):
    for place in USERS:
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        (home / place).write_text(f"mine: {place}")


def check_moved(home, rows):
    assert read_klines(home, SIM).equals(rows)
    with pytest.raises(CpbError) as caught:
        read_klines(home, key())  # none of them counts as real
    assert caught.value.code == "no-candles"
    report = simulated(home)
    assert (report.exit, report.requests) == (0, 1)  # all was found again: a listing
    assert not (home / "sim/SIMULATED").exists()
    assert (home / "sim/forecasts/interval=1h/symbol=BTCUSDT/2025-02.parquet").read_bytes() == b"forecasts"
    assert (home / "sim/fleets/0123abcd/members/BTCUSDT-1h/model/config.json").exists()
    assert (home / "sim/quarantine/spot/monthly/klines/BTCUSDT/1h/BTCUSDT-1h-2024-12.zip").exists()


def test_simulated_candles_move_once_and_nothing_of_the_users_does(tmp_path, caplog):
    home = old_home(tmp_path)
    rows = pl.read_parquet(sorted(home.glob("klines/*/*/*.parquet")), hive_partitioning=False)
    add_users_files(home)
    adopt_simulated(home)
    (sentence,) = [r.getMessage() for r in caplog.records]
    assert "earlier version" in sentence
    assert str(home / "sim") in sentence
    check_moved(home, rows)
    left = {
        str(p.relative_to(home))
        for p in home.rglob("*")
        if p.is_file() and "sim" not in p.relative_to(home).parts
    }
    assert left == {*USERS, "writer.lock"}
    assert all((home / place).read_text() == f"mine: {place}" for place in USERS)
    caplog.clear()
    adopt_simulated(home)
    assert not caplog.records


@pytest.mark.parametrize("kill_at", range(0, 12, 2))
def test_a_move_that_was_killed_goes_on(tmp_path, monkeypatch, kill_at):
    home, whole = old_home(tmp_path), old_home(tmp_path, "whole")
    adopt_simulated(whole)
    rows = read_klines(whole, SIM)
    renames = 0
    rename = migrate.Path.rename

    def killed(self, target):
        nonlocal renames
        renames += 1
        if renames > kill_at:
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(migrate.Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            adopt_simulated(home)
    adopt_simulated(home)
    check_moved(home, rows)


def test_two_simulated_stores_are_both_left_and_named(tmp_path):
    home = old_home(tmp_path)
    shutil.copytree(home / "klines", home / "sim/klines")
    before = {k: v for k, v in contents(home).items() if k != "writer.lock"}
    with pytest.raises(CpbError, match="nothing was moved") as caught:
        adopt_simulated(home)
    assert (caught.value.code, "\n" in str(caught.value)) == ("simulated-twice", False)
    assert {k: v for k, v in contents(home).items() if not k.endswith("writer.lock")} == before


def test_a_simulated_store_beside_a_real_one_gets_its_market(tmp_path):
    """Earlier versions put simulated candles into `sim` where the home held real ones, and called them spot."""
    home = old_home(tmp_path, "old")
    real = tmp_path / "home"
    ingest(scope(real, build(tmp_path / "mirror", ["BTCUSDT"]), "BTC"))
    before = read_klines(real, key())
    home.rename(real / "sim")
    report = simulated(real)
    assert (report.exit, report.requests, report.series[0].rows) == (0, 1, 59 * 24)
    assert read_klines(real, key()).equals(before)


def test_a_file_of_the_users_called_simulated_stays(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "SIMULATED").write_text("my list of simulated annealing runs")
    ingest(scope(home, build(tmp_path / "mirror", ["BTCUSDT"]), "BTC"))
    assert (home / "SIMULATED").read_text().startswith("my list")


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
            ingest(scope(home, "http://127.0.0.1:9", "BTC"), limits=Limits(tries=1))
        assert caught.value.code == "unreachable"
    elif source == "sim":
        assert simulated(home, "NOPECOIN").series[0].status == "failed"
    else:
        report = ingest(scope(home, mirror, "BTC" if source == "real" else "NOPECOIN"), limits=FAST)
        assert report.series[0].status == ("complete" if source == "real" else "failed")
    after = contents(home)
    assert {name: after.get(name) for name in before} == before


def test_leftovers_are_swept_and_similar_files_of_the_users_are_not(tmp_path):
    root, home = build(tmp_path / "mirror", ["BTCUSDT"]), tmp_path / "home"
    folder = home / "klines/interval=1h/symbol=BTCUSDT"
    folder.mkdir(parents=True)
    ours = [folder / ".2024-02.parquet.0123456789ab", folder / "2024-02.parquet.tmp"]
    users = [
        home / "cache/download.tmp",
        home / "reports/draft.tmp",
        folder / "notes.tmp",
        folder / ".x.0123456789ab",
    ]
    for path in (*ours, *users):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    ingest(scope(home, root, "BTC"))
    assert [path.exists() for path in ours] == [False, False]
    assert all(path.exists() for path in users)


def test_real_candles_are_fetched_while_the_simulator_writes(tmp_path):
    """They share no lock, no manifest and no file; two real writers do."""
    root, home = build(tmp_path / "mirror", ["BTCUSDT"]), tmp_path / "home"
    with writer_lock(home / "sim"):
        assert ingest(scope(home, root, "BTC")).exit == 0
        with pytest.raises(BusyError):
            simulated(home)
    with writer_lock(home):
        assert simulated(home).exit == 0
        with pytest.raises(BusyError):
            ingest(scope(home, root, "BTC"))
    assert {p.name for p in home.glob("**/manifest.db")} == {"manifest.db"}
    with closing(sqlite3.connect(home / "manifest.db")) as db:
        assert db.execute("SELECT DISTINCT market FROM parts").fetchall() == [("spot",)]
    with closing(sqlite3.connect(home / "sim/manifest.db")) as db:
        assert db.execute("SELECT DISTINCT market FROM parts").fetchall() == [("sim",)]
