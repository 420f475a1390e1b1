"""Rows of the leaderboard: a fleet's members of one timeframe, judged against the random walk."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from schemas.identity import INTERVAL_SECONDS, MARKETS, coins_label
from tasks.judging.inference import relation
from tasks.tracking.archive import Fleet, RunArchive
from tasks.tracking.tags import SYMBOL, TIMEFRAME

COLUMNS = {
    "market": "spot, um, cm, own for a user's tables, or sim for simulated candles",
    "timeframe": "candle length",
    "architecture": "name of the architecture",
    "preset": "preset of the models; what follows a + is a digest of what was changed in it",
    "coins": "the coins that were judged, by name, from four on their number; none where all have failed",
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
    "partial": "a later run on some of the coins that another row, of an earlier run, has all of",
    "as_of": "no candle that closes after this was seen (UTC): as asked, else when the run began",
    "started_at": "when the run began (UTC)",
    "flow_run": "the flow's run, which `cpb leaderboard --run` takes",
    "run_id": "the fleet's run: its config, data digests, versions and seeds make the row again (of several fleets "
    "all, with commas); of a pruned fleet the flow's run, whose archive.json.gz holds them",
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
_NO_COIN = "none"


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
    groups: dict[tuple[str, str], list[BoardRow]] = defaultdict(list)
    for fleet in fleets:
        for timeframe, group in _by_timeframe(fleet.members):
            kept = [m for m in group if symbols is None or m.tags.get(SYMBOL, "") in symbols]
            if kept and (timeframes is None or timeframe in timeframes):
                row = _row(fleet, timeframe, kept, whole=len(kept) == len(group)) | of_flow
                groups[timeframe, fleet.architecture].append(BoardRow(row, _judged(kept)))
    return [group[0] if len(group) == 1 else _join(group) for group in groups.values()]


def _is_judged(member: RunArchive) -> bool:
    return member.status == "FINISHED"


def _judged(members: Iterable[RunArchive]) -> frozenset[str]:
    return frozenset(member.tags.get(SYMBOL, "") for member in members if _is_judged(member))


def _by_timeframe(members: Iterable[RunArchive]) -> list[tuple[str, list[RunArchive]]]:
    """Return the judged and failed members, without running and killed members."""
    groups: dict[str, list[RunArchive]] = {}
    for member in members:
        if member.status in ("FINISHED", "FAILED"):
            groups.setdefault(member.tags.get(TIMEFRAME, ""), []).append(member)
    return sorted(groups.items())


def _row(fleet: Fleet, timeframe: str, members: list[RunArchive], whole: bool) -> dict[str, Any]:
    """Return the row of a fleet's members of one timeframe; `whole`: no member is left out, so pooled figures apply."""
    judged = [m.metrics for m in members if _is_judged(m)]
    pooled = fleet.run.metrics if whole else {}
    ratios = [m["test_crps_ratio"] for m in judged if "test_crps_ratio" in m]
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {name: _mean(judged, metric) for name, metric in _MEANS.items()}
    row |= {name: max((m[name] for m in judged if name in m), default=None) for name in _PEAKS}
    row |= {
        "timeframe": timeframe,
        "architecture": fleet.architecture,
        "preset": fleet.recipe,
        "coins": coins_label(sorted(_judged(members))) or _NO_COIN,
        "members": len(judged),
        "failed": sum(not _is_judged(m) for m in members),
        "crps_ratio_low": pooled.get(f"pooled_crps_ratio_{timeframe}_low"),
        "crps_ratio_high": pooled.get(f"pooled_crps_ratio_{timeframe}_high"),
        "p_value": pooled.get(f"pooled_p_{timeframe}"),
        "better_share": fmean(r < 1 for r in ratios) if ratios else None,
        "train_seconds": fleet.run.metrics.get("train_seconds", _mean(judged, "train_seconds")),
        "partial": False,
        "run_id": fleet.run_id,
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


def _join(parts: list[BoardRow]) -> BoardRow:
    """Join the shards of one run on several devices into one row.

    Means are weighted by members. Intervals of several fleets cannot be combined and are left out.
    """
    shards = [part.values for part in parts]
    symbols = frozenset().union(*(part.symbols for part in parts))
    joined = shards[0] | dict.fromkeys(("crps_ratio_low", "crps_ratio_high", "p_value", "verdict"))
    joined["run_id"] = ",".join(dict.fromkeys(s["run_id"] for s in shards))
    joined["coins"] = coins_label(sorted(symbols)) or _NO_COIN
    for name in ("members", "failed"):
        joined[name] = sum(s[name] for s in shards)
    for name in (*_MEANS, "better_share"):
        joined[name] = _weighted(shards, name)
    seconds = [s["train_seconds"] for s in shards if s["train_seconds"] is not None]
    joined["train_seconds"] = sum(seconds) if seconds else None
    for name in _PEAKS:
        joined[name] = max((s[name] for s in shards if s[name] is not None), default=None)
    return BoardRow(joined, symbols)


def _weighted(shards: list[dict[str, Any]], name: str) -> float | None:
    known = [(s["members"], s[name]) for s in shards if s[name] is not None]
    weight = sum(n for n, _ in known)
    return sum(n * v for n, v in known) / weight if weight else None


def order(row: Mapping[str, Any]) -> tuple[int, int, bool, float]:
    """Sort key: by market and timeframe, complete rows before partial rows, then the best CRPS ratio first."""
    ratio = row["crps_ratio"] if row["crps_ratio"] is not None else float("inf")
    return MARKETS.index(row["market"]), INTERVAL_SECONDS[row["timeframe"]], bool(row["partial"]), ratio
