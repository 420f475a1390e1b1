"""What people read on the terminal, in the log of a Prefect flow run too.

The lines go to Prefect's API handler directly: through Prefect's loggers they would stand twice on the terminal, or
not at all, as `quiet_libraries` or a user's settings have it.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.handlers import APILogHandler

from tasks.storage.urls import without_credentials

log = logging.getLogger("cpb")


class RunLogHandler(APILogHandler):
    """Sends records to the flow run, or task run, that the calling thread works for; others are dropped."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record; the credentials of URLs in it are removed."""
        if FlowRunContext.get() or TaskRunContext.get():
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the text that the page shows."""
        return without_credentials(super().format(record))


_handler = RunLogHandler()


def log_to_run(text: str) -> None:
    """Put a line into the log of the running flow or task; does nothing outside of one."""
    _handler.handle(logging.LogRecord("cpb", logging.INFO, "", 0, text, None, None))


@contextmanager
def logged_to_run() -> Iterator[None]:
    """Send what the logger `cpb` reports in the block (warnings of retries, of damaged files) to the run as well."""
    log.addHandler(_handler)
    try:
        yield
    finally:
        log.removeHandler(_handler)
