"""Which of a member's figures MLflow stores as metrics: those of the contract, and those that lists and gates read.

A metric of a run costs SQLite 380 bytes of rows and indexes (six of them), and a night of the whole exchange has
thousands of members. What is left out lies beside the model all the same, in `metrics.json` and `config.json`.
"""

from collections.abc import Mapping
from typing import Any

_CONTRACT = (
    "test_crps", "test_crps_ratio", "test_mae_ratio", "test_directional_accuracy", "test_coverage_80", "windows_per_s",
    "epochs_run", "gpu_mem_allocated_peak_mb", "gpu_mem_reserved_peak_mb", "gpu_util_mean", "rss_peak_mb",
)  # fmt: skip
_READ = (
    "test_crps_ratio_low", "test_crps_ratio_high", "test_p", "test_p_holm", "test_n", "test_coverage_90",
    "validation_crps_ratio",
)  # fmt: skip
"""What the leaderboard, the page's lists, the model card and the gate read of members that are no champions."""

LOGGED = frozenset((*_CONTRACT, *_READ, *(name.replace("crps", "rps") for name in (*_CONTRACT, *_READ))))

_CLASSIFIER = "test_accuracy"
"""A figure that only classifiers have, of which there are few: theirs are all logged."""


def logged(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that a member's run gets in MLflow."""
    if _CLASSIFIER in metrics:
        return dict(metrics)
    return {name: value for name, value in metrics.items() if name in LOGGED}
