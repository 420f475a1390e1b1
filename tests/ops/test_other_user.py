"""A second user of the machine finds no password of `cpb ui`. What it may ask for: test_listeners.py."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.other_user import NOBODY, as_nobody, let_others_pass
from tests.tools.ports import free_port
from tests.tools.started_servers import environment, processes_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user"),
]


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    """A running `cpb ui`: what it printed, its folder, its process, and a private file beside the store."""
    from tasks.tracking.experiment import store_at

    folder = tmp_path_factory.mktemp("victim")
    (folder / "data/mlruns").mkdir(parents=True)
    store_at(f"sqlite:///{folder}/data/mlruns/mlflow.db")
    private = folder / "private"
    private.mkdir(mode=0o700)
    (private / "key").write_text("the key")
    (private / "key").chmod(0o600)
    let_others_pass(folder)
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "ui", "--port", str(port), "--json"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        told = json.loads(process.stdout.readline())
        yield told, folder, process
    finally:
        for left in processes_of(folder):
            left.kill()
        process.communicate()


def secrets_of(told):
    """The password, and what a request carries of it."""
    assert len(told["password"]) >= 32
    return [told["password"], base64.b64encode(f"{told['user']}:{told['password']}".encode()).decode()]


def test_no_password_is_found_in_processes_or_files(victim):
    told, folder, process = victim
    wanted = [secret.encode() for secret in secrets_of(told)]

    def search():
        assert os.getuid() == NOBODY
        seen, leaks, closed = 0, [], 0
        places = [path for pid in Path("/proc").glob("[0-9]*") for path in (pid / "cmdline", pid / "environ")]
        for place in [*places, *folder.rglob("*")]:
            try:
                if place.is_file():
                    content = place.read_bytes()
                    seen += 1
                    leaks += [str(place)] * any(secret in content for secret in wanted)
            except OSError:
                closed += 1
        return json.dumps([seen, leaks, closed])

    seen, leaks, closed = json.loads(as_nobody(search))
    assert seen > 3
    assert closed > 0
    assert leaks == []
    # root's: it sees environments
    shown = subprocess.run(["ps", "axwwe"], capture_output=True, check=True).stdout
    assert b"flows.cli ui" in shown
    assert not any(secret in shown for secret in wanted)
    memory = as_nobody(lambda: os.open(f"/proc/{process.pid}/mem", os.O_RDONLY))
    assert "PermissionError" in memory
