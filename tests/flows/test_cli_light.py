"""`cpb --help` must answer at once: nothing heavy may be imported before a command runs."""

import json
import re
import signal
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from flows.cli import app
from schemas.errors import CpbError

HEAVY = (
    "torch",
    "prefect",
    "mlflow",
    "pandera",
    "polars",
    "matplotlib",
    "pandas",
    "fastapi",
    "numpy",
    "safetensors",
    "schemas.handover",
    "schemas.decision",
    "ctypes",
)


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
    assert all(name in done.stdout for names in app.COMMANDS.values() for name in names)


def commands(group, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_every_command_takes_json_and_shows_an_example():
    for path, command in commands(typer.main.get_command(app._app())):
        assert "--json" in {option for p in command.params for option in p.opts}, path
        assert "Example: cpb " in command.help, path


def test_every_option_says_what_it_is_for():
    for path, command in commands(typer.main.get_command(app._app())):
        assert [p.name for p in command.params if not p.help] == [], path


def test_help_is_whole_in_80_columns_and_grouped(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app._app(), ["--help"]).stdout
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    for panel, names in app.COMMANDS.items():
        assert panel in shown
        assert all(f"│ {name} " in shown for name in names)


def test_the_usage_names_arguments_in_capitals_those_that_may_lack_in_brackets():
    usages = {}
    for path, _ in commands(typer.main.get_command(app._app())):
        shown = CliRunner().invoke(app._app(), [*path, "--help"], env={"COLUMNS": "200"}).stdout
        usages[" ".join(path)] = re.search(r"Usage: \w+ (.+)", shown)[1].split(" [OPTIONS]", 1)[1].strip()
    assert (usages["promote"], usages["deploy run"], usages["presets"]) == (
        "COIN TIMEFRAME",
        "NAME",
        "[NAME]",
    )
    assert set(usages.values()) == {"", "COIN TIMEFRAME", "[COIN] [TIMEFRAME]", "NAME", "[NAME]"}


def test_no_option_of_any_command_is_cut_in_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for path, command in commands(typer.main.get_command(app._app())):
        shown = CliRunner().invoke(app._app(), [*path, "--help"]).stdout
        assert max(map(len, shown.splitlines())) <= 80, path
        listed = [param for param in command.params if not getattr(param, "hidden", False)]
        for option in {o for p in listed for o in (*p.opts, *p.secondary_opts) if o.startswith("--")}:
            assert re.search(rf"{option}(?![\w-])", shown), (path, option)


def fail_with(monkeypatch, error):
    """Let `cpb doctor` end in an error."""

    def fail(**_options):
        raise error

    monkeypatch.setattr("cpbmodels.doctor.examine.examine", fail)


def test_with_json_an_error_is_the_object_on_the_last_line(monkeypatch, cpb_here):
    code, out, err = cpb_here("ingest", "--coins", ",", "--json")
    told = json.loads(out)
    assert told == {"error": err.removeprefix("cpb: ").strip(), "code": "coins", "field": "coins", "exit": 2}
    assert code == 2
    code, out, err = cpb_here("ingest", "--coins", ",")
    assert (code, out) == (2, "")


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device", "data/x.parquet"),
        PermissionError(13, "Permission denied", "data/x.parquet"),
    ],
)
def test_a_full_or_forbidden_disk_is_one_sentence(monkeypatch, cpb_here, error):
    fail_with(monkeypatch, error)
    code, out, err = cpb_here("doctor", "--json")
    assert code == 1
    assert err.startswith(f"cpb: data/x.parquet: {error.strerror}; check ")
    assert err.count("\n") == 1
    assert json.loads(out) | {"error": ""} == {
        "error": "",
        "code": "system",
        "field": "data/x.parquet",
        "exit": 1,
    }


@pytest.mark.parametrize("where", ["in a command", "before it"])
def test_ctrl_c_says_how_to_go_on_and_exits_130(monkeypatch, cpb_here, where):
    fail_with(monkeypatch, KeyboardInterrupt())
    monkeypatch.setattr("os._exit", sys.exit)  # the real one would end the test's process
    if where == "before it":

        def interrupted():
            raise KeyboardInterrupt

        monkeypatch.setattr(app, "_app", interrupted)
    code, out, err = cpb_here("doctor", "--json")
    assert (code, err) == (130, "cpb: interrupted; run the same command again to continue\n")
    told = json.loads(out)
    assert (told["code"], told["exit"]) == ("interrupted", 130)


def test_sigterm_of_a_run_says_how_to_go_on_and_ends_it_by_the_signal():
    code = (
        "import os, signal, sys, types\n"
        "def run_train_all(*_): os.kill(os.getpid(), signal.SIGTERM)\n"
        "stub = types.SimpleNamespace(run_train_all=run_train_all, train_all=None)\n"
        "sys.modules['flows.train_all'] = stub\n"
        "sys.argv = ['cpb', 'train-all', '--coins', 'BTC', '--timeframes', '1h', '--source', 'sim']\n"
        "import flows.cli\n"
        "flows.cli.main()\n"
    )
    done = run(code=code)
    assert done.returncode == -signal.SIGTERM
    assert done.stderr.endswith("\ncpb: terminated; run the same command again to continue\n")


@pytest.mark.parametrize("module", ["typer", "pydantic", "prefect.settings"])
def test_ctrl_c_while_it_is_loaded_is_one_line_too(module):
    code = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == '{module}': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.argv = ['cpb', 'train-all', '--coins', 'BTC', '--source', 'sim', '--json']\n"
        "import flows.cli\n"
        "flows.cli.main()\n"
    )
    done = run(code=code)
    assert (done.returncode, done.stderr) == (
        130,
        "cpb: interrupted; run the same command again to continue\n",
    )
    assert json.loads(done.stdout)["exit"] == 130


@pytest.mark.parametrize(
    "error",
    [
        CpbError(
            "http://me:hunter2@mirror/x?token=hunter2 does not answer", field="http://me:hunter2@mirror"
        ),
        OSError(2, "No such file", "http://me:hunter2@mirror/x"),
    ],
)
def test_no_error_shows_credentials(monkeypatch, cpb_here, error):
    fail_with(monkeypatch, error)
    code, out, err = cpb_here("doctor", "--json")
    assert code == 1
    assert "hunter2" not in out + err
    assert "http://mirror" in err
    assert "http://mirror" in out


def test_credentials_in_a_wrong_command_line_are_not_shown(monkeypatch, cpb_here):
    code, out, err = cpb_here("ingest", "http://me:hunter2@mirror", "--json")
    assert code == 2
    assert "hunter2" not in out + err


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["promote", "BTC"], "timeframe"),
        (["nonsense"], ""),
        (["serve", "--port", "0"], "port"),
        (["train-all", "--sede", "1"], "--sede"),
    ],
)
def test_a_wrong_command_line_is_an_object_for_programs_too(monkeypatch, cpb_here, words, field):
    code, out, err = cpb_here(*words, "--json")
    assert code == 2
    told = json.loads(out)
    assert (told["code"], told["field"], told["exit"]) == ("usage", field, 2)
    assert err == f"cpb: {told['error']}\n"
    assert " --help`" in err
