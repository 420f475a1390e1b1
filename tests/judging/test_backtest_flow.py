"""`cpb backtest` from the command line on the simulated market."""

import json
import os
import subprocess
import sys

import polars as pl
import pytest

from flows.backtest import parse_baselines
from schemas.errors import UsageError


def cpb(*args, home):
    env = os.environ | {"CPB_HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", "flows.cli", *args], env=env, capture_output=True, text=True)


def test_a_baseline_that_does_not_exist_is_named():
    with pytest.raises(
        UsageError, match="--baselines magic: choose from random-walk, robust-har, garch-t, lightgbm"
    ):
        parse_baselines("magic, robust-har")
    assert parse_baselines("garch-t,garch-t") == ("garch-t",)


@pytest.mark.parametrize("option", ["--out", "--report"])
def test_a_folder_that_cannot_be_is_refused_before_any_work(tmp_path, option):
    (tmp_path / "file").touch()
    done = cpb("backtest", "--source", "sim", option, str(tmp_path / "file"), home=tmp_path / "home")
    assert done.returncode == 2
    assert f"cannot write in {tmp_path / 'file'}" in done.stderr
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
def test_backtest_writes_everything_it_promises(tmp_path):
    out = tmp_path / "out"
    done = cpb(
        "backtest", "--source", "sim", "--coins", "BTC,ETH", "--preset", "smoke", "--architectures",
        "har,har-universal", "--folds", "2", "--check-lookahead", "--out", str(out), "--json", home=tmp_path / "home",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["pooled"]) == {"random-walk", "robust-har", "har", "har-universal"}
    assert found["lookahead"].startswith("no look-ahead found")
    assert "skill from nothing" not in found["lookahead"]
    one = found["members"]["har/BTCUSDT/1h"]
    assert one["interval"][0] <= one["crps_ratio"] <= one["interval"][1]
    rows = pl.read_parquet(out / "forecasts/model=har/interval=1h/symbol=BTCUSDT/*.parquet")
    assert rows.height == one["n"] * 10
    assert rows["realised_close"].is_not_null().all()
    for name in ("leaderboard.csv", "members.csv", "verdicts.txt", "report.html", "result.json"):
        assert (out / name).stat().st_size > 100


@pytest.mark.slow
def test_no_refit_sliding(tmp_path):
    done = cpb(
        "backtest", "--source", "sim", "--coins", "BTC", "--preset", "smoke", "--architectures", "linear",
        "--folds", "2", "--no-refit", "--sliding", "--report", str(tmp_path / "r"), "--json", home=tmp_path / "home",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "linear" in json.loads(done.stdout.splitlines()[-1])["pooled"]
    assert (tmp_path / "r" / "report.html").exists()
