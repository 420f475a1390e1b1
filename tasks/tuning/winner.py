"""The winner: trained as by `train-all`, scored on the test span that no trial has seen, written as a preset.

Also the result expected from luck alone: the best of equally many trials, none of which is better than the reference.

White's reality check (Econometrica 2000): resample blocks of time; in each resample subtract each trial's own skill
from its loss, so that its expected ratio to the reference is 1, and record the lowest ratio. Trials share their
candles, so they are resampled together and their correlation is kept.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import cpbmodels
from schemas.tuning import TuneSpec
from tasks.backtesting.folds import FoldSeries
from tasks.judging.baselines import reference
from tasks.judging.inference import bootstrap_weights, ratio_draws
from tasks.judging.member import judge_member
from tasks.judging.pool import judge_pool
from tasks.storage.files import write_bytes
from tasks.training.plan import member_seed


def score_on_test(
    spec: TuneSpec, options: dict[str, Any], folds: Sequence[FoldSeries], **how: Any
) -> dict[str, Any]:
    """Train these options on the newest fold and return the pooled test figures of each timeframe.

    Returns:
        timeframe -> `test_crps_ratio`, its interval `_low` and `_high`, `test_p` (Diebold-Mariano against the random
        walk), `coins_below_one`, `test_n`, `verdict`.
    """
    name = spec.names[0]
    seeds = [member_seed(spec.seed, name, one.id) for one in folds]
    overrides = spec.overrides | options
    series = [one.series for one in folds]
    members = cpbmodels.train_fleet(series, name, spec.preset, seeds=seeds, **how, **overrides)
    context, horizon = members[0].context, members[0].horizon
    origins = [one.origins("test", context, horizon) for one in series]
    found = cpbmodels.predict(members, series, origins)
    scores = [
        judge_member(
            one,
            forecast,
            reference(one, one.origins("train", context, horizon), own, horizon),
            architecture=name,
        )
        for one, own, forecast in zip(series, origins, found, strict=True)
    ]
    wanted = (
        "test_crps_ratio",
        "test_crps_ratio_low",
        "test_crps_ratio_high",
        "test_p",
        "coins_below_one",
        "test_n",
    )
    pools = {
        timeframe: judge_pool([score for score in scores if score.timeframe == timeframe])
        for timeframe in dict.fromkeys(score.timeframe for score in scores)
    }
    return {
        timeframe: {metric: pool.metrics[metric] for metric in wanted} | {"verdict": pool.verdict}
        for timeframe, pool in pools.items()
    }


def write_preset(path: Path, spec: TuneSpec, options: dict[str, Any], about: str) -> None:
    """Write the winner as a preset file; `cpb train-all --preset FILE` trains it."""
    lines = [
        f"about = {_toml(about)}",
        f"base = {_toml(spec.preset)}",
        f"architectures = {_toml([spec.names[0]])}",
        "seeds = 1",
        "",
        "[options]",
        *(f"{name} = {_toml(value)}" for name, value in (spec.overrides | options).items()),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, ("\n".join(lines) + "\n").encode())


def _toml(value: Any) -> str:
    """Return a number, text, boolean or list as TOML, which equals JSON here (ASCII, so escapes do not differ)."""
    return json.dumps(list(value) if isinstance(value, tuple) else value)


Array = NDArray[np.float64]


@dataclass(frozen=True)
class Luck:
    """best: median over resamples of the lowest ratio among null trials; low: the 5 % quantile of that ratio.

    p: share of resamples in which luck alone is at least as good as the winner.
    """

    trials: int
    best: float
    low: float
    p: float


def best_of_null_trials(losses: Array, reference: Array, observed: float, seed: int = 0) -> Luck:
    """Return the score expected from the best of len(losses) trials without skill.

    Args:
        losses: [trials, blocks], sums of each trial's losses.
        reference: [blocks], sums of the reference's losses, on the same origins.
        observed: the winner's ratio.
        seed: seed of the resamples.
    """
    share = losses.sum(1, keepdims=True) / reference.sum()
    null = losses - (share - 1) * reference  # each trial's ratio is now 1, its noise is unchanged
    weights = bootstrap_weights(len(reference), seed=seed)
    best = ratio_draws(null.T, reference[:, None], weights).min(1)
    return Luck(
        trials=len(losses),
        best=float(np.median(best)),
        low=float(np.quantile(best, 0.05)),
        p=float(np.mean(best <= observed)),
    )
