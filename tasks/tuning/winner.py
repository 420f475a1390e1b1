"""The winner of a search: compared with luck, scored on the test span that no trial has seen, written as a preset.

Luck alone is White's reality check (Econometrica 2000): resample blocks of time; in each resample subtract each trial's
own skill from its loss, so that its expected ratio to the reference is 1, and record the lowest ratio. Trials share
their candles, so they are resampled together and their correlation is kept.
"""

import json
from collections.abc import Sequence
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
    name, preset = spec.fleet.architecture, spec.fleet.preset
    # The seeds of `train-all`: what is scored is the model that the preset will give there.
    seeds = [member_seed(spec.seed, name, coin.id) for coin in folds]
    overrides = spec.fleet.overrides | options
    series = [coin.series for coin in folds]
    members = cpbmodels.train_fleet(series, name, preset, seeds=seeds, **how, **overrides)
    context, horizon = members[0].context, members[0].horizon
    origins = [coin.origins("test", context, horizon) for coin in series]
    forecasts = cpbmodels.predict(members, series, origins)
    scores = [
        judge_member(
            coin,
            forecast,
            reference(coin, coin.origins("train", context, horizon), coin_origins, horizon),
            architecture=name,
        )
        for coin, coin_origins, forecast in zip(series, origins, forecasts, strict=True)
    ]
    wanted = (
        "test_crps_ratio",
        "test_crps_ratio_low",
        "test_crps_ratio_high",
        "test_p",
        "coins_below_one",
        "test_n",
    )
    # A pool per timeframe: losses of 15m and 1h overlap in time, and are no independent evidence.
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
        f"base = {_toml(spec.fleet.preset)}",
        f"architectures = {_toml([spec.fleet.architecture])}",
        "seeds = 1",
        "",
        "[options]",
        *(f"{name} = {_toml(value)}" for name, value in (spec.fleet.overrides | options).items()),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, ("\n".join(lines) + "\n").encode())


def _toml(value: Any) -> str:
    """Return a number, text, boolean or list as TOML, which equals JSON here (ASCII, so escapes do not differ)."""
    return json.dumps(list(value) if isinstance(value, tuple) else value)


Array = NDArray[np.float64]


def best_of_null_trials(losses: Array, reference: Array, observed: float, seed: int = 0) -> dict[str, float]:
    """Return the score expected from the best of len(losses) trials without skill.

    Returns:
        `best_of_null`: median over resamples of the lowest ratio among null trials; `best_of_null_low`: its 5 %
        quantile; `p`: share of resamples in which luck alone is at least as good as the winner; `trials`.

    Args:
        losses: [trials, blocks], sums of each trial's losses.
        reference: [blocks], sums of the reference's losses, on the same origins.
        observed: the winner's ratio.
        seed: seed of the resamples.
    """
    share = losses.sum(1, keepdims=True) / reference.sum()
    null = losses - (share - 1) * reference  # each trial's ratio is now 1, its noise is unchanged
    weights = bootstrap_weights(len(reference), seed=seed)
    # The lowest of each resample: what the search would have shown if no trial had any skill.
    best = ratio_draws(null.T, reference[:, None], weights).min(1)
    return {
        "best_of_null": float(np.median(best)),
        "best_of_null_low": float(np.quantile(best, 0.05)),
        "p": float(np.mean(best <= observed)),
        "trials": len(losses),
    }
