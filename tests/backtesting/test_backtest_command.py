"""`cpb backtest` from the command line on the simulated market, with real trainer processes."""

import json
import os
import subprocess
import sys

import polars as pl
import pytest


def cpb(*args, home, program=(sys.executable, "-m", "flows.cli")):
    env = os.environ | {"CPB_HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.run([*program, *args], env=env, capture_output=True, text=True)


@pytest.mark.parametrize(("option", "value"), [("--baselines", "magic"), ("--out", "file")])
def test_what_cannot_be_done_is_refused_before_any_work(tmp_path, option, value):
    (tmp_path / "file").touch()
    given = str(tmp_path / value) if value == "file" else value
    done = cpb("backtest", "--source", "sim", "--preset", "smoke", option, given, home=tmp_path / "home")
    assert done.returncode == 2, done.stderr
    assert value in done.stderr
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
def test_backtest_writes_everything_it_promises(tmp_path, forking):
    out = tmp_path / "out"
    asked = [
        "backtest", "--source", "sim", "--coins", "BTC,ETH", "--preset", "smoke", "--architectures",
        "har,har-universal", "--folds", "2", "--check-lookahead", "--out", str(out), "--json",
    ]  # fmt: skip
    done = cpb(*asked, home=tmp_path / "home", program=[forking / "cpb"])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["pooled"]) == {"random-walk", "robust-har", "har", "har-universal"}
    assert found["lookahead"].startswith("no look-ahead found")
    one = found["members"]["har/sim-BTCUSDT/1h"]
    assert one["interval"][0] <= one["crps_ratio"] <= one["interval"][1]
    files = list(out.glob("forecasts/**/model=har/interval=1h/symbol=BTCUSDT/*.parquet"))
    rows = pl.read_parquet(files)
    assert rows.height == one["n"] * 10
    assert rows["realised_close"].is_not_null().all()
    for name in ("leaderboard.csv", "members.csv", "verdicts.txt", "report.html", "result.json"):
        assert (out / name).stat().st_size > 100

    fleets = {path: path.stat().st_mtime_ns for path in (tmp_path / "home").rglob("result.json")}
    assert len(fleets) == 3  # har's shard, and one of har-universal for each timeframe
    again = cpb(
        *asked, home=tmp_path / "home", program=[forking / "cpb"]
    )  # finds its fleets trained, and gives the same figures
    assert json.loads(again.stdout.splitlines()[-1]) == found
    assert {path: path.stat().st_mtime_ns for path in fleets} == fleets
