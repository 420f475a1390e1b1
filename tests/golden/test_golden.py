"""Weights, scores, forecasts, decisions and leaderboards are to the last bit what they were when they were recorded.

`demo.json`, `mirror.json` and `real.json` have a line for each item, and the CPU that made them; on another CPU, or
with another torch, items are compared by their numbers. After a change that is meant to change them:

    python -m pytest tests/golden -m '' --golden-write

The diff of the JSON files names what changed; say why in the commit. Without ../shared/market `real.json` stays as it
is. Not an item is what may change freely: paths, ids, times of the run, durations, digests of code, sentences.
"""

import json
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file, save_file

from tasks.market.simulator import SimulatedMirror
from tests.tools import fork_server
from tests.tools.golden_values import (
    board_items,
    decision_items,
    differences,
    fleet_items,
    forecast_items,
    machine,
)

HERE = Path(__file__).parent
MARKET = HERE.parents[1] / "../shared/market"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
COINS = ("--coins", "BTC,ETH", "--timeframes", "15m,1h")
HOURS = ("--coins", "BTC,ETH", "--timeframes", "1h")
SEEDS = ("seed-transformer", "seed-gru", "seed-lstm")
SHORT = ("--set", "epochs=2", "--set", "max_train_rows=600", "--set", "max_validation_windows=64")

# As `cpb`, on two cores at most: a shard that is trained alone uses all cores, which may change its last bits.
CPB = """
import os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
from flows.cli import main
sys.executable, sys.argv = sys.argv[1], ["cpb", *sys.argv[2:]]
main()
"""


class Runs:
    """Commands in a folder of their own, and the items of what each left, by name."""

    def __init__(self, folder, forking):
        self.folder, self.forking, self.items, self.seen = folder, forking, {}, set()

    def cpb(self, *arguments):
        command = [
            self.forking / fork_server.CODE,
            CPB,
            self.forking / fork_server.PYTHON,
            *arguments,
            "--json",
        ]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def add(self, name, *arguments, market="spot", issues=True):
        """Run a training; its items' names begin with `name`. issues: also its decisions and forecasts."""
        run_id = self.cpb(*arguments)["run_id"]
        self.home = self.folder / "data" / ("sim" if market == "sim" else "")
        fleets = set(self.home.glob("fleets/*/")) - self.seen
        self.seen |= fleets
        self.board = self.cpb("leaderboard", "--run", run_id)["leaderboard"]
        items = fleet_items(fleets) | board_items(self.board)
        if issues:
            self.champions = self.cpb("champions", "--market", market)["champions"]
            items |= forecast_items(self.home / "forecasts") | decision_items(self.champions)
        self.items |= {f"{name}/{key}": value for key, value in items.items()}

    def all_items(self):
        """What the folder holds now, of a single run."""
        fleets = fleet_items(self.home.glob("fleets/*/"))
        return (
            fleets
            | board_items(self.board)
            | forecast_items(self.home / "forecasts")
            | decision_items(self.champions)
        )


@pytest.fixture(scope="module")
def demo(tmp_path_factory, forking):
    runs = Runs(tmp_path_factory.mktemp("demo"), forking)
    runs.add("demo", "demo", market="sim")
    return runs


@pytest.fixture(scope="module")
def mirror(tmp_path_factory, forking):
    runs = Runs(tmp_path_factory.mktemp("mirror"), forking)
    source = SimulatedMirror(datetime(2025, 6, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC))
    for symbol in ("BTCUSDT", "ETHUSDT"):
        for interval in ("15m", "1h"):
            for key, _, _ in source.keys(f"data/spot/monthly/klines/{symbol}/{interval}/"):
                path = runs.folder / "files" / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(source.read(key))
    asked = ("train-all", "--source", "files", "--as-of", "2025-06-01")
    runs.add("smoke", *asked, *COINS, "--preset", "smoke")
    runs.add("default", *asked, *COINS, "--preset", "default", "--set", "epochs=3")
    for name in SEEDS:  # bf16 is slow where a CPU has none, and its results are not equal to 1e-6
        full = ("--set", "mixed_precision=off")
        runs.add(name, *asked, *HOURS, *SHORT, *full, "--preset", name, issues=False)
    return runs


@pytest.fixture(scope="module")
def real(tmp_path_factory, forking):
    if not MARKET.is_dir():
        pytest.skip("needs ../shared/market")
    runs = Runs(tmp_path_factory.mktemp("real"), forking)
    asked = ("train-all", "--source", MARKET, "--as-of", "2025-06-05")
    runs.add("default", *asked, *COINS)
    for name in SEEDS:
        runs.add(name, *asked, *HOURS, *SHORT, "--preset", name, issues=False)
    return runs


@pytest.mark.parametrize("name", ["demo", "mirror", "real"])
def test_every_bit_is_as_it_was(name, request):
    items, path = request.getfixturevalue(name).items, HERE / f"{name}.json"
    if request.config.getoption("--golden-write", default=False):
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(items.items()))
        path.write_text(f'{{"machine": {json.dumps(machine())}, "items": {{\n{lines}\n}}}}\n')
    golden = json.loads(path.read_text())
    lines = differences(golden["items"], items, golden["machine"] == machine())
    assert not lines, "\n" + "\n".join(lines)


def test_a_changed_bit_is_named(demo):
    copy = Runs(demo.folder, demo.forking)
    copy.home, copy.board = demo.folder / "copy", json.loads(json.dumps(demo.board))
    copy.champions = json.loads(json.dumps(demo.champions))
    for part in ("fleets", "forecasts"):
        shutil.copytree(demo.home / part, copy.home / part)
    before = copy.all_items()
    assert differences(before, demo.all_items()) == []

    (model,) = [
        p.parent
        for p in copy.home.glob("fleets/*/members/*ETHUSDT-1h/model/config.json")
        if json.loads(p.read_text())["architecture"] == "gru"
    ]
    tensors = load_file(model / "model.safetensors")
    tensors["weights.out.bias"].view(np.int32)[0, 0, 2] ^= 1
    save_file(tensors, model / "model.safetensors")
    (scores,) = model.parent.glob("score-*.npz")
    with np.load(scores) as kept:
        arrays = {key: kept[key] for key in kept.files}
    arrays["losses.crps"][7] = np.nextafter(arrays["losses.crps"][7], 1)
    np.savez(scores, **arrays)
    (month,) = copy.home.glob("forecasts/interval=15m/symbol=BTCUSDT/*.parquet")
    rows = pl.read_parquet(month)
    rows[3, "q30"] = np.nextafter(rows[3, "q30"], 0)
    rows.write_parquet(month)
    copy.champions[0]["decision"]["outcome"] = "kept"
    copy.board[0]["crps_ratio"] = float(np.nextafter(copy.board[0]["crps_ratio"], 0))
    changed = differences(before, copy.all_items())
    champion, row = copy.champions[0], copy.board[0]
    names = [line.split(":")[0] for line in changed]
    assert names == [
        f"decisions/{champion['symbol']}-{champion['timeframe']}",
        "forecasts/BTCUSDT-15m/2025-06",
        f"leaderboard/{row['architecture']}/{row['timeframe']}",
        "losses/gru/ETHUSDT-1h",
        "weights/gru/ETHUSDT-1h",
    ]
    on_another_cpu = differences(before, copy.all_items(), same_machine=False)
    assert [line.split("/")[0] for line in on_another_cpu] == ["decisions"]
