"""Scores pooled over coins with equal weight per coin, and the rows of a report that they make.

`cpb leaderboard` does not read these rows: it reads the same figures from MLflow's runs (`tasks.tracking.leaderboard`).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from schemas.chances import SCORED
from tasks.judging import inference, verdicts
from tasks.judging.member import LOSSES, P_OF, MemberScore
from tasks.judging.scores import Array

_METRICS = {
    "crps_ratio": "test_crps_ratio",
    "low": "test_crps_ratio_low",
    "high": "test_crps_ratio_high",
    "p": "test_p",
    "coins_below_one": "coins_below_one",
    "mae_ratio": "test_mae_ratio",
    "direction_1": "test_directional_accuracy_step_1",
    "direction": "test_directional_accuracy",
    "coverage_80": "test_coverage_80",
    "coverage_90": "test_coverage_90",
    "tail_ratio": "test_tail_pinball_ratio",
    **{f"{name}_ratio": f"test_{name}_brier_ratio" for name in SCORED},
}


@dataclass(frozen=True)
class PoolScore:
    """An architecture on a timeframe, pooled over its coins; metrics as in `MemberScore`, plus `coins_below_one`."""

    architecture: str
    timeframe: str
    symbols: tuple[str, ...]
    metrics: dict[str, float]
    steps: dict[str, Array]

    @property
    def verdict(self) -> str:
        """The finding as a sentence."""
        return verdicts.verdict(self.metrics)


def judge_pool(members: Sequence[MemberScore], seed: int = 0) -> PoolScore:
    """Pool the members of an architecture and timeframe with equal weight per coin.

    Intervals resample blocks of calendar time common to all coins: coins move together, and resampling each coin
    separately would treat twenty coins as twenty times the evidence. p is Diebold-Mariano on the mean over coins per
    instant. Of a single member they are its own, which `cpb champions` shows: other draws would give another interval.

    Raises:
        ValueError: there is no member, or the members differ in architecture or timeframe.
    """
    kinds = {(m.architecture, m.timeframe) for m in members}
    if len(kinds) != 1:
        raise ValueError(f"a pool holds one architecture and timeframe, got {sorted(kinds)}")
    architecture, timeframe = kinds.pop()
    # A metric that some member lacks (a classifier's, a model's without a table of extremes) has no mean over coins.
    names = sorted(set.intersection(*(set(m.metrics) for m in members)))
    # Means of ratios, not ratios of means: a coin with wild moves has losses a hundred times those of a calm one,
    # and would be the whole result.
    metrics = {name: float(np.mean([m.metrics[name] for m in members])) for name in names}
    # prices of different coins cannot be averaged
    for name in ("test_p_holm", "test_p_holm_models", "test_mae_price", "test_rmse_price"):
        metrics.pop(name, None)
    metrics["test_n"] = float(sum(m.metrics["test_n"] for m in members))
    metrics["coins_below_one"] = float(np.mean([m.metrics["test_crps_ratio"] < 1 for m in members]))
    if len(members) > 1:
        for name in (name for name in P_OF if f"test_{name}_ratio" in names):
            metrics |= _certainty(members, seed, name)
    common = [k for k in members[0].steps if all(k in m.steps for m in members)]
    steps = {k: np.mean([m.steps[k] for m in members], axis=0) for k in common}
    for name in (n for n in LOSSES if n in members[0].steps):  # ratios per step, equal weight per coin
        # A step without loss of the reference (a price that never moved) must not divide by 0.
        ratios = [m.steps[name] / np.maximum(m.steps[f"reference_{name}"], 1e-300) for m in members]
        steps[f"{name}_ratio"] = np.mean(ratios, axis=0)
    return PoolScore(architecture, timeframe, tuple(m.symbol for m in members), metrics, steps)


def judge_pools(members: Iterable[MemberScore], seed: int = 0) -> list[PoolScore]:
    """Pool every architecture × timeframe among `members`, best first within a timeframe."""
    groups: dict[tuple[str, str], list[MemberScore]] = defaultdict(list)
    for member in members:
        groups[member.timeframe, member.architecture].append(member)
    pools = [judge_pool(group, seed) for group in groups.values()]
    return sorted(pools, key=lambda p: (p.timeframe, p.metrics["test_crps_ratio"]))


def apply_holm(members: Sequence[MemberScore]) -> list[MemberScore]:
    """Return the members with `test_p_holm`: p corrected over the `test_p_holm_models` of the same architecture."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, member in enumerate(members):
        groups[member.architecture].append(index)
    result = list(members)
    for indices in groups.values():
        # Over the coins of an architecture, as the report lists them: with twenty coins, one in twenty is below .05
        # by luck.
        adjusted = inference.holm([members[i].metrics["test_p"] for i in indices])
        for i, p in zip(indices, adjusted, strict=True):
            result[i] = replace(
                members[i],
                metrics=members[i].metrics | {"test_p_holm": p, "test_p_holm_models": float(len(indices))},
            )
    return result


