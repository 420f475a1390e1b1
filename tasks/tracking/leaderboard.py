"""The leaderboard, from MLflow alone: architecture x timeframe against the random walk.

Each row belongs to one run. A run replaces rows of earlier runs if it has judged all their coins under the same recipe;
a run with fewer coins, or with failed coins, gets its own row, marked `partial`, and the row of many coins keeps its
interval.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from schemas.errors import CpbError
from schemas.identity import INTERVAL_SECONDS, MARKETS, SIM, SPOT, coins_label, market_option
from tasks.judging.inference import relation
from tasks.tracking.connection import Store, search
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.run_list import find_flow, finished_flows
from tasks.tracking.runs import COMPLETE
from tasks.tracking.tags import (
    FLEET,
    KIND,
    OUTCOME,
    PARENT,
    PRUNED,
    SYMBOL,
    TIMEFRAME,
    age_of,
    market_of,
    recipe_of_run,
)  # fmt: skip

if TYPE_CHECKING:
    from mlflow.entities import Run


_ASKED = ("coins", "timeframes", "architectures", "preset", "overrides", "seeds", "dtype")
"""Params of a flow run that define the models to train."""

COLUMNS = {
    "market": "spot, um, cm, own for a user's tables, or sim for simulated candles",
    "timeframe": "candle length",
    "architecture": "name of the architecture",
    "preset": "preset of the models; after a +, a digest of the changed options",
    "coins": "judged coins: names, or their number if more than three; none if all failed",
    "members": "members that were judged",
    "failed": "members that failed",
    "crps_ratio": "CRPS / random walk's: each coin weighs the same; below 1 is better",
    "crps_ratio_low": "lower end of its 95 % interval",
    "crps_ratio_high": "upper end of its 95 % interval",
    "p_value": "two-sided p of the ratio being 1, pooled over coins",
    "verdict": "better, no different or worse than the random walk with EWMA volatility",
    "better_share": "share of coins with a ratio below 1",
    "mae_ratio": "absolute error of the median / random walk's",
    "directional_accuracy": "share of correct directions; 0.5 is chance",
    "coverage_80": "share of closes inside the 80 % interval",
    "coverage_90": "share of closes inside the 90 % interval",
    "windows_per_s": "training throughput, windows per second",
    "train_seconds": "training time of the fleet",
    "rss_peak_mb": "peak host memory",
    "gpu_mem_allocated_peak_mb": "peak GPU memory of tensors; empty without a GPU",
    "partial": "a later run on some of the coins that another row, of an earlier run, has all of",
    "as_of": "no candle that closes after this was seen (UTC): as requested, else when the run began",
    "started_at": "when the run began (UTC)",
    "flow_run": "the flow's run, which `cpb leaderboard --run` takes",
    "run_id": "the fleet's run: its config and its members' data digests reproduce the row",
}
"""The columns of a row and their meaning."""

_MEANS = {
    "crps_ratio": "test_crps_ratio",
    "mae_ratio": "test_mae_ratio",
    "directional_accuracy": "test_directional_accuracy",
    "coverage_80": "test_coverage_80",
    "coverage_90": "test_coverage_90",
    "windows_per_s": "windows_per_s",
}
_PEAKS = ("rss_peak_mb", "gpu_mem_allocated_peak_mb")


def leaderboard(
    parent: str | None = None,
    store: Store | None = None,
    *,
    market: str | None = None,
    symbols: Collection[str] | None = None,
    timeframes: Collection[str] | None = None,
) -> list[dict[str, Any]]:
    """Return the rows by market and timeframe, complete rows before `partial` rows, the best CRPS ratio first.

    Keys are those of `COLUMNS`; a value that was not measured is None. A row has an interval if it has all coins of its
    fleet.

    Args:
        parent: run id of a flow, or its first characters, for the rows of that run alone; filters are then ignored.
        market: default: all real markets, or the simulated market if nothing real was trained.
        symbols, timeframes: filters; default all.

    Raises:
        CpbError: there is no such run, the id is ambiguous, or nothing was judged.
    """
    store = store or open_store(create=False)
    if parent is None:
        return _current(store, market, symbols, timeframes)
    flow = find_flow(store, parent)
    rows = board_of(store, flow)
    if not rows:
        raise CpbError(
            f"run {flow.info.run_id!r} holds no judged fleet, or its models were pruned; "
            "`cpb ui` shows the runs",
            code="no-run",
        )
    return rows


def board_of(store: Store, flow: "Run") -> list[dict[str, Any]]:
    """Return the rows of one flow run, from its members' runs."""
    rows = rows_of(fleets_of(store, flow), _of_flow(flow))
    return sorted((row.values for row in rows), key=order)


