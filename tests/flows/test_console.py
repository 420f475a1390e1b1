"""What people and programs read."""

import ast
import json
import logging
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

import flows
from cpbmodels.errors import printable
from flows.console import Column, echo, emit, print_table, show
from flows.prefect import RunLogHandler
from flows.progress import Display
from schemas.errors import counted
from tasks.running.progress import Progress


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (0, "member", "0 members"),
        (1, "member", "1 member"),
        (2, "member", "2 members"),
        (1, "series", "1 series"),
        (3, "series", "3 series"),
        (1200, "forecast row", "1,200 forecast rows"),
    ],
)
def test_numbers_come_with_their_noun(number, noun, said):
    assert counted(number, noun) == said


def test_json_has_no_nan_and_one_form_of_times(capsys):
    closed = datetime(2025, 6, 6, tzinfo=UTC)
    emit(
        {
            "a": float("nan"),
            "b": [float("inf"), 1.5, Path("x")],
            "times": (closed, closed.replace(microsecond=5)),
        }
    )
    assert json.loads(capsys.readouterr().out) == {
        "a": None,
        "b": [None, 1.5, "x"],
        "times": ["2025-06-06T00:00:00Z", "2025-06-06T00:00:00.000005Z"],
    }


def test_text_of_a_home_reaches_the_terminal_escaped(capsys):
    hostile = "BTC\033]0;title\a \x9b31m \u202e 80 %"
    echo(hostile)
    show(hostile)
    print_table(hostile, [Column("name", "name")], [{"name": f"{hostile} [red]"}])
    display = Display(Console(markup=False))
    display.progress(Progress(hostile, 1, 2, "files"))
    assert display.bars.tasks[0].fields["step"] == printable(hostile)
    written = "".join(capsys.readouterr())
    assert all(c.isprintable() or c == "\n" for c in written)
    assert written.count(r"BTC\x1b]0;title\x07 \x9b31m \u202e 80 %") >= 4
    assert "[red]" in written
    record = logging.LogRecord("cpb", logging.WARNING, "", 0, "%s", (hostile,), None)
    assert RunLogHandler().format(record) == printable(hostile)


def test_only_the_console_prints():
    for path in Path(flows.__file__).parent.rglob("*.py"):
        if path.name not in ("console.py", "__init__.py", "worker.py"):
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            assert "print" not in {getattr(call.func, "id", "") for call in calls}, path


@pytest.mark.parametrize(
    "write",
    ["echo('more')", "logging.getLogger('cpb').warning('more')", "Console(stderr=True).print('more')"],
)
def test_a_run_continues_whose_reader_has_ended(tmp_path, write):
    """As a flow run whose worker was killed: its output is a pipe to the worker."""
    code = (
        "import logging, os, pathlib, sys; from rich.console import Console\n"
        "from flows.console import continue_without_reader, log_to_console, echo\n"
        "log_to_console(); continue_without_reader(); echo('begun'); sys.stdin.read()\n"
        f"for _ in range(2): {write}\n"
        f"pathlib.Path({str(tmp_path / 'done')!r}).touch()"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stderr.readline() == b"begun\n"
    run.stderr.close()
    run.stdin.close()
    assert run.wait(60) == 0
    assert (tmp_path / "done").exists()
