"""`cpb --help` must answer at once: nothing heavy may be imported before a command runs."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "prefect", "mlflow", "pandera", "polars", "matplotlib", "pandas", "fastapi", "numpy")


def run(*arguments, code=None):
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['cpb', '--help']\n"
        "from flows import cli\n"
        "try: cli.main()\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        f"heavy = [m for m in {HEAVY} if m in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    done = run(code=code)
    assert done.returncode == 0, done.stderr
    for command in (
        "demo",
        "ingest",
        "train-all",
        "backtest",
        "forecast",
        "publish",
        "doctor",
        "serve",
        "deploy",
    ):
        assert command in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train-all", "--preset", "huge"], "--preset 'huge' is unknown"),
        (["train-all", "--timeframes", "7m"], "unknown interval 7m"),
        (["train-all", "--as-of", "yesterday"], "--as-of 'yesterday' is not a date"),
        (["train", "BTC", "1h", "--arch", "arima"], "arima"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_2(arguments, says):
    done = run(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
