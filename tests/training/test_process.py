"""The process that trains: its threads, its end, its death, its time limit; with a stand-in for the worker."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from trainer_tools import PRELUDE, trainers_in, wait_until

from schemas.errors import CpbError
from tasks.training import process
from tasks.training.devices import Slots, hold_slot
from tasks.training.runner import TrainerDied, TrainingTimeout, run_trainer

CPU = Slots((), 1, 1)


def test_a_finished_job_is_not_started(folder, worker):
    worker("(folder / 'started').touch()")
    (folder / "result.json").write_text("{}")
    run_trainer(folder, CPU, 30)
    assert not (folder / "started").exists()


def test_threads_follow_from_the_plan_and_progress_is_told(folder, worker):
    worker(
        "(folder / 'progress.json').write_text('{\"epoch\": 3}'); time.sleep(0.5)\n"
        "(folder / 'result.json').write_text('{\"threads\": ' + os.environ['CPB_THREADS'] + '}')"
    )
    told = []
    run_trainer(folder, Slots((), 1, 2), 30, told.append)
    assert told == [{"epoch": 3}]
    assert json.loads((folder / "result.json").read_text()) == {"threads": 2}


def test_it_is_told_when_a_place_to_train_in_is_free(folder, worker):
    worker("(folder / 'result.json').touch()")
    slots, told = Slots((), 1, 1), []
    with hold_slot(slots):
        waiting = threading.Thread(
            target=run_trainer, args=(folder, slots, 30, None, lambda: told.append("free"))
        )
        waiting.start()
        time.sleep(0.3)
        assert told == []
    waiting.join(30)
    assert told == ["free"]


def test_half_a_progress_file_is_passed_over(folder, worker):
    worker(
        "file = folder / 'progress.json'\n"
        "file.write_text('{\"epo'); time.sleep(0.4); file.write_text('{\"epoch\": 4}'); time.sleep(0.4)\n"
        "(folder / 'result.json').touch()"
    )
    told = []
    run_trainer(folder, CPU, 30, told.append)
    assert told == [{"epoch": 4}]


def test_a_dead_worker_is_an_error_with_its_last_words(folder, worker):
    (folder / "worker.log").write_text("of an earlier run: No space left on device\n")
    worker("print('ModelError: bad shape', file=sys.stderr); sys.exit(1)")
    with pytest.raises(TrainerDied, match=r"ended with code 1: ModelError: bad shape .*worker\.log") as died:
        run_trainer(folder, CPU, 30)
    assert died.value.code == "trainer-died"


def test_a_worker_that_says_nothing_is_not_given_the_words_of_an_earlier_run(folder, worker):
    (folder / "worker.log").write_text("MemoryError\n")
    worker("sys.exit(4)")
    with pytest.raises(TrainerDied, match="ended with code 4: it wrote nothing"):
        run_trainer(folder, CPU, 30)


def test_a_killed_worker_names_its_signal(folder, worker):
    worker("os.kill(os.getpid(), 9)")
    with pytest.raises(TrainerDied, match="killed by signal 9") as died:
        run_trainer(folder, CPU, 30)
    assert died.value.code == "trainer-died"


def test_a_worker_that_the_kernel_killed_for_memory_says_so(folder, worker, monkeypatch):
    counts = iter((7, 8))
    monkeypatch.setattr(process, "_oom_kills", lambda: next(counts))
    worker("os.kill(os.getpid(), 9)")
    with pytest.raises(TrainerDied, match=r"ran out of memory.*kernel") as died:
        run_trainer(folder, CPU, 30)
    assert died.value.code == "out-of-memory"


def test_the_kernel_counts_its_kills():
    vmstat = Path("/proc/vmstat")
    if not vmstat.exists() or "oom_kill " not in vmstat.read_text():
        pytest.skip("this kernel does not say")
    assert f"oom_kill {process._oom_kills()}\n" in vmstat.read_text()


@pytest.mark.parametrize(
    "line",
    [
        "MemoryError",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
    ],
)
def test_a_worker_without_memory_says_so(folder, worker, line):
    worker(f"print({line!r}, file=sys.stderr); sys.exit(1)")
    with pytest.raises(TrainerDied) as died:
        run_trainer(folder, CPU, 30)
    assert died.value.code == "out-of-memory"


def test_a_full_disk_is_named(folder, worker):
    worker(f"raise OSError({errno.ENOSPC}, os.strerror({errno.ENOSPC}), 'weights')")
    with pytest.raises(TrainerDied) as died:
        run_trainer(folder, CPU, 30)
    assert (died.value.code, died.value.field) == ("disk-full", str(folder))


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="a small tmpfs needs root")
def test_a_really_full_disk_is_named_though_no_log_can_be_written(folder, worker):
    worker("open(folder / 'weights', 'wb').write(bytes(10_000_000))")
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=False
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(TrainerDied) as died:
            run_trainer(folder, CPU, 30)
        assert died.value.code == "disk-full"
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_worker_past_its_limit_is_stopped(folder, worker):
    worker("time.sleep(600)")
    with pytest.raises(TrainingTimeout) as late:
        run_trainer(folder, CPU, 1)
    assert (late.value.code, late.value.field) == ("timeout", "train_timeout_s")
    assert not [one for one in psutil.Process().children(recursive=True) if str(folder) in one.cmdline()]


def test_a_worker_that_ignores_the_request_to_end_is_killed(folder, worker):
    worker("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)")
    with pytest.raises(TrainingTimeout):
        run_trainer(folder, CPU, 1)
    assert not trainers_in(folder)


def test_the_log_is_not_written_through_a_link(folder, worker, tmp_path):
    worker("print('out')")
    (tmp_path / "precious").write_text("mine")
    (folder / "worker.log").symlink_to(tmp_path / "precious")
    with pytest.raises(CpbError) as refused:
        run_trainer(folder, CPU, 30)
    assert refused.value.code == "log"
    assert (tmp_path / "precious").read_text() == "mine"


SLOW_IMPORT = "time.sleep(2.5)\n(folder / 'imported').touch()\ntime.sleep(600)"
"""What a trainer does that imports its libraries for a while and then trains."""


@pytest.mark.parametrize("moment", [0.05, 0.2, 0.6, 2.9])
def test_a_trainer_dies_with_its_parent_whenever_that_is_killed(folder, worker, start_parent, moment):
    worker(SLOW_IMPORT)
    parent = start_parent()
    time.sleep(moment)
    parent.kill()
    parent.wait()
    time.sleep(0.3)  # a trainer that is still being started when its parent dies comes up now
    wait_until(lambda: not trainers_in(folder), 2)


def test_a_trainer_that_asks_for_its_parent_long_after_its_death_ends(folder, worker, start_parent):
    worker(SLOW_IMPORT, prelude="import time; time.sleep(1)\n" + PRELUDE)
    parent = start_parent()
    wait_until(lambda: trainers_in(folder))
    parent.kill()
    parent.wait()
    assert trainers_in(folder)
    wait_until(lambda: not trainers_in(folder), 3)
    assert not (folder / "imported").exists()


def test_a_child_of_the_parent_that_keeps_the_pipe_open_does_not_keep_the_trainer(
    folder, worker, start_parent, tmp_path
):
    worker("time.sleep(600)")
    parent = start_parent(
        "import threading, time, os\n"
        "def fork():\n"
        "    while not pathlib.Path(sys.argv[1], 'pid').exists(): time.sleep(0.01)\n"
        "    if not os.fork(): time.sleep(30); os._exit(0)\n"
        "    pathlib.Path(sys.argv[1], 'forked').touch()\n"
        "threading.Thread(target=fork, daemon=True).start()"
    )
    wait_until((folder / "forked").exists)
    (child,) = [c for c in psutil.Process(parent.pid).children() if c not in trainers_in(folder)]
    parent.kill()
    parent.wait()
    wait_until(lambda: not trainers_in(folder), 2)
    assert child.is_running()
    child.kill()


def test_a_trainer_started_by_hand_needs_no_parent(folder, worker):
    code = f"{PRELUDE}time.sleep(0.8); (folder / 'result.json').touch()"
    subprocess.run([sys.executable, "-c", code, str(folder)], stdin=subprocess.DEVNULL, check=True)
    assert (folder / "result.json").exists()
