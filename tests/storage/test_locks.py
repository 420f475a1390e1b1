"""Locks between processes: held once, freed by death, never opened through a link."""

import os
import signal
import subprocess
import sys
import time

import pytest

from schemas.errors import BusyError, CpbError
from tasks.storage.locks import acquire, is_locked, locked, open_lock, temporary_lock

HOLDER = """
import sys, time
from pathlib import Path
from tasks.storage.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_holder_is_refused_or_waits(tmp_path):
    path = tmp_path / "a" / "lock"
    with locked(path):
        assert is_locked(path)
        with pytest.raises(BusyError), locked(path, wait=False):
            pass
    assert not is_locked(path)


def test_shared_holders_share_and_keep_the_others_out(tmp_path):
    path = tmp_path / "lock"
    with locked(path, shared=True) as first, locked(path, shared=True):
        with pytest.raises(BusyError):
            acquire(first, wait=False)
    with open_lock(path) as file:
        acquire(file, wait=False)


def test_the_kernel_frees_the_lock_of_a_killed_holder(tmp_path):
    path = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        assert is_locked(path)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(10)
        deadline = time.monotonic() + 5
        while is_locked(path) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not is_locked(path)
    finally:
        holder.kill()
        holder.stdout.close()


def test_a_link_in_the_way_is_not_followed(tmp_path):
    target = tmp_path / "precious"
    (tmp_path / "lock").symlink_to(target)
    with pytest.raises(CpbError) as refused:
        open_lock(tmp_path / "lock")
    assert refused.value.code == "lock"
    assert not target.exists()


def test_temporary_locks_lie_in_a_folder_of_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = temporary_lock("x.lock")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.parent.rmdir()
    path.parent.symlink_to(tmp_path)
    with pytest.raises(CpbError):
        temporary_lock("x.lock")
