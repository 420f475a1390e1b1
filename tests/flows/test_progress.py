"""Progress for people: bars in a real terminal of any width, lines where there is none."""

import os
import re
import sys

import pytest
from rich.console import Console

from flows.progress import Display, shown_progress
from tasks.running.parallel import run_each
from tasks.running.progress import NOT_ENDED, report_line, report_progress, reporting, reports_to
from tests.tools.terminal import Terminal

PROGRAM = """
import time
from flows.progress import shown_progress
from tasks.running.progress import report_line, report_progress
with shown_progress("train"):
    input()
    report_line("training gru on cpu (2 cores)")
    facts = ("loss 0.6315 / 1.2673", "batch 12/54", "1,234 windows/s", "512 MB", "lr 1.0e-03")
    for done in (1, 2):
        report_progress("ingest", done, 1234, "files", "BTCUSDT 1h")
        report_progress("train har-universal", 3 + done, 50, "epochs", *facts)
        time.sleep(0.3)
    print("\\nSHOWN")
    input()
"""


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_bars_fit_any_terminal_and_keep_what_matters_most(columns):
    # without the two that pytest sets
    settings = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    shown = Terminal([sys.executable, "-c", PROGRAM], columns, env=settings)
    try:
        shown.read_until(lambda: "train" in shown.screen)
        shown.type("\n")
        shown.read_until(lambda: "SHOWN" in shown.screen)
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.screen).replace("\r", "\n")
        lines = plain.splitlines()
        assert max(map(len, lines)) <= columns
        row = [line for line in lines if line.startswith("train har-universal")][-1]
        assert "5/50 epochs" in row
        assert ("loss 0.6315" in row, "batch" in row) == (columns >= 80, columns >= 120)
        assert "training gru on cpu (2 cores)" in lines
        shown.type("\n")
        shown.read_until(lambda: shown.process.poll() is not None)
    finally:
        shown.close()


@pytest.fixture
def display():
    """A display without a terminal; no thread prints its lines."""
    return Display(Console(stderr=True, markup=False, force_terminal=False))


@pytest.mark.parametrize(
    ("done", "total", "shown"),
    [
        ((1 - NOT_ENDED) * 2, 2, "2/2"),
        ((1 - NOT_ENDED) * 100_000, 100_000, "100,000/100,000"),
        (1.99, 2, "1/2"),
        (999_999, 1_000_000, "999,999/1,000,000"),
    ],
)
def test_work_whose_units_are_all_done_is_displayed_so_until_it_ends(display, capsys, done, total, shown):
    with reports_to(display):
        report_progress("train gru", done, total, "epochs")
        display.print_tasks()
        report_progress("train gru", total, total, "epochs")
        display.print_tasks()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"train gru: {shown} epochs")


def test_finished_work_leaves_and_the_first_step_takes_the_commands_place(display):
    with reports_to(display):
        report_progress("train", 0, 0, "", "loading libraries")
        with reporting("ingest", 3, "files"):
            assert [task.fields["step"] for task in display.bars.tasks] == ["ingest"]
        assert display.bars.tasks == []


def test_without_a_terminal_lines_are_printed(display, capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(display.bars, "get_time", lambda: now[0])
    with reports_to(display):
        report_line("training gru on cpu (2 cores)")
        for epoch in (30, 32, 34):
            report_progress("train gru", epoch, 50, "epochs", "loss 1 / 2")
            now[0] += 10
        run_each([lambda: report_progress("ingest", 1234, 2000, "files", "BTCUSDT 1h")], 1)
        display.print_tasks()
    first, training, ingest = capsys.readouterr().err.splitlines()
    assert first == "training gru on cpu (2 cores)"
    assert training == "train gru: 34/50 epochs, 0:01:20 left, loss 1 / 2"
    assert ingest == "ingest: 1,234/2,000 files, 0:00:00, BTCUSDT 1h"


def test_lines_come_by_themselves_as_long_as_the_block_lasts(capsys, monkeypatch):
    monkeypatch.setattr("flows.progress.LINE_EVERY_S", 0.01)
    with shown_progress("train"), shown_progress("flow"):
        for _ in range(2000):
            if (seen := capsys.readouterr().err) or _wait():
                break
    assert seen.startswith("train: ")
    assert "loading libraries" in seen


def _wait():
    import time

    time.sleep(0.01)
