"""Stand-ins for the trainer, and who runs."""

import time

import psutil

PRELUDE = """\
from tasks.training.runner import die_with_parent
die_with_parent()
import sys, pathlib, time, os
folder = pathlib.Path(sys.argv[-1])
(folder / "pid").write_text(str(os.getpid()))
"""


def trainers_in(folder):
    """The running processes `python -m ... FOLDER`."""
    found = []
    for one in psutil.process_iter(["cmdline", "status"]):
        command = one.info["cmdline"] or []
        if "-m" in command and command[-1] == str(folder.resolve()) and one.info["status"] != "zombie":
            found.append(one)
    return found


def wait_until(done, timeout=20.0):
    end = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