def _of_flow(flow: "Run") -> dict[str, Any]:
    """Return the columns common to all rows of a flow run."""
    as_of, started = age_of(flow)
    return {"market": market_of(flow), "as_of": as_of, "started_at": started, "flow_run": flow.info.run_id}


def _current(
    store: Store, market: str | None, symbols: Collection[str] | None, timeframes: Collection[str] | None
) -> list[dict[str, Any]]:
    """Return the current rows over all finished flow runs."""
    flows = _newest_flows(store)
    trained = {of_flow["market"] for _, of_flow in flows}
    shown = {market} if market else trained - {SIM} or trained
    if not shown & trained:
        which = f" of market {market}" if market else ""
        raise CpbError(
            f"no finished training run{which} in the MLflow store yet; "
            f"start one with `cpb train-all{market_option(market or SPOT)}`",
            code="no-run",
        )
    rows: list[BoardRow] = []
    for flow, of_flow in flows:
        if of_flow["market"] in shown:
            found = rows_of(fleets_of(store, flow), of_flow, symbols, timeframes)
            rows += [row for row in found if not any(newer.covers(row) for newer in rows)]
    if not rows:
        raise CpbError(
            "no judged model matches these markets, coins and timeframes; use fewer filters",
            code="no-run",
        )
    return sorted((row.values | {"partial": row.part_of_any(rows)} for row in rows), key=order)


def _newest_flows(store: Store) -> "list[tuple[Run, dict[str, Any]]]":
    """Return the finished flow runs, newest first; of runs of the same requested models only the newest.

    So a year of nightly runs costs one search and the reading of one run, and coins no longer traded leave the board.
    A run on older candles does not replace a run on newer candles, nor does a run with failed models replace a run in
    which more were judged.
    """
    kept: list[tuple[Run, dict[str, Any]]] = []
    newer: dict[tuple[str | None, ...], list[tuple[str, float]]] = {}
    for run in finished_flows(store):
        of_flow = _of_flow(run)
        asked = tuple(run.data.params.get(name) for name in _ASKED)
        # A run that does not record its request is its own group.
        key = (of_flow["market"], *asked) if any(asked) else (run.info.run_id,)
        as_of, judged = of_flow["as_of"], _judged_count(run)
        before = newer.setdefault(key, [])
        if not any(seen >= as_of and count >= judged for seen, count in before):
            before.append((as_of, judged))
            kept.append((run, of_flow))
    return kept


def _judged_count(flow: "Run") -> float:
    """Return how many models a run has judged; infinite if none failed, since it then trained all requested models."""
    metrics = flow.data.metrics
    complete = flow.data.tags.get(OUTCOME, COMPLETE) == COMPLETE and not metrics.get("failed")
    return math.inf if complete else metrics.get("members", 0)


@dataclass(frozen=True)
class Fleet:
    """A fleet of a flow: its run, its members' runs, and their recipe."""

    run: "Run"
    members: "tuple[Run, ...]"
    recipe: str

    @property
    def architecture(self) -> str:
        """The architecture of all its members."""
        return self.run.data.tags.get("architecture") or self.run.info.run_name or ""


def fleets_of(store: Store, flow: "Run") -> list[Fleet]:
    """Return the fleets of a flow run that have all their members, which pruning may have removed."""
    return [
        Fleet(
            run, tuple(_children(store, run)), recipe_of_run(run.data.params, run.data.tags, flow.data.tags)
        )
        for run in _children(store, flow)
        if run.data.tags.get(KIND) == FLEET and PRUNED not in run.data.tags
    ]


def _children(store: Store, run: "Run") -> "list[Run]":
    return search(store, f"tags.`{PARENT}` = '{run.info.run_id}'", ["attributes.start_time ASC"])


