"""What people and programs read."""

import json
import subprocess
import sys

import pytest

from flows.console import emit
from schemas.errors import count


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [(0, "member", "0 members"), (1, "member", "1 member"), (2, "member", "2 members"), (1, "series", "1 series"),
     (3, "series", "3 series"), (1200, "forecast row", "1,200 forecast rows")],
)  # fmt: skip
def test_numbers_come_with_their_noun(number, noun, said):
    assert count(number, noun) == said


def test_json_has_no_nan(capsys):
    emit({"a": float("nan"), "b": [float("inf"), 1.5]})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5]}


@pytest.mark.parametrize(
    "write", ["say('more')", "logging.getLogger('cpb').warning('more')", "Console(stderr=True).print('more')"]
)
def test_a_run_continues_whose_reader_has_ended(tmp_path, write):
    """As a flow run whose worker was killed: its output is a pipe to the worker."""
    code = (
        "import logging, os, pathlib, sys; from rich.console import Console\n"
        "from flows.console import continue_without_reader, log_to_console, say\n"
        "log_to_console(); continue_without_reader(); say('begun'); sys.stdin.read()\n"
        f"for _ in range(2): {write}\n"
        f"pathlib.Path({str(tmp_path / 'done')!r}).touch()"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stderr.readline() == b"begun\n"
    run.stderr.close()
    run.stdin.close()
    assert run.wait(60) == 0
    assert (tmp_path / "done").exists()
