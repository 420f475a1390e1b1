"""The systemd units of the documents: what they start exists, and systemd understands them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from flows.cli.app import _app

UNITS = sorted(Path("docs/examples").glob("*.service"))


def test_the_units_start_commands_that_exist():
    commands = [words for unit in UNITS for words in re.findall(r"bin/cpb ([^&;'\n]+)", unit.read_text())]
    assert commands
    cpb = typer.main.get_command(_app())
    for words in commands:
        name, *rest = words.split()
        command = cpb.commands[name]
        for word in rest:
            if word.startswith("--"):
                assert word in [option for parameter in command.params for option in parameter.opts]
            elif hasattr(command, "commands"):
                command = command.commands[word]


def test_systemd_understands_them(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd on this machine")
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace("%h/.local/bin/cpb", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", *(str(tmp_path / unit.name) for unit in UNITS)],
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert [line for line in done.stderr.splitlines() if "cpb" in line] == []
