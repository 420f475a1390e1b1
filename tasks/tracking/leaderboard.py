"""The leaderboard, from MLflow alone: architecture x timeframe against the random walk."""

from collections.abc import Iterable
from statistics import fmean
from typing import TYPE_CHECKING, Any

from schemas.errors import CpbError
from schemas.identity import SIM
from tasks.judging.inference import relation
from tasks.tracking.archive import read_archive
from tasks.tracking.connection import Store, find_run, search, search_lazily
from tasks.tracking.store import open_store
from tasks.tracking.tags import FLOW, KIND, PARENT, PRUNED, market_of

if TYPE_CHECKING:
    from mlflow.entities import Run

COLUMNS = {
    "market": "spot, um, cm, or sim for simulated candles",
    "timeframe": "candle length",
    "architecture": "name of the architecture",
    "members": "members that were judged",
    "failed": "members that failed",
    "crps_ratio": "CRPS / random walk's: each coin weighs the same; below 1 is better",
    "crps_ratio_low": "lower end of its 95 % interval",
    "crps_ratio_high": "upper end of its 95 % interval",
    "p_value": "two-sided p of the ratio being 1, pooled over coins",
    "verdict": "better, no different or worse than the random walk with EWMA volatility",
    "better_share": "share of coins with a ratio below 1",
    "mae_ratio": "absolute error of the median / random walk's",
    "directional_accuracy": "share of correct directions; 0.5 is a coin",
    "coverage_80": "share of closes inside the 80 % interval",
    "coverage_90": "share of closes inside the 90 % interval",
    "windows_per_s": "training throughput, windows per second",
    "train_seconds": "training time of the fleet",
    "rss_peak_mb": "peak host memory",
    "gpu_mem_allocated_peak_mb": "peak GPU memory of tensors; empty without a GPU",
    "run_id": "the fleet's run: its config, data digests, versions and seeds make the row again; "
    "of a pruned fleet the flow's run, whose archive.json holds them",
}
"""The columns of a row and what they mean."""

_MEANS = {
    "crps_ratio": "test_crps_ratio",
    "mae_ratio": "test_mae_ratio",
    "directional_accuracy": "test_directional_accuracy",
    "coverage_80": "test_coverage_80",
    "coverage_90": "test_coverage_90",
    "windows_per_s": "windows_per_s",
}
_RUNS_A_PAGE = 20  # of flow runs: the wanted one is nearly always among the newest
_PEAKS = ("rss_peak_mb", "gpu_mem_allocated_peak_mb")


def leaderboard(
    parent: str | None = None, store: Store | None = None, *, market: str | None = None
) -> list[dict[str, Any]]:
    """Return one row per timeframe and architecture of a flow run, best CRPS ratio first in each timeframe.

    Keys are those of `COLUMNS`; a value that was not measured is None.

    Args:
        parent: run id of the flow; default the newest finished one (of `market`), see `newest_flow`.

    Raises:
        CpbError: there is no such run, or no fleet of it was judged.
    """
    store = store or open_store(create=False)
    flow = newest_flow(store, market) if parent is None else find_run(store, parent)
    if flow is None:
        raise CpbError(
            f"there is no run {parent!r}; `cpb ui` shows those that there are (old runs are pruned to one a week)",
            code="no-run",
        )
    rows = board_of(store, flow)
    if not rows:
        raise _no_fleet(flow.info.run_id)
    return rows


def board_of(store: Store, flow: "Run") -> list[dict[str, Any]]:
    """Return the rows of one flow run, from its members' runs, or from its archive where those were pruned."""
    market = market_of(flow)
    rows = []
    for fleet in search(store, f"tags.`{PARENT}` = '{flow.info.run_id}'"):
        if PRUNED in fleet.data.tags:  # only a champion's run is left of it
            continue
        members = search(store, f"tags.`{PARENT}` = '{fleet.info.run_id}'")
        rows += [_row(fleet, market, timeframe, group) for timeframe, group in _by_timeframe(members)]
    rows = _merged(rows)
    known = {(row["timeframe"], row["architecture"]) for row in rows}
    archive = read_archive(store, flow)
    kept = archive.rows if archive else ()
    return sorted([*rows, *(r for r in kept if (r["timeframe"], r["architecture"]) not in known)], key=_order)


