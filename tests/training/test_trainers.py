"""The process that trains: its threads, its end, its death, its time limit; with a stand-in for the worker."""

import errno
import json
import os
import shutil
import subprocess
import time
from contextlib import closing
from functools import partial
from itertools import pairwise

import psutil
import pytest

from schemas.errors import CpbError
from tasks.running.cores import Cores
from tasks.running.parallel import run_each
from tasks.training.trainers import Slots, TrainerDied, Trainers, TrainingTimeout, run_trainer
from tests.tools.trainer_tools import trainers_in, wait_until

CPU = Slots((), 1, 1)


def test_threads_follow_from_the_plan_and_progress_is_told_without_half_a_file(folder, worker, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    worker(
        "file = folder / 'progress.json'\n"
        "file.write_text('{\"epo'); time.sleep(0.4); file.write_text('{\"epoch\": 4}'); time.sleep(0.4)\n"
        "seen = [os.environ['CPB_THREADS'], os.environ['CUDA_VISIBLE_DEVICES']]\n"  # on a CPU no GPU
        "import json; (folder / 'result.json').write_text(json.dumps(seen))"
    )
    told = []
    run_trainer(folder, Slots((), 1, 2), 30, told.append)
    assert told == [{"epoch": 4}]
    assert json.loads((folder / "result.json").read_text()) == ["2", ""]


def test_it_is_told_when_a_trainer_is_free_which_is_the_same_process_for_all_shards(tmp_path, worker):
    worker("time.sleep(0.5); (folder / 'result.json').touch()")
    folders, starts = [tmp_path / name for name in "abc"], []
    for shard in folders:
        shard.mkdir()

    def told(text):
        if text.startswith("starting"):
            starts.append(time.monotonic())

    with closing(Trainers(CPU)) as trainers:
        ended = run_each([partial(trainers.train, shard, 30, None, told) for shard in folders], 3)
    assert ended == [None] * 3
    assert all(later - earlier >= 0.4 for earlier, later in pairwise(starts))
    assert len({(shard / "pid").read_text() for shard in folders}) == 1


def test_after_a_death_the_next_shard_gets_a_new_trainer_and_the_others_go_on(tmp_path, worker):
    worker(
        "if folder.name == 'bad': sys.exit('CpbError: bad')\n"
        "time.sleep(0.5); (folder / 'result.json').touch()"
    )
    names = ("good", "bad", "next", "last")
    for name in names:
        (tmp_path / name).mkdir()
    with closing(Trainers(Slots((), 2, 1))) as trainers:
        ended = run_each([partial(trainers.train, tmp_path / name, 30) for name in names], 2)
    assert [type(error) for error in ended] == [type(None), TrainerDied, type(None), type(None)]
    assert "CpbError: bad" in str(ended[1])
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


@pytest.mark.parametrize(
    ("work", "message", "code"),
    [
        ("sys.exit('ModelError: bad shape')", "ended with code 1: ModelError: bad shape", "trainer-died"),
        # not the words of an earlier run
        ("sys.exit(4)", r"ended with code 4: it wrote nothing .*worker\.log", "trainer-died"),
        ("os.kill(os.getpid(), 9)", "killed by signal 9", "trainer-died"),
        ("print('MemoryError', file=sys.stderr); sys.exit(1)", "add memory", "out-of-memory"),
        (
            "sys.exit('RuntimeError: DefaultCPUAllocator: can\\'t allocate memory: you')",
            "add memory",
            "out-of-memory",
        ),
        (
            f"raise OSError({errno.ENOSPC}, os.strerror({errno.ENOSPC}), 'weights')",
            "no space left",
            "disk-full",
        ),
    ],
)
def test_a_dead_worker_is_an_error_with_its_last_words_and_cause(folder, worker, work, message, code):
    (folder / "worker.log").write_text("of an earlier run: No space left on device\nMemoryError\n")
    worker(work)
    with pytest.raises(TrainerDied, match=message) as died:
        run_trainer(folder, CPU, 30)
    assert died.value.code == code


@pytest.mark.parametrize(
    "end", ["sys.exit('CpbError: the process lost its GPU: an illegal address')", "os.abort()"]
)
def test_a_trainer_that_dies_in_a_launch_is_started_again_without_kernels(end, folder, worker, caplog):
    worker(f"if not kernels_off: {end}\n(folder / 'result.json').write_text(kernels_off)")
    run_trainer(folder, Slots(("GPU-of-a-test",), 1, 1), 30)
    assert (folder / "result.json").read_text().startswith("a trainer died with them: ")
    assert "started again without Triton kernels" in caplog.text


def test_it_is_started_again_once_only_and_only_with_a_gpu(folder, worker):
    worker("(folder / 'tries').open('a').write('x'); sys.exit('CpbError: the process lost its GPU: x')")
    for slots, tries in ((CPU, 1), (Slots(("GPU-of-a-test",), 1, 1), 3)):
        with pytest.raises(TrainerDied, match="lost its GPU"):
            run_trainer(folder, slots, 30)
        assert len((folder / "tries").read_text()) == tries


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="a small tmpfs needs root")
def test_a_really_full_disk_is_named_though_no_log_can_be_written(folder, worker):
    worker("open(folder / 'weights', 'wb').write(bytes(10_000_000))")
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(TrainerDied) as died:
            run_trainer(folder, CPU, 30)
        assert died.value.code == "disk-full"
        remedy = "free some, then run the same command again to resume it"
        assert str(died.value) == f"no space left on the disk at {folder}: {remedy}"
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("stubborn", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "])
def test_a_worker_past_its_limit_is_stopped_even_if_it_ignores_the_request(folder, worker, stubborn):
    worker(f"{stubborn}time.sleep(600)")
    with pytest.raises(TrainingTimeout) as late:
        run_trainer(folder, CPU, 1)
    assert (late.value.code, late.value.field) == ("timeout", "train_timeout_s")
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


@pytest.mark.parametrize("moment", [0.05, 0.6, 2.9])
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
