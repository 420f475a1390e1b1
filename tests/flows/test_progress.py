"""Progress for people: bars in a real terminal of any width, lines where there is none."""

import os
import re
import sys

import pytest
from terminal import Terminal

from flows.console import Display, Lines, Work, clock, fitting, shown_progress
from schemas.errors import UsageError
from tasks.running.parallel import run_each
from tasks.running.progress import Pace, Progress, heard_by, tell, tell_line, telling

PROGRAM = """
import time
from flows.console import shown_progress
from tasks.running.progress import tell, tell_line
with shown_progress("train"):
    input()
    tell_line("training gru on cpu (2 cores)")
    facts = ("loss 0.6315 / 1.2673", "batch 12/54", "1,234 windows/s", "512 MB", "lr 1.0e-03")
    for done in (1, 2):
        tell("ingest", done, 1234, "files", "BTCUSDT 1h")
        tell("train har-universal", 3 + done, 50, "epochs", *facts)
        time.sleep(0.3)
    print("\\nSHOWN")
    input()
"""


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_bars_fit_any_terminal_and_keep_what_matters_most(columns):
    own = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
    }  # which pytest sets
    shown = Terminal([sys.executable, "-c", PROGRAM], columns, env=own)
    try:
        shown.read_until(lambda: "train" in shown.screen)
        shown.type("\n")
        shown.read_until(lambda: "SHOWN" in shown.screen)
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.screen).replace("\r", "\n")
        lines = plain.splitlines()
        assert max(map(len, lines)) <= columns
        row = [line for line in lines if line.startswith("train har-universal")][-1]
        assert "5/50 epochs" in row
        assert (" left" in row, "━" in row, "loss" in row, "batch" in row) == (
            columns >= 60, columns >= 60, columns >= 80, columns >= 120,
        )  # fmt: skip
        assert "training gru on cpu (2 cores)" in lines
        shown.type("\n")
        shown.read_until(lambda: shown.process.poll() is not None)
    finally:
        shown.close()


def test_facts_leave_first_then_the_bar_then_time_and_count():
    row = ["train gru", "12/50 epochs", "0:42 left", "loss 2.3102 / 2.4021", "batch 12/54"]
    assert [fitting([row], width) for width in (120, 80, 60, 36, 24, 9)] == [
        (5, 24), (4, 20), (3, 22), (3, 0), (1, 0), (1, 0),
    ]  # fmt: skip
    assert fitting([], 80) == (0, 24)


def test_the_time_left_follows_the_pace_and_a_resumed_training_its_own():
    work = Work(Progress("train gru", 30, 50, "epochs"), 100.0)
    assert work.left(107.0) == "0:07"
    work.take(Progress("train gru", 32, 50, "epochs"), 110.0)
    assert (work.count(), work.left(110.0), work.left(115.0)) == ("32/50 epochs", "1:30 left", "1:25 left")
    work.take(Progress("train gru", 1, 50, "epochs"), 120.0)
    assert work.left(121.0) == "0:01"


def test_work_that_begins_anew_where_it_began_has_a_pace_of_its_own():
    pace = Pace()
    for now, done in enumerate((0.0, 0.5, 1.0)):
        pace.take(done, 1, now)
    pace.take(0.0, 1, 100.0)
    assert (pace.left(101.0), pace.taken(101.0)) == (None, 1.0)
    pace.take(0.25, 1, 101.0)
    assert pace.left(101.0) == 3.0


def test_a_clock_reads_as_people_write_it():
    assert [clock(one) for one in (0, 7.4, 61, 3723)] == ["0:00", "0:07", "1:01", "1:02:03"]


def test_finished_work_leaves_and_the_first_step_takes_the_commands_place():
    display = Display(Clock())
    with heard_by(display):
        tell("train", 0, 0, "", "loading libraries")
        with telling("ingest", 3, "files"):
            assert [work.latest.step for work in display.under_way()] == ["ingest"]
        assert display.under_way() == []


def test_without_a_terminal_lines_are_printed():
    said = []
    lines = Lines(said.append, 1000, epochs=20)
    with heard_by(lines):
        tell_line("training gru on cpu (2 cores)")
        for epoch in (1, 19, 21, 22, 40):
            tell(
                "train gru",
                epoch,
                50,
                "epochs",
                "loss 1 / 2",
                epoch=epoch,
                epoch_line=f"gru: epoch {epoch}/50",
            )
        run_each([lambda: tell("ingest", 1234, 2000, "files", "BTCUSDT 1h")], 1)
        lines.report()
    assert said[:3] == ["training gru on cpu (2 cores)", "gru: epoch 21/50", "gru: epoch 40/50"]
    assert re.fullmatch(r"train gru: 40/50 epochs, 0:0\d left, loss 1 / 2", said[3])
    assert said[4] == "ingest: 1,234/2,000 files, 0:00, BTCUSDT 1h"


def test_lines_come_by_themselves_as_long_as_the_block_lasts(capsys, monkeypatch):
    monkeypatch.setattr("flows.console.LINE_EVERY_S", 0.01)
    with shown_progress("train"), shown_progress("flow"):
        for _ in range(2000):
            if (seen := capsys.readouterr().err) or _wait():
                break
    assert seen.startswith("train: ")
    assert "loading libraries" in seen


def _wait():
    import time

    time.sleep(0.01)


@pytest.mark.parametrize("text", ["", "-1", "many"])
def test_a_wrong_number_of_epochs_is_named(monkeypatch, text):
    monkeypatch.setenv("CPB_LOG_EPOCHS", text)
    with pytest.raises(UsageError, match="CPB_LOG_EPOCHS") as found, shown_progress("train"):
        pass
    assert found.value.field == "CPB_LOG_EPOCHS"