def newest_flow(store: Store, market: str | None = None) -> "Run":
    """Return the newest finished flow run of a market.

    Without a market: the newest of real candles, and only where there is none, the newest simulated one. In all
    of these a run of the whole universe comes before one of a single model, which must not hide its board.

    Raises:
        CpbError: no flow has finished yet.
    """
    finished = f"tags.`{KIND}` = '{FLOW}' and attributes.status = 'FINISHED'"
    universe = f"{finished} and tags.`mlflow.runName` = 'train-all'"
    simulated: Run | None = None
    for condition in (universe, finished):
        for run in search_lazily(store, condition, ["attributes.start_time DESC"], page_size=_RUNS_A_PAGE):
            found = market_of(run)
            if found == market or (market is None and found != SIM):
                return run
            simulated = simulated or run
    if simulated is None or market is not None:
        which = f" of market {market}" if market else ""
        raise CpbError(
            f"no finished training run{which} in the MLflow store yet; start one with `cpb train-all`",
            code="no-run",
        )
    return simulated


def _no_fleet(run_id: str) -> CpbError:
    return CpbError(
        f"run {run_id!r} holds no judged fleet; see `cpb ui` for the runs there are", code="no-run"
    )


def _by_timeframe(members: Iterable["Run"]) -> list[tuple[str, list["Run"]]]:
    groups: dict[str, list[Run]] = {}
    for run in members:
        groups.setdefault(run.data.tags.get("timeframe", ""), []).append(run)
    return sorted(groups.items())


def _row(fleet: "Run", market: str, timeframe: str, members: list["Run"]) -> dict[str, Any]:
    judged = [m.data.metrics for m in members if m.info.status == "FINISHED"]
    pooled = fleet.data.metrics
    ratios = [m["test_crps_ratio"] for m in judged if "test_crps_ratio" in m]
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {name: _mean(judged, metric) for name, metric in _MEANS.items()}
    row |= {name: max((m[name] for m in judged if name in m), default=None) for name in _PEAKS}
    row |= {
        "market": market,
        "timeframe": timeframe,
        "architecture": fleet.data.tags.get("architecture", fleet.info.run_name),
        "members": len(judged),
        "failed": sum(m.info.status == "FAILED" for m in members),
        "crps_ratio_low": pooled.get(f"pooled_crps_ratio_{timeframe}_low"),
        "crps_ratio_high": pooled.get(f"pooled_crps_ratio_{timeframe}_high"),
        "p_value": pooled.get(f"pooled_p_{timeframe}"),
        "better_share": fmean(r < 1 for r in ratios) if ratios else None,
        "train_seconds": pooled.get("train_seconds", _mean(judged, "train_seconds")),
        "run_id": fleet.info.run_id,
    }
    certainty = row["crps_ratio_low"], row["crps_ratio_high"], row["p_value"]
    if None not in certainty:
        found = relation(*certainty)
        row["verdict"] = found.removesuffix(" than").removesuffix(" from")
    row["crps_ratio"] = pooled.get(f"pooled_crps_ratio_{timeframe}", row["crps_ratio"])
    return row


def _mean(runs: list[dict[str, float]], metric: str) -> float | None:
    values = [m[metric] for m in runs if metric in m]
    return fmean(values) if values else None


def _merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the shards of one architecture x timeframe (several fleets on several devices) into one row.

    Means are weighted by members. Intervals of shards do not combine, so they are left out there.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["timeframe"], row["architecture"]), []).append(row)
    return [group[0] if len(group) == 1 else _join(group) for group in groups.values()]


def _join(shards: list[dict[str, Any]]) -> dict[str, Any]:
    first = shards[0]
    joined: dict[str, Any] = dict.fromkeys(COLUMNS)
    joined |= {name: first[name] for name in ("market", "timeframe", "architecture")}
    joined["run_id"] = ",".join(s["run_id"] for s in shards)
    for name in ("members", "failed"):
        joined[name] = sum(s[name] for s in shards)
    for name in (*_MEANS, "better_share"):
        joined[name] = _weighted(shards, name)
    seconds = [s["train_seconds"] for s in shards if s["train_seconds"] is not None]
    joined["train_seconds"] = sum(seconds) if seconds else None
    for name in _PEAKS:
        joined[name] = max((s[name] for s in shards if s[name] is not None), default=None)
    return joined


def _weighted(shards: list[dict[str, Any]], name: str) -> float | None:
    known = [(s["members"], s[name]) for s in shards if s[name] is not None]
    weight = sum(n for n, _ in known)
    return sum(n * v for n, v in known) / weight if weight else None


def _order(row: dict[str, Any]) -> tuple[str, float]:
    return row["timeframe"], row["crps_ratio"] if row["crps_ratio"] is not None else float("inf")
