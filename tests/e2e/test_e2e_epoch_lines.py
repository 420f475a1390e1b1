"""`cpb train` as a person sees it train: the lines of its epochs, with and without a terminal."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
WORDS = [
    "train",
    "BTC",
    "1h",
    "--arch",
    "linear",
    "--source",
    "sim",
    "--preset",
    "smoke",
    "--since",
    "2024-10",
    "--as-of",
    "2025-01-01",
    "--device",
    "cpu",
    "--epochs",
    "45",
    "--patience",
    "45",
    "--accumulate",
    "2",
]
LINE = re.compile(
    r"linear  epoch (\d+/\d+)  train -?\d+\.\d{4}  val -?\d+\.\d{4}  lr \d\.\de-\d\d  \d+\.\d s  "
    r"CPU [\d,]+ MB, [\d,]+ peak, \d+\.\d of \d+ cores?$"
)


@pytest.fixture
def environment(tmp_path):
    settings = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    place = {"CPB_HOME": str(tmp_path / "data"), "MLFLOW_TRACKING_URI": "", "PYTHONPATH": str(ROOT)}
    return settings | place


def epochs_in(lines):
    return [match[1] for line in lines if (match := LINE.match(line.rstrip()))]


def test_without_a_terminal(environment, tmp_path, forking):
    command = [forking / "cpb", *WORDS]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert epochs_in(lines) == ["20/45", "40/45", "45/45"]
    assert sum(line.startswith("  cost    ") for line in lines) == 1
    assert "memory ran out" not in done.stderr
    assert done.stdout == ""


def test_on_a_terminal(environment, tmp_path):
    command = [sys.executable, "-m", "flows.cli", *WORDS]
    shown = Terminal(command, 200, env=environment, cwd=tmp_path)
    try:
        shown.read_until(lambda: "  next    " in shown.screen, 300)
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.screen).replace("\r", "\n")
        assert epochs_in(plain.splitlines()) == ["20/45", "40/45", "45/45"]
    finally:
        shown.close()
