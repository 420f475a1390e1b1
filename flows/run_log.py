"""The log of a flow run on Prefect's page: the lines for people, and the warnings of the logger `cpb`."""

import logging

from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.handlers import APILogHandler

from tasks.storage.files import without_credentials


class RunLogHandler(APILogHandler):
    """Sends records to the flow run or task run of the calling thread; other records are dropped.

    The lines are sent to Prefect's API handler directly: through Prefect's loggers they would appear on the terminal
    twice or not at all, depending on `quiet_libraries` and the user's settings.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; credentials in URLs are removed."""
        if FlowRunContext.get() or TaskRunContext.get():
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the text that the page shows."""
        return without_credentials(super().format(record))


RUN_LOG = RunLogHandler()


def log_to_run(text: str) -> None:
    """Log a line to the running flow or task; does nothing outside a run."""
    RUN_LOG.handle(logging.LogRecord("cpb", logging.INFO, "", 0, text, None, None))
