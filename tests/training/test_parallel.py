"""Calls side by side, and their end by Ctrl-C in a real terminal after polars has taken the signal's handler."""

import sys
import threading
import time
from contextvars import ContextVar
from pathlib import Path

import pytest

from tasks.running.cores import Cores
from tasks.running.parallel import run_each, thread_pool
from tasks.storage.interrupts import Interrupted, pause, stoppable
from tasks.training.gpu_locks import gpu_held
from tests.tools.terminal import Terminal
from tests.tools.trainer_tools import trainers_in, wait_until

ROOT = Path(__file__).resolve().parents[2]
NAME = ContextVar("name", default="none")


def test_results_and_errors_come_back_in_order():
    def fail():
        raise ValueError("two")

    def slow():
        time.sleep(0.1)
        return 1

    first, second, third = run_each([slow, fail, lambda: 3], workers=3)
    assert (first, third) == (1, 3)
    assert isinstance(second, ValueError)
    assert run_each([], workers=4) == []


def test_calls_see_the_callers_context_and_keep_theirs_to_themselves():
    def call():
        seen = NAME.get()
        NAME.set("changed")
        return seen

    token = NAME.set("flow")
    try:
        assert run_each([call] * 4, workers=2) == ["flow"] * 4
        assert NAME.get() == "flow"
    finally:
        NAME.reset(token)


def test_an_interrupt_in_one_call_stops_the_others_also_deep_inside():
    stopped, begun = [], []

    def wait_long():
        begun.append(1)
        try:
            pause(60)
        except Interrupted:
            stopped.append(1)
            raise

    def nested():
        run_each([wait_long, wait_long], workers=2)

    def interrupt():
        while len(begun) < 3:
            time.sleep(0.01)
        raise KeyboardInterrupt

    never = []
    with pytest.raises(KeyboardInterrupt):
        run_each([wait_long, nested, interrupt, lambda: never.append(1)], workers=3)
    assert len(stopped) == 3  # none waited for its 60 s
    assert not never


def test_a_call_that_cannot_be_stopped_is_left_behind(monkeypatch):
    monkeypatch.setattr("tasks.running.parallel.STOP_S", 0.3)
    release, ended = threading.Event(), threading.Event()

    def wait_for_release():
        release.wait()
        ended.set()

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_each([wait_for_release, interrupt], workers=2)
    assert not ended.is_set()
    release.set()


def test_a_wait_for_a_device_ends_with_an_interrupt(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.storage.locks.SHARED_FOLDER", tmp_path)
    for hold in (Cores(1).held, lambda _: gpu_held(("GPU-1",))):
        stop, ended = threading.Event(), []

        def wait(hold=hold, stop=stop, ended=ended):
            with stoppable(stop), pytest.raises(Interrupted), hold(1):
                pass
            ended.append(1)

        with hold(1):
            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(0.2)
            stop.set()
            thread.join(60)
            assert ended


def test_a_pool_drops_what_has_not_begun_when_an_error_ends_its_block():
    begun, waiting, futures = [], threading.Event(), []

    def work():
        begun.append(1)
        waiting.set()
        wait_until(lambda: len(futures) == 5 and futures[-1].cancelled())

    def fail_within_the_block():
        with thread_pool(1, "t") as pool:
            futures.extend(pool.submit(work) for _ in range(5))
            waiting.wait(60)
            raise ValueError

    with pytest.raises(ValueError):
        fail_within_the_block()
    assert len(begun) == 1


@pytest.mark.parametrize(("grace_s", "written"), [(0.0, False), (60.0, True)])
def test_an_interrupt_waits_for_running_calls_of_a_pool_as_long_as_it_is_told(grace_s, written):
    begun, over, done = threading.Event(), threading.Event(), threading.Event()

    def write():
        begun.set()
        over.wait(0.3 if written else 60)
        done.set()

    def interrupt_the_block():
        with thread_pool(1, "t", grace_s=grace_s) as pool:
            pool.submit(write)
            begun.wait(60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt_the_block()
    assert done.is_set() is written
    over.set()


SCRIPT = """\
QUERY
import pathlib, sys, time
from functools import partial
from flows.cli import end_interrupted
from tasks.running.parallel import run_each, thread_pool
from tasks.training import trainers as module
from tasks.training.trainers import Slots
module.TRAINER = "fake_worker"
folder = pathlib.Path(sys.argv[1])
trainers = {workers: module.Trainers(Slots((), workers, 1)) for workers in (1, 2)}
def train(name, workers):
    trainers[workers].train(folder / name, 600)
def main():
BODY
try:
    main()
except KeyboardInterrupt:
    end_interrupted()
"""
QUERY = "import polars; polars.LazyFrame({'a': [1, 2]}).select(polars.col('a').sum()).collect()"
LATE = """\
    def late():
        import polars
        train("a", 1)
    run_each([late], 1)
"""
FUTURE = """\
    with thread_pool(2, "t") as pool:
        pool.submit(train, "a", 1)
        pool.submit(time.sleep, 600).result()
"""
CALLS = "[partial(train, n, 2) for n in 'abc']"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "trainers", "query", "worker_code"),
    [
        pytest.param(f"    run_each({CALLS}, 3)", 2, QUERY, "", id="a call awaits a slot"),
        pytest.param(f"    run_each([lambda: run_each({CALLS}, 2)], 1)", 2, QUERY, "", id="nested"),
        pytest.param("    run_each([partial(train, 'a', 1)], 1)", 1, QUERY, STUBBORN, id="ignores SIGTERM"),
        pytest.param(LATE, 1, "", "", id="polars is imported while the main thread waits"),
        pytest.param(FUTURE, 1, QUERY, "", id="an untimed future.result() in a pool of its own"),
    ],
)
def test_ctrl_c_ends_trainings_at_once(tmp_path, worker, body, trainers, query, worker_code):
    worker(f"{worker_code}\nprint('epoch'); time.sleep(600)")
    fleets = [tmp_path / name for name in "abc"]
    for fleet in fleets:
        fleet.mkdir()
    code = SCRIPT.replace("BODY", body).replace("QUERY", query)
    terminal = Terminal([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT)
    try:
        terminal.read_until(lambda: sum((fleet / "pid").exists() for fleet in fleets) == trainers)
        time.sleep(0.3)
        terminal.press_ctrl_c()
        assert terminal.process.returncode == 130, terminal.screen
        assert "Traceback" not in terminal.screen
        if body == FUTURE:  # such a pool knows no stop event: its trainer ends when it sees its parent's end
            wait_until(lambda: not trainers_in(fleets[0]), 30)
        assert not trainers_in(fleets[0])
    finally:
        terminal.close()
