"""`cpb --help` must answer at once: nothing heavy may be imported before a command runs."""

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from flows import cli

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
        (["train-all", "--preset", "seed-lstm", "--architectures", "gru"], "'seed-lstm' belongs to lstm"),
        (["train", "BTC", "1h", "--arch", "arima"], "arima"),
        (
            ["backtest", "--preset", "seed-lstm", "--architectures", "gru-universal"],
            "'seed-lstm' belongs to lstm",
        ),
        (["backtest", "--device", "cudax"], "--device 'cudax' is unknown"),
        (["backtest", "--architectures", "classifier-gru-universal"], "leave classifier-gru out"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_2(arguments, says):
    done = run(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def commands(group, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_every_command_takes_json_and_shows_an_example():
    for path, command in commands(typer.main.get_command(cli._app())):
        assert "--json" in {option for p in command.params for option in p.opts}, path
        assert "Example: cpb " in command.help, path


def test_the_version_is_the_packages():
    from importlib.metadata import version

    done = CliRunner().invoke(cli._app(), ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"cpb {version('cpb')}\n")


def end_of(monkeypatch, capsys, *arguments):
    """Return the exit code, stdout and stderr of `cpb ARGUMENTS` within this process."""
    monkeypatch.setattr(sys, "argv", ["cpb", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code, *capsys.readouterr()


def test_with_json_an_error_is_the_object_on_the_last_line(monkeypatch, capsys):
    code, out, err = end_of(monkeypatch, capsys, "ingest", "--coins", ",", "--json")
    assert json.loads(out) == {"error": err.removeprefix("cpb: ").strip(), "exit": 2}
    assert code == 2
    code, out, err = end_of(monkeypatch, capsys, "deploy", "run", "nonsense")
    assert (code, out) == (2, "")
    assert "choose from train-all" in err


def test_a_full_or_forbidden_disk_is_one_sentence(monkeypatch, capsys):
    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device", "data/x.parquet")

    monkeypatch.setattr("flows.deploy.control.down", full)
    code, _, err = end_of(monkeypatch, capsys, "deploy", "down")
    assert code == 1
    assert err == "cpb: data/x.parquet: No space left on device; check its owner and the free space there\n"


@pytest.mark.parametrize(
    "words", [["train-all", "--seeds", "0"], ["train", "BTC"], ["nonsense"], ["backtest", "--folds", "25"]]
)
def test_a_wrong_command_line_is_an_object_for_programs_too(words):
    done = run(*words, "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout.splitlines()[-1])["exit"] == 2
    assert "Error" in done.stderr