@dataclass(frozen=True)
class BoardRow:
    """A flow run's results for one timeframe and architecture: its `values` by the names of `COLUMNS`.

    symbols: the judged coins. Failed coins are only counted in `values`.
    """

    values: dict[str, Any]
    symbols: frozenset[str]

    def covers(self, other: "BoardRow") -> bool:
        """Whether this row, of a newer run, makes the other row obsolete.

        It must cover all of its coins, under the same recipe, and must not have an earlier `as_of`: a run made today on
        last year's candles does not replace results on newer candles.
        """
        return (
            self._is_of_same_models(other)
            and self.symbols >= other.symbols
            and self.values["as_of"] >= other.values["as_of"]
        )

    def part_of_any(self, others: "Iterable[BoardRow]") -> bool:
        """Whether another row has all coins of this row and more, under the same recipe."""
        return any(self._is_of_same_models(other) and self.symbols < other.symbols for other in others)

    def _is_of_same_models(self, other: "BoardRow") -> bool:
        return all(self.values[name] == other.values[name] for name in _SAME)


_SAME = ("market", "timeframe", "architecture", "preset")


def rows_of(
    fleets: Iterable[Fleet],
    of_flow: dict[str, Any],
    symbols: Collection[str] | None = None,
    timeframes: Collection[str] | None = None,
) -> list[BoardRow]:
    """Return the rows of one flow run's fleets.

    Args:
        of_flow: the values common to all rows of the flow, by the names of `COLUMNS`.
        symbols, timeframes: filters on members.
    """
    rows: dict[tuple[str, str], BoardRow] = {}
    for fleet in fleets:  # oldest first: a run continued with other shards, as on a GPU, has a second fleet
        for timeframe, group in _by_timeframe(fleet.members):
            kept = [m for m in group if symbols is None or m.data.tags.get(SYMBOL, "") in symbols]
            if kept and (timeframes is None or timeframe in timeframes):
                row = _row(fleet, timeframe, kept, whole=len(kept) == len(group)) | of_flow
                rows[timeframe, fleet.architecture] = BoardRow(row, _judged(kept))
    return list(rows.values())


def _is_judged(member: "Run") -> bool:
    return bool(member.info.status == "FINISHED")


def _judged(members: "Iterable[Run]") -> frozenset[str]:
    return frozenset(member.data.tags.get(SYMBOL, "") for member in members if _is_judged(member))


def _by_timeframe(members: "Iterable[Run]") -> "list[tuple[str, list[Run]]]":
    """Return the judged and failed members, without running and killed members."""
    groups: dict[str, list[Run]] = {}
    for member in members:
        if member.info.status in ("FINISHED", "FAILED"):
            groups.setdefault(member.data.tags.get(TIMEFRAME, ""), []).append(member)
    return sorted(groups.items())


def _row(fleet: Fleet, timeframe: str, members: "list[Run]", whole: bool) -> dict[str, Any]:
    """Return the row of a fleet's members of one timeframe; `whole`: no member is left out, so pooled figures apply."""
    judged = [m.data.metrics for m in members if _is_judged(m)]
    pooled = fleet.run.data.metrics if whole else {}
    ratios = [m["test_crps_ratio"] for m in judged if "test_crps_ratio" in m]
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {name: _mean(judged, metric) for name, metric in _MEANS.items()}
    row |= {name: max((m[name] for m in judged if name in m), default=None) for name in _PEAKS}
    row |= {
        "timeframe": timeframe,
        "architecture": fleet.architecture,
        "preset": fleet.recipe,
        "coins": coins_label(sorted(_judged(members))) or "none",
        "members": len(judged),
        "failed": sum(not _is_judged(m) for m in members),
        "crps_ratio_low": pooled.get(f"pooled_crps_ratio_{timeframe}_low"),
        "crps_ratio_high": pooled.get(f"pooled_crps_ratio_{timeframe}_high"),
        "p_value": pooled.get(f"pooled_p_{timeframe}"),
        "better_share": fmean(r < 1 for r in ratios) if ratios else None,
        "train_seconds": fleet.run.data.metrics.get("train_seconds", _mean(judged, "train_seconds")),
        "partial": False,
        "run_id": fleet.run.info.run_id,
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


def order(row: Mapping[str, Any]) -> tuple[int, int, bool, float]:
    """Sort key: by market and timeframe, complete rows before partial rows, then the best CRPS ratio first."""
    ratio = row["crps_ratio"] if row["crps_ratio"] is not None else float("inf")
    return MARKETS.index(row["market"]), INTERVAL_SECONDS[row["timeframe"]], bool(row["partial"]), ratio
