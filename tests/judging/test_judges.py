"""The processes that judge: what they load, what becomes of one that dies, and their end with the command's."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tasks.judging.fleet import judge_shard
from tasks.judging.judges import Judges
from tasks.running.cores import Cores
from tests.tools.judged_members import member

ROOT = Path(__file__).resolve().parents[2]
FAKE = """
import os, time
def serve(requests):
    for folder, names in requests:
        if "SLOW" in names:
            time.sleep(600)
        if "BAD" in names:
            os._exit(9)
        requests.answer([])
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    (tmp_path / "fake_judge.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_judge_loads_no_torch():
    code = "import sys, tasks.judging.judge; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_member_that_ends_its_judge_is_a_failure_and_the_others_are_judged(fake):
    told = []
    with Judges(Cores(2), "fake_judge") as judges:
        (failure,) = judge_shard(
            judges, fake, [member(name) for name in ("A", "B", "BAD", "C", "D")], lambda: told.append(1)
        )
    assert (failure.step, failure.code) == ("evaluate", "judge-died")
    assert "ended with code 9" in failure.reason
    assert len(told) == 5


def test_nothing_to_judge_starts_no_process(fake):
    before = psutil.Process().children()  # of tests that ran earlier in this process
    with Judges(Cores(2), "fake_judge") as judges:
        assert judge_shard(judges, fake, []) == []
        assert set(psutil.Process().children()) <= set(before)


def test_a_judge_dies_with_the_command(fake):
    code = (
        "import sys, pathlib; from tasks.judging.judges import Judges; from tasks.running.cores import Cores\n"
        "from tasks.judging.fleet import judge_shard; from tests.tools.judged_members import member\n"
        "judge_shard(Judges(Cores(1), 'fake_judge'), pathlib.Path(sys.argv[1]), [member('SLOW')])"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(fake)], cwd=ROOT)
    try:
        end = time.monotonic() + 60
        while not (children := psutil.Process(parent.pid).children()):
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(1.0)
        assert children[0].is_running()
    finally:
        parent.kill()
        parent.wait()
    assert not psutil.wait_procs(children, timeout=60)[1]
