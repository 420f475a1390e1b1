"""Tests see no setting of the person who runs them, and none is timed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

SETTINGS = {
    "CPB_HOME": "/nowhere",
    "CPB_KEEP": "/nowhere",
    "CPB_NOTIFY": "json://127.0.0.1:9",
    "HF_TOKEN": "hf_mine",
    "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
    "PREFECT_API_AUTH_STRING": "me:mine",
    "WANDB_API_KEY": "mine",
}


def test_settings_of_a_shell_reach_no_test():
    done = subprocess.run(
        [sys.executable, "-c", "import os; from tests import conftest; print(*os.environ)"],
        cwd=Path(__file__).parents[1],
        env=os.environ | SETTINGS,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not SETTINGS.keys() & {*done.stdout.split()}


def test_no_example_is_timed():
    assert settings().deadline is None


@pytest.mark.parametrize("turn", [1, 2])
def test_a_setting_that_a_test_leaves_ends_with_it(turn):
    assert "CPB_KEEP" not in os.environ
    os.environ["CPB_KEEP"] = f"left by test {turn}"
