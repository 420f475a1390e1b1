"""What a flow run shows on Prefect's page beside its log: the leaderboard and the failures."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from tasks.storage.urls import without_credentials
from tasks.tracking.leaderboard import leaderboard

log = logging.getLogger("cpb")

_COLUMNS = (
    "timeframe", "architecture", "members", "failed", "crps_ratio", "crps_ratio_low", "crps_ratio_high", "verdict",
    "better_share", "mae_ratio", "directional_accuracy", "coverage_80", "windows_per_s", "train_seconds",
)  # fmt: skip
_DIGITS = 4


def show_run(flow: str, run_id: str, failures: Sequence[str], warnings: Sequence[str] = ()) -> None:
    """Show the leaderboard of a run in MLflow, what failed, and the warnings about its trainings."""
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