def compare_pair(first: Sequence[MemberScore], second: Sequence[MemberScore]) -> tuple[float, float, int]:
    """Return (CRPS ratio first/second, Diebold-Mariano p, rows) of two models on their common rows.

    Equal weight per coin; rows and errors as in `common_losses`.
    """
    times, first_losses, second_losses = common_losses(first, second)
    difference = _mean_difference(times, first_losses, second_losses)
    lags = inference.block_length(first[0].horizon, len(difference))
    # For a constant price both losses are 0.
    ratios = [
        x.mean() / y.mean() if y.mean() > 0 else 1.0 for x, y in zip(first_losses, second_losses, strict=True)
    ]
    ratio = float(np.mean(ratios))
    return ratio, inference.diebold_mariano(difference, lags)[1], sum(map(len, times))


def common_losses(
    first: Sequence[MemberScore], second: Sequence[MemberScore]
) -> tuple[list[NDArray[np.int64]], list[Array], list[Array]]:
    """Return, of each coin that two models share, the times [N] of their common rows and the CRPS [N] of both.

    Members are matched by symbol and timeframe, rows by the time of their origin.

    Raises:
        ValueError: the two models have no common row.
    """
    # Rows are matched by time, not by place: two models may have other contexts, and so other first origins.
    others = {(m.symbol, m.timeframe): m for m in second}
    common = []
    for a in first:
        if b := others.get((a.symbol, a.timeframe)):
            times, i, j = np.intersect1d(a.times, b.times, return_indices=True)
            if len(times):
                common.append((times, a.losses["crps"][i], b.losses["crps"][j]))
    if not common:
        raise ValueError("the two models have no forecast row in common")
    return (
        [times for times, _, _ in common],
        [first for _, first, _ in common],
        [second for _, _, second in common],
    )


def _certainty(members: Sequence[MemberScore], seed: int, name: str) -> dict[str, float]:
    times = [m.times for m in members]
    # Blocks are counted from the oldest origin of any coin, so that the same hour is in the same block for all.
    start, step = min(t.min() for t in times), members[0].step_us
    longest = max(map(len, times))
    length = inference.block_length(members[0].horizon, longest)
    ids = [inference.block_ids(t, length * step, int(start)) for t in times]
    losses, reference_losses = ([m.losses[name] for m in members] for name in (name, f"reference_{name}"))
    low, high = inference.bootstrap_interval(ids, losses, reference_losses, seed)
    _, p = inference.diebold_mariano(_mean_difference(times, losses, reference_losses), lags=length)
    return {f"test_{name}_ratio_low": low, f"test_{name}_ratio_high": high, P_OF[name]: p}


def _mean_difference(
    times: list[NDArray[np.int64]], losses: list[Array], reference_losses: list[Array]
) -> Array:
    """Return, per instant [T], the mean over coins of the loss difference relative to each coin's mean loss.

    A coin with fewer origins than instants has its differences scaled up, so that every coin has the same weight.
    """
    # Coins move together, so the unit of evidence is an instant: the differences of all coins at it are averaged
    # first, and the test sees one series of T values instead of coins × T that look independent.
    instants, place = np.unique(np.concatenate(times), return_inverse=True)
    relative = [
        (a - b) / max(b.mean(), 1e-300) * (len(instants) / len(b))
        for a, b in zip(losses, reference_losses, strict=True)
    ]
    return np.bincount(place, np.concatenate(relative), minlength=len(instants)) / len(times)


Row = dict[str, str | float | int]


def title_of(name: str) -> str:
    """Return a model's name as shown in reports and verdicts: a baseline's could be mistaken for the reference."""
    return "plain random walk" if name == "random-walk" else name


def leaderboard_rows(pools: Sequence[PoolScore]) -> list[Row]:
    """Return the rows of a report's leaderboard: one per pool, best CRPS ratio first within a timeframe."""
    ordered = sorted(pools, key=lambda p: (p.timeframe, p.metrics["test_crps_ratio"]))
    return [_row(p, "coins", len(p.symbols)) for p in ordered]


def member_rows(members: Sequence[MemberScore]) -> list[Row]:
    """Return a row per member with its verdict, best first."""
    ordered = sorted(members, key=lambda m: (m.timeframe, m.architecture, m.metrics["test_crps_ratio"]))
    return [_row(m, "symbol", m.symbol) | {"verdict": m.verdict} for m in ordered]


def _row(score: PoolScore | MemberScore, of: str, value: str | int) -> Row:
    """Return the columns that a score has; a member has no share of coins."""
    return {
        "timeframe": score.timeframe,
        "architecture": score.architecture,
        of: value,
        **{name: round(score.metrics[key], 6) for name, key in _METRICS.items() if key in score.metrics},
        "n": int(score.metrics["test_n"]),
    }
