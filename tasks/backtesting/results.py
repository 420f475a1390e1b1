"""The results of a backtest: scores, pools and comparisons, and as the JSON that `--json` prints.

Each pair of methods is compared on their common rows, for example to see whether a network beats the linear model.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from schemas.chances import OUTCOMES, SCORED
from schemas.failure import Failure
from tasks.judging import inference, verdicts
from tasks.judging.chance_scores import deciles
from tasks.judging.member import MemberScore
from tasks.judging.pool import PoolScore, compare_pair, title_of


@dataclass(frozen=True)
class Pair:
    """Comparison of two models.

    `ratio`: CRPS of `first` / CRPS of `second`, with equal weight per coin. `p`: Diebold-Mariano, corrected by
    Holm over the pairs. `n`: common forecast rows.
    """

    first: str
    second: str
    timeframe: str
    ratio: float
    p: float
    n: int

    @property
    def verdict(self) -> str:
        """The finding as a sentence."""
        first = f"{title_of(self.first)} {self.timeframe}"
        return verdicts.pair_verdict(first, title_of(self.second), self.ratio, self.p, self.n)


def all_pairs(members: Sequence[MemberScore]) -> list[Pair]:
    """Return the pairs of a timeframe's architectures with common rows; p is corrected over the timeframe's pairs."""
    groups: dict[str, dict[str, list[MemberScore]]] = defaultdict(lambda: defaultdict(list))
    for member in members:
        groups[member.timeframe][member.architecture].append(member)
    pairs: list[Pair] = []
    for timeframe, models in groups.items():
        # Two methods that share no coin have no common row, and comparing them would raise.
        coins = {name: {score.symbol for score in scores} for name, scores in models.items()}
        names = [(a, b) for a, b in combinations(models, 2) if coins[a] & coins[b]]
        compared = [compare_pair(models[a], models[b]) for a, b in names]
        # Over the pairs of a timeframe, which are read together: with five methods ten pairs are compared.
        corrected = inference.holm([p for _, p, _ in compared])
        pairs += [
            Pair(a, b, timeframe, ratio, p, n)
            for (a, b), (ratio, _, n), p in zip(names, compared, corrected, strict=True)
        ]
    return pairs


@dataclass
class Backtest:
    """Results of a backtest. `incomplete`: a message for every fold that is missing from a model's judgement."""

    members: list[MemberScore] = field(default_factory=list)
    pools: list[PoolScore] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)


def as_json(result: Backtest, presets: Mapping[str, str]) -> dict[str, Any]:
    """Return `pooled[MODEL][TIMEFRAME]`, `members["MODEL/SYMBOL/TIMEFRAME"]` and `pairs` as JSON.

    MODEL is a baseline's or a fleet's name: `har`, or `gru/seed-gru` beside another fleet of the architecture.

    Args:
        presets: the label of each fleet's preset; a baseline has none.
    """
    pooled: dict[str, dict[str, object]] = defaultdict(dict)
    for pool in result.pools:
        pooled[pool.architecture][pool.timeframe] = _short(pool.metrics) | {
            "coins": len(pool.symbols),
            "coins_below_one": pool.metrics["coins_below_one"],
            **_deciles(pool),
            "verdict": pool.verdict,
            "preset": presets.get(pool.architecture),
        }
    members = {
        f"{m.architecture}/{m.symbol}/{m.timeframe}": _short(m.metrics)
        | {"verdict": m.verdict, "preset": presets.get(m.architecture)}
        for m in result.members
    }
    pairs = [asdict(pair) | {"verdict": pair.verdict} for pair in result.pairs]
    return {"pooled": dict(pooled), "members": members, "pairs": pairs}


def _deciles(pool: PoolScore) -> dict[str, object]:
    """Return `touch_deciles` and those of the other chances, of all steps together and of each; None without any."""
    found: dict[str, object] = {}
    for name in SCORED:
        stated = pool.steps.get(f"{name}_stated")
        found[f"{name}_deciles"] = None if stated is None else deciles(stated.sum(axis=0)).tolist()
        found[f"{name}_deciles_by_step"] = (
            None if stated is None else [deciles(step).tolist() for step in stated]
        )
    return found


def _short(metrics: Mapping[str, float]) -> dict[str, object]:
    names = (
        "crps",
        "crps_ratio",
        "p",
        "mae_ratio",
        "mase",
        "directional_accuracy",
        "coverage_50",
        "coverage_80",
        "coverage_90",
        "tail_pinball_ratio",
    )
    short: dict[str, object] = {name: metrics[f"test_{name}"] for name in names}
    short["interval"] = [metrics["test_crps_ratio_low"], metrics["test_crps_ratio_high"]]
    chances = [f"{name}_{of}" for name in (*SCORED, OUTCOMES) for of in ("brier", "brier_ratio", "p")]
    short |= {name: metrics[f"test_{name}"] for name in chances if f"test_{name}" in metrics}
    for name in (name for name in SCORED if f"{name}_p" in short):
        short[f"{name}_interval"] = [metrics[f"test_{name}_brier_ratio_{end}"] for end in ("low", "high")]
    if "test_p_holm" in metrics:
        short["p_holm"] = metrics["test_p_holm"]
    return short | {"n": int(metrics["test_n"])}
