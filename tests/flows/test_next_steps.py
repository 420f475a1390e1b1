"""The demo ends with commands that start the same cpb again, wherever it is installed."""

import sys

import pytest

from flows.cli import train


@pytest.mark.parametrize(
    ("called", "found", "said"),
    [
        ("/tools/bin/cpb", "/tools/bin/cpb", "  cpb ui "),
        ("/tools/bin/cpb", None, "  /tools/bin/cpb ui "),
        (".venv/bin/cpb", "/another/cpb", "  .venv/bin/cpb ui "),
        ("flows/cli/__main__.py", "/another/cpb", f"  {sys.executable} -m flows.cli ui "),
    ],
)
def test_the_program_that_was_called_is_named(monkeypatch, called, found, said):
    lines = []
    monkeypatch.setattr(sys, "argv", [called, "demo"])
    monkeypatch.setattr(train.shutil, "which", lambda name: found)
    monkeypatch.setattr(train, "say", lines.append)
    train._next_steps()
    assert any(line.startswith(said) for line in lines), lines
