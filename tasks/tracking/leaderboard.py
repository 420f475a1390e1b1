"""The leaderboard, from MLflow alone: architecture x timeframe against the random walk."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from schemas.errors import CpbError
from schemas.identity import MARKETS, SIM
from tasks.judging.inference import relation
from tasks.tracking.archive import read_archive
from tasks.tracking.connection import Store, find_run, search
from tasks.tracking.store import open_store
from tasks.tracking.tags import FLOW, KEY, KIND, PARENT, PRUNED, SYMBOL, TIMEFRAME, market_of

if TYPE_CHECKING:
    from mlflow.entities import Run

    from tasks.tracking.archive import FlowArchive

log = logging.getLogger("cpb")

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
    "run_id": "the fleet's run: its config, data digests, versions and seeds make the row again (of several fleets "
    "all, with commas); of a pruned fleet the flow's run, whose archive.json holds them",
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
_ASKED = ("coins", "timeframes", "architectures")
"""Params of a flow run that say which models it was to train."""
_PEAKS = ("rss_peak_mb", "gpu_mem_allocated_peak_mb")


@dataclass(frozen=True)
class _Member:
    """One model of a fleet: it was judged, or has failed."""

    symbol: str
    timeframe: str
    judged: bool
    metrics: Mapping[str, float]

    @classmethod
    def of(cls, tags: Mapping[str, str], status: str, metrics: Mapping[str, float]) -> "list[_Member]":
        """Return the member of a run, or nothing for one that is open or was killed."""
        if status not in ("FINISHED", "FAILED"):
            return []
        return [cls(tags.get(SYMBOL, ""), tags.get(TIMEFRAME, ""), status == "FINISHED", metrics)]


@dataclass(frozen=True)
class _Fleet:
    """A fleet as MLflow or the archive of its flow has it; `run_id` as in `COLUMNS`."""

    run_id: str
    architecture: str
    metrics: Mapping[str, float]
    members: list[_Member]


def leaderboard(
    parent: str | None = None,
    store: Store | None = None,
    *,
    market: str | None = None,
    symbols: Collection[str] | None = None,
    timeframes: Collection[str] | None = None,
) -> list[dict[str, Any]]:
    """Return one row per market, timeframe and architecture, best CRPS ratio first in each timeframe.

    Each series and architecture counts as the newest finished run that trained it has it, so a run of one coin replaces
    that coin alone. A row whose members come from several fleets has no interval: theirs do not combine. Keys are
    those of `COLUMNS`; a value that was not measured is None.

    Args:
        parent: run id of a flow, for the rows of that run alone; the filters are not looked at then.
        market: only this one; default all real ones, and where nothing real was trained the simulated one.
        symbols, timeframes: only these; default all.

    Raises:
        CpbError: there is no such run, or nothing that was judged.
    """
    store = store or open_store(create=False)
    if parent is None:
        return _current(store, market, symbols, timeframes)
    flow = find_run(store, parent)
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
    for fleet in _live_fleets(store, flow):
        rows += [_row(fleet, market, timeframe, group) for timeframe, group in _by_timeframe(fleet.members)]
    rows = _merged(rows)
    known = {(row["timeframe"], row["architecture"]) for row in rows}
    archive = read_archive(store, flow)
    kept = archive.rows if archive else ()
    return sorted([*rows, *(r for r in kept if (r["timeframe"], r["architecture"]) not in known)], key=_order)


def _current(
    store: Store, market: str | None, symbols: Collection[str] | None, timeframes: Collection[str] | None
) -> list[dict[str, Any]]:
    """Return the rows of what stands now, over all finished flow runs."""
    flows = [(run, market_of(run)) for run in _newest_flows(store)]
    trained = {found for _, found in flows}
    shown = {market} if market else trained - {SIM} or trained
    if not shown & trained:
        which = f" of market {market}" if market else ""
        raise CpbError(
            f"no finished training run{which} in the MLflow store yet; start one with `cpb train-all`",
            code="no-run",
        )
    rows = []
    seen: set[tuple[str, str, str, str]] = set()
    for flow, of_market in flows:
        for fleet in _fleets(store, flow) if of_market in shown else ():
            for timeframe, group in _by_timeframe(fleet.members):
                kept = []
                for member in group:
                    key = (of_market, fleet.architecture, member.symbol, timeframe)
                    wanted = symbols is None or member.symbol in symbols
                    if key not in seen and wanted and (timeframes is None or timeframe in timeframes):
                        kept.append(member)
                    seen.add(key)
                if kept:
                    rows.append(_row(fleet, of_market, timeframe, kept, whole=len(kept) == len(group)))
    if not rows:
        raise CpbError(
            "no model that was judged is of these markets, coins and timeframes; leave some of the options out",
            code="no-run",
        )
    return sorted(_merged(rows), key=lambda row: (MARKETS.index(row["market"]), *_order(row)))


def _newest_flows(store: Store) -> "list[Run]":
    """Return the finished flow runs, the newest first; of those that were asked for the same models the newest alone.

    So a year of nightly runs costs one search and the reading of one run.
    """
    found: dict[tuple[str | None, ...], Run] = {}
    condition = f"tags.`{KIND}` = '{FLOW}' and attributes.status = 'FINISHED'"
    for run in search(store, condition, ["attributes.start_time DESC"]):
        asked = tuple(run.data.params.get(name) for name in _ASKED)
        # Runs of older releases do not say what they were asked for.
        found.setdefault((market_of(run), *asked) if any(asked) else (run.info.run_id,), run)
    return list(found.values())


def _fleets(store: Store, flow: "Run") -> Iterator[_Fleet]:
    """Yield the fleets of a flow run: those in MLflow, then those that only its archive has."""
    yield from _live_fleets(store, flow)
    try:
        archive = read_archive(store, flow)
    except CpbError as error:
        if error.code != "damaged":
            raise
        log.warning("the leaderboard lacks run %s: %s", flow.info.run_id, error)
        return
    if archive:
        yield from _archived_fleets(archive, flow.info.run_id, _live_keys(store, flow))


def _live_runs(store: Store, flow: "Run") -> "list[Run]":
    """Return the runs of a flow's fleets whose members were not pruned; of the others only champions' are left."""
    fleets = search(store, f"tags.`{PARENT}` = '{flow.info.run_id}'")
    return [fleet for fleet in fleets if PRUNED not in fleet.data.tags]


def _live_keys(store: Store, flow: "Run") -> set[str]:
    return {fleet.data.tags.get(KEY, "") for fleet in _live_runs(store, flow)}


def _live_fleets(store: Store, flow: "Run") -> Iterator[_Fleet]:
    for fleet in _live_runs(store, flow):
        runs = search(store, f"tags.`{PARENT}` = '{fleet.info.run_id}'")
        members = [m for run in runs for m in _Member.of(run.data.tags, run.info.status, run.data.metrics)]
        architecture = fleet.data.tags.get("architecture", fleet.info.run_name)
        yield _Fleet(fleet.info.run_id, architecture, fleet.data.metrics, members)


def _archived_fleets(archive: "FlowArchive", run_id: str, known: Collection[str]) -> Iterator[_Fleet]:
    for one in archive.fleets:
        if one.fleet.key not in known:
            members = [m for run in one.members for m in _Member.of(run.tags, run.status, run.metrics)]
            architecture = one.fleet.tags.get("architecture", one.fleet.name)
            yield _Fleet(run_id, architecture, one.fleet.metrics, members)


def _no_fleet(run_id: str) -> CpbError:
    return CpbError(
        f"run {run_id!r} holds no judged fleet; see `cpb ui` for the runs there are", code="no-run"
    )


def _by_timeframe(members: Iterable[_Member]) -> list[tuple[str, list[_Member]]]:
    groups: dict[str, list[_Member]] = {}
    for member in members:
        groups.setdefault(member.timeframe, []).append(member)
    return sorted(groups.items())


def _row(
    fleet: _Fleet, market: str, timeframe: str, members: list[_Member], whole: bool = True
) -> dict[str, Any]:
    """Return the row of a fleet's members of one timeframe; `whole`: all of them, so that pooled figures hold."""
    judged = [m.metrics for m in members if m.judged]
    pooled = fleet.metrics if whole else {}
    ratios = [m["test_crps_ratio"] for m in judged if "test_crps_ratio" in m]
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {name: _mean(judged, metric) for name, metric in _MEANS.items()}
    row |= {name: max((m[name] for m in judged if name in m), default=None) for name in _PEAKS}
    row |= {
        "market": market,
        "timeframe": timeframe,
        "architecture": fleet.architecture,
        "members": len(judged),
        "failed": sum(not m.judged for m in members),
        "crps_ratio_low": pooled.get(f"pooled_crps_ratio_{timeframe}_low"),
        "crps_ratio_high": pooled.get(f"pooled_crps_ratio_{timeframe}_high"),
        "p_value": pooled.get(f"pooled_p_{timeframe}"),
        "better_share": fmean(r < 1 for r in ratios) if ratios else None,
        "train_seconds": fleet.metrics.get("train_seconds", _mean(judged, "train_seconds")),
        "run_id": fleet.run_id,
    }
    certainty = row["crps_ratio_low"], row["crps_ratio_high"], row["p_value"]
    if None not in certainty:
        found = relation(*certainty)
        row["verdict"] = found.removesuffix(" than").removesuffix(" from")
    row["crps_ratio"] = pooled.get(f"pooled_crps_ratio_{timeframe}", row["crps_ratio"])
    return row


def _mean(runs: list[Mapping[str, float]], metric: str) -> float | None:
    values = [m[metric] for m in runs if metric in m]
    return fmean(values) if values else None


def _merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join what several fleets have of one market, timeframe and architecture into one row.

    They are shards of one run on several devices, or parts of several runs. Means are weighted by members. Intervals
    of fleets do not combine, so they are left out there.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["market"], row["timeframe"], row["architecture"]), []).append(row)
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
