"""MLflow: where runs, models and results are recorded.

`open_store` opens the store (making, migrating and reconciling it). `start_parent`, `start_fleet`, `log_members`,
`log_metrics` and `finish` write runs, with batch logging. `register_champion` and `champions` are the registry,
`leaderboard` the comparison of architectures, `ui` MLflow's own interface.
"""

from tasks.tracking.commit import git_commit
from tasks.tracking.leaderboard import COLUMNS, leaderboard
from tasks.tracking.registry import Champion, champions, register_champion
from tasks.tracking.runs import (
    Dataset,
    MemberRecord,
    OpenRun,
    find_by_key,
    finish,
    log_member,
    log_members,
    log_metrics,
    start_fleet,
    start_parent,
)
from tasks.tracking.store import Store, open_store, tracking_uri

__all__ = [
    "COLUMNS",
    "Champion",
    "Dataset",
    "MemberRecord",
    "OpenRun",
    "Store",
    "champions",
    "find_by_key",
    "finish",
    "git_commit",
    "leaderboard",
    "log_member",
    "log_members",
    "log_metrics",
    "open_store",
    "register_champion",
    "start_fleet",
    "start_parent",
    "tracking_uri",
]
