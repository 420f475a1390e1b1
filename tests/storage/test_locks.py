"""Locks between processes: who holds them, what may lie in their place, and waiting that ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from schemas.errors import BusyError, CpbError
from tasks.storage import locks
from tasks.storage.interrupts import Interrupted, stoppable
from tasks.storage.locks import acquire, is_locked, locked, open_lock, temporary_lock
from tasks.storage.process_ids import ProcessId


def test_a_lock_is_held_by_one_and_free_afterwards(tmp_path):
    path = tmp_path / "made" / "lock"
    assert not is_locked(path)
    with locked(path):
        assert is_locked(path)
        with pytest.raises(BusyError), locked(path, wait=False):
            pass
    assert not is_locked(path)


def test_a_killed_holder_frees_the_lock(tmp_path):
    path = tmp_path / "lock"
    code = "import sys, time, pathlib; from tasks.storage.locks import locked\n"
    code += "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    assert is_locked(path)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert not is_locked(path)


def test_shared_holders_and_the_turn_to_an_exclusive_hold(tmp_path):
    with locked(tmp_path / "lock", shared=True) as mine:
        with locked(tmp_path / "lock", shared=True), pytest.raises(BusyError):
            acquire(mine, wait=False)
        acquire(mine, wait=False)
        with pytest.raises(BusyError), locked(tmp_path / "lock", shared=True, wait=False):
            pass


def test_a_wait_ends_with_the_hold_and_with_an_interrupt(tmp_path):
    ended = []
    stop = threading.Event()

    def wait(name):
        try:
            with stoppable(stop), locked(tmp_path / "lock"):
                ended.append(name)
        except Interrupted:
            ended.append("interrupted")

    with locked(tmp_path / "lock"):
        first = threading.Thread(target=wait, args=("first",))
        first.start()
        time.sleep(0.15)
        assert ended == []
        stop.set()
        first.join(60)
        assert ended == ["interrupted"]
        stop.clear()
        second = threading.Thread(target=wait, args=("second",))
        second.start()
    second.join(60)
    assert ended == ["interrupted", "second"]


def test_a_file_that_was_deleted_and_made_again_while_one_waited_is_the_one_that_is_held(tmp_path):
    path = tmp_path / "lock"
    held = threading.Event()
    release = threading.Event()

    def wait():
        with locked(path):
            held.set()
            release.wait(60)

    with locked(path):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.15)
        path.unlink()
        path.touch()
    assert held.wait(60)
    assert is_locked(path)
    release.set()
    thread.join()


def test_a_link_in_the_place_of_a_lock_file_is_refused(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(CpbError) as refused:
        open_lock(tmp_path / "lock")
    assert (refused.value.code, refused.value.field) == ("lock", str(tmp_path / "lock"))
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CpbError):
        open_lock(tmp_path / "dangling")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_a_lock_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(CpbError) as refused:
        open_lock(tmp_path / "lock")
    assert refused.value.code == "lock"


def test_a_users_own_lock_folder_must_be_a_folder_of_this_user(tmp_path, monkeypatch):
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path))
    assert temporary_lock("a.lock").parent.stat().st_mode & 0o777 == 0o700
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    temporary_lock("a.lock").parent.rmdir()
    (tmp_path / f"cpb-{os.getuid()}").symlink_to(elsewhere)
    with pytest.raises(CpbError) as refused:
        temporary_lock("a.lock")
    assert refused.value.code == "lock"


def test_a_running_process_is_alive_and_a_killed_one_dead():
    code = "import time; from tasks.storage.process_ids import ProcessId\n"
    code += "print(ProcessId.current(), flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as sleeper:
        process = ProcessId.parse(sleeper.stdout.readline())
        assert (process.pid, process.is_alive()) == (sleeper.pid, True)
        # another with the same number
        assert replace(process, started=process.started - 1).is_alive() is False
        sleeper.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
        assert process.is_alive() is False  # a zombie
    assert process.is_alive() is False


def test_only_the_same_host_may_call_a_process_dead():
    assert replace(ProcessId.current(), host="elsewhere", pid=2**22 - 1).is_alive() is None
    assert replace(ProcessId.current(), boot_id="an earlier boot").is_alive() is False
    with pytest.raises(ValueError, match="unpack"):
        ProcessId.parse("ProcessWorker 0b1a")
