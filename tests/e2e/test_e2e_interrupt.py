"""Ctrl-C in a real terminal: every long command ends within 3 seconds, with 130 and a way to go on; no trainer left."""

import json
import os
import shutil
import sqlite3
import sys
import time
from contextlib import closing, suppress

import psutil
import pytest

from tasks.market.simulator import serve
from tasks.running.cores import usable_cores
from tasks.training.shard import read_result
from tests.tools.folder_mirror import FolderMirror
from tests.tools.terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SIM = "--source sim --coins BTC --timeframes 1h --since 2024-12 --as-of 2025-06-06 --preset default --seeds 1"
LONG = {
    "train": "train BTCUSDT 1h --arch lstm --preset smoke --max-epochs 100000 --set patience=100000 --source sim "
    "--since 2024-12 --as-of 2025-06-06",
    "train-all": f"train-all {SIM} --architectures lstm,gru,transformer",
    "backtest": f"backtest {SIM} --architectures lstm --folds 1",
}
"""Command lines whose training takes minutes, and whose epochs take seconds."""
SHORT = (
    "train BTCUSDT 1h --arch gru --set hidden_dim=8 --set n_layers=1 --preset smoke --max-epochs 40 --set patience=40 "
    "--source sim --since 2025-03 --as-of 2025-06-06"
)


@pytest.fixture
def terminal(cpb):
    """Start `cpb` with these arguments in a pseudo-terminal."""
    started = []

    def start(*arguments):
        command = [sys.executable, "-m", "flows.cli", *map(str, arguments)]
        started.append(Terminal(command, cwd=cpb.folder, env=cpb.env))
        return started[-1]

    yield start
    for running in started:
        running.close()
    for trainer in trainers_in(cpb.folder):
        trainer.kill()


def trainers_in(folder):
    """The running trainers and judges that were started in `folder`."""
    trainers = []
    for running in psutil.process_iter(["cmdline", "status"]):
        if running.info["status"] != "zombie" and "--multiprocessing-fork" in (running.info["cmdline"] or []):
            with suppress(psutil.Error):
                trainers += [running] if running.cwd() == str(folder) else []
    return trainers


def check_end(terminal, seconds, command=""):
    assert terminal.process.returncode == 130, terminal.screen
    how = "add --resume latest" if command == "train" else "run the same command again"
    assert f"{how} to continue" in terminal.screen
    assert "Traceback" not in terminal.screen
    queue = os.getloadavg()[0] / usable_cores()  # above 1, each process gets that much less of a core
    assert seconds < 3 * max(1.0, queue)


@pytest.mark.parametrize("command", LONG)
def test_ctrl_c_ends_a_training(cpb, tmp_path, terminal, command):
    shown = terminal(*LONG[command].split())
    shown.read_until(lambda: list((tmp_path / "data").rglob("fleets/*/progress.json")), 240)
    assert trainers_in(tmp_path)
    check_end(shown, shown.press_ctrl_c(), command)
    assert not trainers_in(tmp_path)
    if command != "backtest":  # which logs no runs
        with closing(sqlite3.connect(tmp_path / "mlruns/mlflow.db")) as database:
            assert database.execute("SELECT status FROM runs").fetchall() == [("KILLED",)]


def test_ctrl_c_while_the_trainer_still_imports(cpb, tmp_path, terminal):
    shown = terminal(*LONG["train-all"].split())
    shown.read_until(lambda: trainers_in(tmp_path), 240)
    check_end(shown, shown.press_ctrl_c())
    assert not trainers_in(tmp_path)


def test_resume_from_latest_or_a_path_ends_as_an_undisturbed_training(cpb, tmp_path, terminal):
    short = SHORT.split()
    undisturbed = cpb.json(*short)
    (fleets,) = tmp_path.glob("data/sim/fleets")

    def checkpoints():
        return sorted(fleets.glob("*/checkpoints/*/epoch-*.safetensors"))

    shown = terminal(*short)  # anew, since no --resume is given
    shown.read_until(checkpoints, 240)
    check_end(shown, shown.press_ctrl_c(), "train")
    epoch = int(checkpoints()[-1].name.split("-")[1])
    assert 0 < epoch < 40
    (fleet,) = {file.parents[2] for file in checkpoints()}
    shutil.copytree(fleet, tmp_path / "copy")
    latest = cpb(*short, "--resume", "latest", "--json")
    assert "nothing to resume" not in latest.stderr
    assert f"from its last checkpoint on, of epoch {epoch}" in latest.stderr.partition("training ")[0]
    latest = json.loads(latest.stdout.splitlines()[-1])
    shutil.rmtree(fleet)
    resumed = cpb.json(*short, "--resume", tmp_path / "copy")
    # The folder named by the path holds no costs of its epochs: those that were trained again are told apart by them.
    first = read_result(fleet).epochs[0]["epoch"]
    assert epoch < first <= 40
    for name in ("history", "best_epoch", "best_val_loss", "test_crps_ratio", "epochs_run"):
        assert resumed[name] == latest[name] == undisturbed[name], name

    (file,) = (tmp_path / "copy").rglob(f"epoch-{epoch:06d}-*.safetensors")
    other = cpb(*short, "--set", "lr=0.5", "--resume", file)
    assert other.returncode == 1
    assert "holds a checkpoint of a different training" in other.stderr
    assert not checkpoints()


def test_ctrl_c_ends_an_ingestion_whose_source_does_not_answer(cpb, tmp_path, terminal):
    (tmp_path / "mirror").mkdir()
    asked = []

    def never_answer(_handler, path, _query):
        asked.append(path)
        time.sleep(20)
        return 404, {}, b""

    with serve(FolderMirror(tmp_path / "mirror"), never_answer) as url:
        shown = terminal("ingest", "--source", url, "--coins", "BTC,ETH", "--timeframes", "1h")
        shown.read_until(lambda: asked, 60)
        time.sleep(0.5)
        check_end(shown, shown.press_ctrl_c())


def test_ctrl_c_ends_an_ingestion_that_is_at_work(cpb, tmp_path, terminal):
    shown = terminal("ingest", "--source", "sim", "--coins", "all", "--timeframes", "15m,1h")
    shown.read_until(lambda: list((tmp_path / "data").rglob("klines/**/*.parquet")), 60)
    check_end(shown, shown.press_ctrl_c())
    assert not list((tmp_path / "data").rglob("*.tmp"))
