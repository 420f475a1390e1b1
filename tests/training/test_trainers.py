"""The process that trains: its threads, its end, its death, its time limit; with a stand-in for the worker."""

import errno
import json
import os
import shutil
import subprocess
import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from trainer_tools import trainers_in, wait_until

from schemas.errors import CpbError
from tasks.running.parallel import run_each
from tasks.running.resident import Cores
from tasks.training import local
from tasks.training.devices import Slots
from tasks.training.local import TrainerDied, Trainers, TrainingTimeout, run_trainer

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


def test_it_is_told_when_a_trainer_is_free_which_is_the_same_process_for_all_shards(tmp_path, worker):
    worker("time.sleep(0.5); (folder / 'result.json').touch()")
    folders = [tmp_path / name for name in "abc"]
    for one in folders:
        one.mkdir()
    trainers, told = Trainers(CPU), []
    try:
        calls = [
            threading.Thread(
                target=trainers.train,
                args=(one, 30, None, lambda text: told.append((text, time.monotonic()))),
            )
            for one in folders
        ]
        for call in calls:
            call.start()
        for call in calls:
            call.join(30)
    finally:
        trainers.stop()
    assert all(
        b - a >= 0.4 for a, b in pairwise(sorted(at for text, at in told if text.startswith("starting")))
    )
    assert len({(one / "pid").read_text() for one in folders}) == 1


def test_after_a_death_the_next_shard_gets_a_new_trainer_and_the_others_go_on(tmp_path, worker):
    worker(
        "if folder.name == 'bad': sys.exit('CpbError: bad')\n"
        "time.sleep(0.5); (folder / 'result.json').touch()"
    )
    names = ("good", "bad", "next", "last")
    for name in names:
        (tmp_path / name).mkdir()
    trainers = Trainers(Slots((), 2, 1))
    try:
        found = run_each([partial(trainers.train, tmp_path / name, 30) for name in names], 2)
    finally:
        trainers.stop()
    assert [type(one) for one in found] == [type(None), TrainerDied, type(None), type(None)]
    assert "CpbError: bad" in str(found[1])
    assert not trainers_in(tmp_path)


def test_trainers_and_judges_never_take_more_than_the_cores():
    cores, inside, most = Cores(2), [], []

    def work(wanted):
        with cores.held(wanted):
            inside.append(wanted)
            most.append(sum(inside))
            time.sleep(0.05)
            inside.remove(wanted)

    run_each([partial(work, wanted) for wanted in (1, 1, 2, 1, 8, 1, 1)], 7)
    assert max(most) == 8  # more than there are: all of them, alone
    assert sorted(most)[-2] == 2


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


@pytest.mark.parametrize(
    "end", ["sys.exit('CpbError: the process lost its GPU: an illegal address')", "os.abort()"]
)
def test_a_trainer_that_dies_in_a_launch_is_started_again_without_kernels(end, folder, worker, caplog):
    worker(f"if not kernels_off: {end}\n(folder / 'result.json').write_text(kernels_off)")
    run_trainer(folder, Slots(("GPU-of-a-test",), 1, 1), 30)
    assert (folder / "result.json").read_text().startswith("a trainer died with them: ")
    assert "started again without Triton kernels" in caplog.text


def test_once_only_and_for_no_other_reason(folder, worker):
    worker("(folder / 'tries').open('a').write('x'); sys.exit('CpbError: the process lost its GPU: x')")
    for slots, tries in ((CPU, 1), (Slots(("GPU-of-a-test",), 1, 1), 3)):
        with pytest.raises(TrainerDied, match="lost its GPU"):
            run_trainer(folder, slots, 30)
        assert len((folder / "tries").read_text()) == tries


def test_a_worker_that_the_kernel_killed_for_memory_says_so(folder, worker, monkeypatch):
    counts = iter((7, 8))
    monkeypatch.setattr(local, "_oom_kills", lambda: next(counts))
    worker("os.kill(os.getpid(), 9)")
    with pytest.raises(TrainerDied, match=r"ran out of memory.*kernel") as died:
        run_trainer(folder, CPU, 30)
    assert died.value.code == "out-of-memory"


def test_the_kernel_counts_its_kills():
    vmstat = Path("/proc/vmstat")
    if not vmstat.exists() or "oom_kill " not in vmstat.read_text():
        pytest.skip("this kernel does not say")
    assert f"oom_kill {local._oom_kills()}\n" in vmstat.read_text()


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
    assert not trainers_in(folder)


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


SLOW_IMPORT = "import time; time.sleep(2.5)\n"
"""What a trainer does that imports its libraries for a while."""


@pytest.mark.parametrize("moment", [0.05, 0.2, 0.6, 2.9])
def test_a_trainer_dies_with_its_parent_whenever_that_is_killed(folder, worker, start_parent, moment):
    worker("time.sleep(600)", prelude=SLOW_IMPORT)
    parent = start_parent()
    time.sleep(moment)
    parent.kill()
    parent.wait()
    time.sleep(0.3)  # a trainer that is still being started when its parent dies comes up now
    wait_until(lambda: not trainers_in(folder))


def test_a_trainer_that_asks_for_its_parent_long_after_its_death_ends(folder, worker, start_parent):
    worker("time.sleep(600)", prelude=SLOW_IMPORT)
    parent = start_parent()
    wait_until(lambda: trainers_in(folder))
    (trainer,) = trainers_in(folder)
    trainer.suspend()
    parent.kill()
    parent.wait()
    time.sleep(0.2)
    assert trainers_in(folder)
    trainer.resume()
    wait_until(lambda: not trainers_in(folder))
    assert not (folder / "pid").exists()


def test_a_child_of_the_parent_that_keeps_the_pipe_open_does_not_keep_the_trainer(
    folder, worker, start_parent, tmp_path
):
    worker("time.sleep(600)")
    parent = start_parent(
        "import threading, time, os\n"
        "def fork():\n"
        "    while not pathlib.Path(sys.argv[1], 'pid').exists(): time.sleep(0.01)\n"
        "    if not os.fork(): time.sleep(600); os._exit(0)\n"
        "    pathlib.Path(sys.argv[1], 'forked').touch()\n"
        "threading.Thread(target=fork, daemon=True).start()"
    )
    wait_until((folder / "forked").exists)
    command = psutil.Process(parent.pid).cmdline()
    (child,) = [c for c in psutil.Process(parent.pid).children() if c.cmdline() == command]
    parent.kill()
    parent.wait()
    wait_until(lambda: not trainers_in(folder))
    assert child.is_running()
    child.kill()
