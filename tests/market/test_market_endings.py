"""However a run ends (killed, interrupted, disk full, read-only folder), the store is whole or says what it lacks."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import polars as pl
import pytest

from tasks.market.ingest import update_store
from tasks.market.klines import read_klines
from tasks.market.layout import source_file
from tests.tools.market_tools import build, drafts, frame, key, scope

SYMBOLS = ("BTCUSDT", "ETHUSDT", "SOLUSDT", "XRPUSDT")
MONTHS = [f"2023-{m:02}" for m in range(1, 13)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return build(tmp_path_factory.mktemp("mirror"), SYMBOLS, MONTHS)


def start(root, home):
    """`cpb ingest` of four series in a process of its own."""
    options = [
        "--source",
        str(root),
        "--coins",
        "BTC,ETH,SOL,XRP",
        "--timeframes",
        "1h",
        "--as-of",
        "2024-01-01",
    ]
    command = [sys.executable, "-m", "flows.cli", "ingest", *options, "--json"]
    env = os.environ | {"CPB_HOME": str(home), "POLARS_MAX_THREADS": "1"}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def readable_parts(home):
    """Every part in the store can be read and holds true candles only, whatever happened."""
    for symbol in SYMBOLS:
        for path in home.glob(f"klines/interval=1h/symbol={symbol}/*.parquet"):
            assert pl.read_parquet(path).equals(frame(source_file(key(symbol), path.stem)))


@pytest.mark.slow
@pytest.mark.parametrize("_", range(8))
def test_sigkill_at_a_random_moment(root, tmp_path, _):
    home = tmp_path / "home"
    run = start(root, home)
    deadline = time.monotonic() + 60
    while not (home / "writer.lock").exists() and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(random.uniform(0, 1.2))
    run.send_signal(signal.SIGKILL)
    run.communicate()
    readable_parts(home)
    again = start(root, home)
    told = json.loads(again.communicate(timeout=120)[0].splitlines()[-1])
    assert told["exit"] == 0
    assert all(s["rows"] == 365 * 24 and not s["holes"] for s in told["series"])
    assert not drafts(home)
    readable_parts(home)


@pytest.mark.slow
def test_ctrl_c_leaves_a_whole_store_and_no_temp_file(root, tmp_path):
    home = tmp_path / "home"
    run = start(root, home)
    while not list(home.glob("klines/*/*/*.parquet")) and run.poll() is None:
        time.sleep(0.002)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=120)
    if run.returncode != 0:  # it may have been faster than the signal
        assert run.returncode == 130, err
        assert "Traceback" not in err
    assert not drafts(home)
    readable_parts(home)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="a small tmpfs needs root")
def test_a_full_disk_is_one_sentence_and_loses_nothing(root, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], check=False
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        run = start(root, disk / "home")
        _, err = run.communicate(timeout=120)
        assert run.returncode == 1
        assert f"no space left on the disk at {disk}" in err
        assert "free some" in err
        assert "Traceback" not in err
        assert not drafts(disk)
        readable_parts(disk / "home")
        subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
        told = json.loads(start(root, disk / "home").communicate(timeout=120)[0].splitlines()[-1])
        assert told["exit"] == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_a_second_writer_gets_one_sentence(root, tmp_path):
    home = tmp_path / "home"
    runs = [start(root, home), start(root, home)]
    ends = [(r.communicate(timeout=120), r.returncode) for r in runs]
    codes = sorted(code for _, code in ends)
    assert codes in ([0, 0], [0, 1])  # one after the other, or one refused
    refused = [err for (_, err), code in ends if code == 1]
    assert all(err.count("\n") == 1 and "another cpb is writing" in err for err in refused)
    readable_parts(home)


def test_readers_see_old_or_new_but_never_half(root, tmp_path):
    home = tmp_path / "home"
    made = scope(home, root, coins="BTC", as_of="2024-01-01")
    update_store(made)
    before = read_klines(home, key("BTCUSDT", "1h"))
    part = home / "klines/interval=1h/symbol=BTCUSDT/2023-05.parquet"
    (part.with_name(".2023-06.parquet.0123456789ab")).write_bytes(b"half a file")  # what a killed run leaves
    assert read_klines(home, key("BTCUSDT", "1h")).equals(before)
    update_store(made)
    assert not drafts(home)
