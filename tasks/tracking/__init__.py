"""MLflow: the store, runs with batch logging, the registry of champions and the leaderboard."""

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
