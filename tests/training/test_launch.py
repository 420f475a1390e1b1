"""The process that trains: its slots, its death, its kill timer; with a stand-in for the worker."""

import json
import os
import sys
import threading
import time

import pytest

from schemas.errors import CpbError
from tasks.training import launch as module
from tasks.training.launch import Slots, gpu_slot, launch, plan_slots, slot


@pytest.fixture
def worker(monkeypatch):
    """Run this code instead of the worker; `folder` is a Path."""

    def use(code):
        real = module.subprocess.Popen
        prelude = "import sys, pathlib, time, os; folder = pathlib.Path(sys.argv[-1])\n"

        def popen(command, **options):
            return real([sys.executable, "-c", prelude + code, command[-1]], **options)

        monkeypatch.setattr(module.subprocess, "Popen", popen)

    return use


CPU = Slots((), 1, 1)


def test_a_finished_job_is_not_started(tmp_path, worker):
    worker("(folder / 'started').touch()")
    (tmp_path / "done.json").write_text("{}")
    launch(tmp_path, CPU, 30)
    assert not (tmp_path / "started").exists()


def test_threads_follow_from_the_plan_and_progress_is_told(tmp_path, worker):
    worker(
        "(folder / 'progress.json').write_text('{\"epoch\": 3}'); time.sleep(0.5)\n"
        "(folder / 'done.json').write_text('{\"threads\": ' + os.environ['CPB_THREADS'] + '}')"
    )
    told = []
    launch(tmp_path, Slots((), 1, 2), 30, told.append)
    assert told == [{"epoch": 3}]
    assert json.loads((tmp_path / "done.json").read_text()) == {"threads": 2}


def test_a_dead_worker_is_an_error_with_its_last_words(tmp_path, worker):
    worker("print('ModelError: no room', file=sys.stderr); sys.exit(1)")
    with pytest.raises(CpbError, match=r"ended with code 1: ModelError: no room \(log: .*worker\.log\)"):
        launch(tmp_path, CPU, 30)


def test_a_killed_worker_names_its_signal(tmp_path, worker):
    worker("os.kill(os.getpid(), 9)")
    with pytest.raises(CpbError, match="killed by signal 9"):
        launch(tmp_path, CPU, 30)


def test_a_worker_past_its_limit_is_stopped(tmp_path, worker):
    worker("(folder / 'pid').write_text(str(os.getpid())); time.sleep(600)")
    with pytest.raises(CpbError, match="ran past its limit of 1 s"):
        launch(tmp_path, CPU, 1)
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_cpu_slots_bound_what_runs_side_by_side():
    inside, most = 0, 0
    guard = threading.Lock()

    def work():
        nonlocal inside, most
        with slot(Slots((), 2, 1)):
            with guard:
                inside += 1
                most = max(most, inside)
            time.sleep(0.05)
            with guard:
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 2


def test_a_gpu_is_held_by_one_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))
    with gpu_slot((0, 1), poll_s=0.01) as first, gpu_slot((0, 1), poll_s=0.01) as second:
        assert {first, second} == {0, 1}
    with gpu_slot((0, 1), poll_s=0.01) as again:
        assert again == 0


def test_slots_without_a_gpu(monkeypatch):
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert plan_slots("cpu", 5) == Slots((), 5, 1)
    assert plan_slots("cpu", 2) == Slots((), 2, 4)
    assert plan_slots("cpu", 20) == Slots((), 8, 1)


def test_slots_follow_the_visible_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    slots = plan_slots("auto", 5)
    assert slots.gpus == (0, 1)
    assert slots.workers == 2
    assert [module._visible(i) for i in slots.gpus] == ["2", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert plan_slots("auto", 1).gpus == ()
