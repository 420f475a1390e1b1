"""Out of memory and out of disk: one sentence at the command line, whichever library noticed it."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from importlib import import_module

import numpy as np
import polars as pl
import pytest

import flows.cli.app

ERRORS = {
    "python": (MemoryError(), "out-of-memory"),
    "numpy": (np._core._exceptions._ArrayMemoryError((1 << 40,), np.dtype("f8")), "out-of-memory"),
    "torch": (
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        "out-of-memory",
    ),
    "gpu": (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "out-of-memory"),
    "sqlite": (sqlite3.OperationalError("database or disk is full"), "disk-full"),
    "polars": (pl.exceptions.ComputeError("No space left on device (os error 28)"), "disk-full"),
}


def run(monkeypatch, capsys, error):
    def fail(*_, **__):
        raise error

    # By name: the package has a function of the module's name.
    monkeypatch.setattr(import_module("tasks.tracking.leaderboard"), "read_board", fail)
    monkeypatch.setattr(sys, "argv", ["cpb", "leaderboard", "--json"])
    with pytest.raises(SystemExit) as ended:
        flows.cli.main()
    said = capsys.readouterr()
    return ended.value.code, json.loads(said.out.strip().splitlines()[-1]), said.err.strip()


@pytest.mark.parametrize("who", list(ERRORS))
def test_one_sentence_whoever_notices(monkeypatch, capsys, who):
    error, code = ERRORS[who]
    exit_code, told, err = run(monkeypatch, capsys, error)
    assert (exit_code, told["code"], told["exit"]) == (1, code, 1)
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err


def test_any_other_fault_is_still_shown_as_such(monkeypatch, capsys):
    with pytest.raises(ZeroDivisionError):
        run(monkeypatch, capsys, ZeroDivisionError("a fault of ours"))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="a small tmpfs needs root")
@pytest.mark.parametrize("size", ["300k", "1000k", "2500k", "3500k"])
def test_a_training_on_a_full_disk_says_so_and_goes_on_when_there_is_room(tmp_path, forking, size):
    """The disk fills while candles, features, the MLflow store or the models are written."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    env = {
        k: v for k, v in os.environ.items() if not k.startswith(("CPB_", "MLFLOW_TRACKING", "PREFECT_API"))
    }
    command = [
        forking / "cpb",
        "train-all",
        "--coins",
        "BTC,ETH",
        "--timeframes",
        "1h",
        "--source",
        "sim",
        "--since",
        "2025-02",
        "--as-of",
        "2025-05-20",
        "--architectures",
        "linear,robust-har",
        "--preset",
        "smoke",
    ]
    try:
        full = subprocess.run(command, cwd=disk, env=env, capture_output=True, text=True, check=False)
        assert full.returncode in (1, 3)
        assert "Traceback" not in full.stderr
        assert re.search("no space left|disk is full", full.stderr)  # a file's own words, or the database's
        subprocess.run(["mount", "-o", "remount,size=60m", str(disk)], check=True)
        done = subprocess.run(command, cwd=disk, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
