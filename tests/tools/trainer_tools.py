"""Stand-ins for the trainer, and who runs."""

import time
from contextlib import suppress

import psutil

PRELUDE = """\
import sys, pathlib, time, os
from tasks.training.gpu_locks import gpu_locked

def serve(requests):
    global folder, kernels_off
    for folder, kernels_off in requests:
        with gpu_locked() as is_free:
            if is_free:
                (folder / "pid").write_text(str(os.getpid()))
                exec(WORK, globals())
        requests.answer(is_free)
"""


def trainers_in(folder):
    """The running children that find their modules beside this folder, as the fixture `worker` arranges."""
    return children_with("PYTHONPATH", folder.parent.resolve())


def children_with(name, place):
    """The running children of `multiprocessing` whose environment variable begins with a path."""
    children = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if "--multiprocessing-fork" in (process.info["cmdline"] or []) and process.info["status"] != "zombie":
            with suppress(psutil.Error):
                if process.environ().get(name, "").startswith(str(place)):
                    children.append(process)
    return children


def wait_until(done, timeout=60.0):
    end = time.monotonic() + timeout
    while not (result := done()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
    return result
