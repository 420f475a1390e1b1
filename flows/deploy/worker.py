"""`python -m flows.deploy.worker PORT SERVER`: Prefect's worker, which ends with its server.

A worker sends the password at every poll and runs what the answer asks for. After the death of its server that would be
whoever has bound the port since. So the worker holds the port for as long as it runs, and watches the server's process:
when that has ended, it kills its flow runs and trainers, then itself. A training goes on from its checkpoints with the
next run.
"""

import os
import runpy
import signal
import sys
import threading
import time
from contextlib import suppress

import psutil

from flows.deploy.services import WORKER_COMMAND, keep_log, processes
from flows.ops.ports import hold

_POLL_S = 0.05


def main() -> None:
    """Run the worker until a signal or the end of the server with the process id `SERVER`."""
    port, server = map(int, sys.argv[1:])
    held = hold(port)  # before anything is sent; released by the end of the process alone
    keep_log("worker")
    threading.Thread(target=_end_with, args=(server,), daemon=True, name="server").start()
    sys.argv = list(WORKER_COMMAND)
    try:
        runpy.run_module("prefect", run_name="__main__", alter_sys=True)
    finally:
        held.close()


def _end_with(server: int) -> None:
    """Wait for the end of a process; then kill what this deployment has started, and this process last."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(server)
        # In a container the parent may never reap a zombie.
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(_POLL_S)
    print("cpb: the server has ended, and so does its worker", file=sys.stderr, flush=True)
    for left in processes():
        with suppress(psutil.NoSuchProcess):
            left.kill()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
