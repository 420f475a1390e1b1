"""Logs of servers are bounded: a line a minute of each kind, and files that are rotated while they are written."""

import io
import logging
import subprocess
import sys

import pytest

from flows.ops import logs
from flows.ops.logs import OncePerMinute, log_once_per_minute, rotate


@pytest.fixture
def said(monkeypatch):
    """A logger whose handler is limited: what it wrote, and the clock."""
    clock = [1000.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: clock[0])
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logger = logging.Logger("strangers")
    logger.addHandler(handler)
    handler.addFilter(OncePerMinute())
    return logger, written, clock


def test_a_message_is_logged_once_a_minute_and_says_how_many_were_left_out(said):
    logger, written, clock = said
    for number in range(1000):
        logger.warning("invalid request from %s", number)
    assert written.getvalue() == "invalid request from 0\n"
    clock[0] += 59
    logger.warning("invalid request from %s", "x")
    clock[0] += 2
    logger.warning("invalid request from %s", "y")
    logger.warning("invalid request from %s", "z")
    assert written.getvalue() == "invalid request from 0\ninvalid request from y (1000 more like it before)\n"


def test_other_messages_and_other_errors_are_of_other_kinds(said):
    logger, written, _ = said
    for error in (ValueError("a"), ValueError("b"), KeyError("c")):
        try:
            raise error
        except (LookupError, ValueError):
            logger.exception("failed")
    logger.warning("another")
    text = written.getvalue()
    assert (text.count("ValueError: a"), text.count("ValueError: b"), text.count("KeyError")) == (1, 0, 1)
    assert text.endswith("another\n")


def test_kinds_that_are_made_up_take_no_memory(said):
    logger, written, _ = said
    limited = logger.handlers[0].filters[0]
    for number in range(1000):
        logger.warning(f"kind {'x' * number}")
    assert len(limited._kinds) <= 200
    assert written.getvalue().count("\n") < 300


def test_numbers_in_a_message_make_no_kind(said):
    logger, written, _ = said
    for number in range(100):
        logger.error(f"Task exception was never retrieved\nfuture: <Task 'Task-{number}' at {number:#x}>")
    assert written.getvalue().count("Task exception") == 1


def test_one_damaged_file_does_not_hide_another(said):
    logger, written, _ = said
    for month in ("2025-01", "2025-02", "2025-01"):
        logger.warning("%s", f"forecasts/{month}.parquet is damaged")
    assert written.getvalue().splitlines() == [
        "forecasts/2025-01.parquet is damaged",
        "forecasts/2025-02.parquet is damaged",
    ]


def test_each_handler_is_limited_once():
    handler = logging.StreamHandler(io.StringIO())
    logger = logging.getLogger("cpb.test.limited")
    logger.addHandler(handler)
    try:
        for _ in range(2):
            log_once_per_minute()
        assert [type(known) for known in handler.filters] == [OncePerMinute]
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("test", ["the first", "the next"])
def test_a_warning_that_one_test_saw_is_not_kept_from_the_next(caplog, test):
    log_once_per_minute()
    for _ in range(2):
        logging.getLogger("cpb").warning("the same in each test: %s", test)
    assert len(caplog.records) == 1


def test_a_log_that_is_too_large_is_moved_and_its_newest_part_is_kept(tmp_path):
    log = tmp_path / "server.log"
    rotate(log, 10)  # none yet
    log.write_bytes(b"0123456789")
    rotate(log, 10)
    assert log.read_bytes() == b"0123456789"
    with log.open("ab") as writer:
        writer.write(b"abcdef")
        writer.flush()
        rotate(log, 10)
        assert (log.read_bytes(), (tmp_path / "server.log.1").read_bytes()) == (b"", b"6789abcdef")
        writer.write(b"more")
    assert log.read_bytes() == b"more"  # at the new end: no hole before it
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server.log", "server.log.1"]


def test_a_process_keeps_its_own_log_bounded_and_no_other_file(tmp_path):
    code = """
import subprocess, sys, time
from pathlib import Path
from flows.ops import logs
logs._CHECK_S = 0.05
logs.keep_bounded(Path(sys.argv[1]), 2000)
for _ in range(100):
    subprocess.run(["echo", "x" * 100], stdout=2)  # a child writes there, too
    time.sleep(0.01)
time.sleep(0.2)
"""
    mine, other = tmp_path / "mine.log", tmp_path / "other.log"
    other.write_bytes(b"y" * 5000)
    for path in (mine, other):
        with mine.open("ab") as output:
            subprocess.run([sys.executable, "-c", code, str(path)], stderr=output, check=True, timeout=120)
        if path == mine:
            assert mine.stat().st_size < 8000  # of 10,100: what a busy machine writes between two looks
            assert mine.with_name("mine.log.1").stat().st_size <= 2000
    assert other.stat().st_size == 5000
    assert mine.stat().st_size > 9000
