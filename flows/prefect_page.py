"""What a flow run shows on Prefect's page: what people read on the terminal, the leaderboard and the failures."""

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
    """Show the leaderboard of a run in MLflow, what failed, and the warnings about its trainings."""
    from tasks.tracking.leaderboard import leaderboard

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
    """Create the artifact FLOW-failures: a line for everything that failed, with its reason, then the warnings."""
    text = _listed(failures) or "Nothing failed."
    if warnings:
        text += f"\n\nWarnings:\n\n{_listed(warnings)}"
    with _never_failing():
        create_markdown_artifact(text, f"{flow}-failures", "What failed in this run")


def _listed(texts: Sequence[str]) -> str:
    return "\n".join(f"- {' '.join(without_credentials(text).split())}" for text in texts)


@contextmanager
def _never_failing() -> Iterator[None]:
    """Log what goes wrong: the results are stored, and a page without a table is no failure of the run."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see above
        log.warning("the results could not be put on Prefect's page: %s", error)


def _shown(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return round(value, _DIGITS) if abs(value) < float("inf") else None


class RunLogHandler(APILogHandler):
    """Sends records to the flow run, or task run, that the calling thread works for; others are dropped.

    The lines go to Prefect's API handler directly: through Prefect's loggers they would stand twice on the terminal, or
    not at all, as `quiet_libraries` or a user's settings have it.
    """

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
