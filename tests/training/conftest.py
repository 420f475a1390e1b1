import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.training import trainers
from tests.tools.trainer_tools import PRELUDE, trainers_in

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Let this code do each order of the trainer, in a real process of its own; `folder` is the shard's folder."""
    modules = tmp_path / "modules"
    modules.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{modules}{os.pathsep}{ROOT}")
    monkeypatch.syspath_prepend(modules)
    monkeypatch.setattr(trainers, "TRAINER", "fake_worker")

    def use(code, prelude=""):
        (modules / "fake_worker.py").write_text(f"{prelude}{PRELUDE}\nWORK = {code!r}\n")

    return use


@pytest.fixture
def folder(tmp_path):
    """the shard's folder."""
    made = tmp_path / "fleet"
    made.mkdir()
    return made


@pytest.fixture
def start_parent(folder):
    """Start a process that calls `run_trainer` with the fake worker; killed at the end."""
    started = []

    def start(extra=""):
        code = (
            "import sys, pathlib; from tasks.training import trainers; from tasks.training.trainers import Slots\n"
            f"trainers.TRAINER = 'fake_worker'\n{extra}\n"
            "trainers.run_trainer(pathlib.Path(sys.argv[1]), Slots((), 1, 1), 600)"
        )
        started.append(subprocess.Popen([sys.executable, "-c", code, str(folder)]))
        return started[-1]

    yield start
    for parent in started:
        parent.kill()
        parent.wait()
    for trainer in trainers_in(folder):
        trainer.kill()
