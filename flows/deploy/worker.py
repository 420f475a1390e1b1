"""Entry point of the worker process: `python -m flows.deploy.worker --port 4200`."""

import asyncio
import os

from flows.deploy.services import POOL, announce, entry_port, settings
from flows.prefect_server import password_file, prefect_home
from tasks.storage.processes import ProcessId

_RUNS_AT_ONCE = 2
"""Flow runs at the same time: the hourly forecasts go on while the nightly run trains."""


def main() -> None:
    """Execute the pool's flow runs until SIGINT or SIGTERM."""
    port = entry_port("worker", __doc__)
    secret = {"PREFECT_API_AUTH_STRING": password_file().read()}
    os.environ |= settings(port, prefect_home()) | secret
    announce("worker", port)

    from prefect.utilities.processutils import setup_signal_handlers_worker
    from prefect.workers.process import ProcessWorker

    setup_signal_handlers_worker(os.getpid(), "the worker", print)
    # Prefect labels each run with its worker's name, so the name identifies the process (see liveness).
    worker = ProcessWorker(
        work_pool_name=POOL,
        name=str(ProcessId.current()),
        limit=_RUNS_AT_ONCE,
        create_pool_if_not_found=False,
    )
    try:
        asyncio.run(worker.start())
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("worker stopped", flush=True)


if __name__ == "__main__":
    main()
