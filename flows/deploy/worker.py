"""Entry point of the worker process: `python -m flows.deploy.worker --port 4200 --workers 2`."""

import asyncio
import os

from flows.deploy.services import POOL, announce, entry_options, settings
from flows.prefect_server import password_file, prefect_home
from tasks.storage.processes import ProcessId


def main() -> None:
    """Execute the pool's flow runs until SIGINT or SIGTERM."""
    options = entry_options("worker", __doc__)
    secret = {"PREFECT_API_AUTH_STRING": password_file().read()}
    os.environ |= settings(options.port, prefect_home()) | secret
    announce("worker", options.port, options.workers)

    from prefect.utilities.processutils import setup_signal_handlers_worker
    from prefect.workers.process import ProcessWorker

    setup_signal_handlers_worker(os.getpid(), "the worker", print)
    # Prefect labels each run with its worker's name, so the name identifies the process (see liveness).
    worker = ProcessWorker(
        work_pool_name=POOL,
        name=str(ProcessId.current()),
        limit=options.workers,
        create_pool_if_not_found=False,
    )
    try:
        asyncio.run(worker.start())
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("worker stopped", flush=True)


if __name__ == "__main__":
    main()
