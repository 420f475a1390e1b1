"""`cpb backtest` from the command line on the simulated market, with real trainer processes."""

import os
import subprocess
import sys

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


