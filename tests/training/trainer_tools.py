"""Stand-ins for the trainer, and who runs."""

import time

import psutil

PRELUDE = """\
import sys, pathlib, time, os

def serve(orders):
    global folder, order
    for order in orders:
        folder = pathlib.Path(order["folder"])
        (folder / "pid").write_text(str(os.getpid()))
        exec(WORK, globals())
        orders.answer()
"""


def trainers_in(folder):
    """The running processes `python -m ... FOLDER`."""
    found = []
    for one in psutil.process_iter(["cmdline", "status"]):
        command = one.info["cmdline"] or []
        if "-m" in command and command[-1] == str(folder.resolve()) and one.info["status"] != "zombie":
            found.append(one)
    return found


def wait_until(done, timeout=60.0):
    end = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
