"""Content of a flow run on Prefect's page: the terminal output, the leaderboard and the failures."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.handlers import APILogHandler

from tasks.storage.urls import without_credentials

log = logging.getLogger("cpb")

_COLUMNS = (
    "timeframe", "architecture", "members", "failed", "crps_ratio", "crps_ratio_low", "crps_ratio_high", "verdict",
    "better_share", "mae_ratio", "directional_accuracy", "coverage_80", "windows_per_s", "train_seconds",
)  # fmt: skip
_DIGITS = 4


def show_run(flow: str, run_id: str, failures: Sequence[str], warnings: Sequence[str] = ()) -> None:
    """Show the leaderboard of an MLflow run, the failures, and the warnings about its trainings."""
    from tasks.tracking.boards import leaderboard

    with _never_failing():
        show_table(flow, [{name: row.get(name) for name in _COLUMNS} for row in leaderboard(run_id)])
    show_failures(flow, failures, warnings)


def show_table(flow: str, rows: Sequence[dict[str, Any]]) -> None:
    """Create the artifact FLOW-leaderboard from rows of texts and numbers."""
    shown = [{name: _shown(value) for name, value in row.items()} for row in rows]
    with _never_failing():
        create_table_artifact(
            shown,
            f"{flow}-leaderboard",
            "Against the random walk, on the test span: ratios below 1 are better",
        )


def show_failures(flow: str, failures: Sequence[str], warnings: Sequence[str] = ()) -> None:
    """Create the artifact FLOW-failures: a line with the reason for each failure, then the warnings."""
    text = _listed(failures) or "Nothing failed."
    if warnings:
        text += f"\n\nWarnings:\n\n{_listed(warnings)}"
    with _never_failing():
        create_markdown_artifact(text, f"{flow}-failures", "What failed in this run")


def _listed(texts: Sequence[str]) -> str:
    return "\n".join(f"- {' '.join(without_credentials(text).split())}" for text in texts)


@contextmanager
def _never_failing() -> Iterator[None]:
    """Log errors instead of raising them: the results are stored, so a missing artifact must not fail the run."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see above
        log.warning("the results could not be put on Prefect's page: %s", error)


def _shown(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return round(value, _DIGITS) if abs(value) < float("inf") else None


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


_handler = RunLogHandler()


def log_to_run(text: str) -> None:
    """Log a line to the running flow or task; does nothing outside a run."""
    _handler.handle(logging.LogRecord("cpb", logging.INFO, "", 0, text, None, None))


@contextmanager
def logged_to_run() -> Iterator[None]:
    """Also send records of the logger `cpb` in the block (warnings of retries, of damaged files) to the run."""
    log.addHandler(_handler)
    try:
        yield
    finally:
        log.removeHandler(_handler)
