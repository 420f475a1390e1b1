import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from tasks.storage.processes import ProcessId


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_a_running_process_is_alive_and_a_killed_one_dead(sleeper):
    one = ProcessId.of(sleeper.pid)
    assert one.is_alive() is True
    assert ProcessId.current() == ProcessId.of(os.getpid())
    sleeper.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
    assert one.is_alive() is False
    sleeper.wait()
    assert one.is_alive() is False
    with pytest.raises(ProcessLookupError):
        ProcessId.of(sleeper.pid)


def test_another_process_under_the_same_number_is_not_it(sleeper):
    one = ProcessId.of(sleeper.pid)
    assert replace(one, started=one.started - 1).is_alive() is False


def test_only_the_same_host_may_call_a_process_dead():
    gone = replace(ProcessId.current(), pid=2**22 - 1)
    assert gone.is_alive() is False
    assert replace(gone, host="elsewhere").is_alive() is None
    assert replace(ProcessId.current(), boot_id="an earlier boot").is_alive() is False


def test_the_text_form_keeps_everything():
    one = ProcessId.current()
    assert ProcessId.parse(str(one)) == one
    with pytest.raises(ValueError, match="unpack"):
        ProcessId.parse("ProcessWorker 0b1a")
