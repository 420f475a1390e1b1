"""Commands in messages are printed as they must be typed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import flows
from flows.console import echo, show
from flows.typed import as_typed, program, typed_command

SCRIPT = f"#!{sys.executable}\nimport sys\nfrom flows.cli import main\nsys.exit(main())\n"


@pytest.fixture
def installed(tmp_path):
    """A folder with a program `cpb`, as an installation makes one; its path has a space."""
    path = tmp_path / "my env" / "bin" / "cpb"
    path.parent.mkdir(parents=True)
    path.write_text(SCRIPT)
    path.chmod(0o755)
    return path


def refused(command, tmp_path, path=""):
    """The sentence with which a shell's command ends: it names another command."""
    env = os.environ | {"PYTHONPATH": str(Path(flows.__file__).parents[1]), "PATH": f"{path}:/usr/bin:/bin"}
    done = subprocess.run(
        f"{command} ingest nonsense nonsense nonsense",
        shell=True,
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_a_command_is_printed_as_its_shell_takes_it(installed, tmp_path):
    assert refused("'my env/bin/cpb'", tmp_path).endswith("see `'my env/bin/cpb' ingest --help`\n")
    assert refused("cpb", tmp_path, installed.parent).endswith("see `cpb ingest --help`\n")
    # by its path although it is on PATH, and another one that is
    assert refused(f"'{installed}'", tmp_path, installed.parent).endswith("see `cpb ingest --help`\n")
    other = tmp_path / "other" / "cpb"
    other.parent.mkdir()
    other.write_text(SCRIPT)
    other.chmod(0o755)
    assert refused("'my env/bin/cpb'", tmp_path, other.parent).endswith(
        "see `'my env/bin/cpb' ingest --help`\n"
    )
    # as `uv tool install` puts it on PATH
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "cpb").symlink_to(installed)
    assert refused("cpb", tmp_path, linked).endswith("see `cpb ingest --help`\n")
    module = f"{sys.executable} -m flows.cli"
    assert refused(module, tmp_path).endswith(f"see `{module} ingest --help`\n")


def test_only_commands_are_changed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [".venv/bin/cpb", "demo"])
    assert program() == ".venv/bin/cpb"
    assert typed_command("cpb serve") == ".venv/bin/cpb serve"
    text = (
        "cpb writes data/cpb cpb-BTC/1; run `hf download x/cpb y && cpb restore`, or `CPB_HOME=cpb cpb serve`"
    )
    assert as_typed(text) == (
        "cpb writes data/cpb cpb-BTC/1; run `hf download x/cpb y && .venv/bin/cpb restore`, "
        "or `CPB_HOME=cpb .venv/bin/cpb serve`"
    )
    assert as_typed(as_typed(text)) == as_typed(text)
    echo("see `cpb ui`")
    show("see `cpb ui`")
    assert [*capsys.readouterr()] == ["see `.venv/bin/cpb ui`\n"] * 2
