"""The winner: trained as `train-all` would, scored on the test span that no trial has seen, written as a preset."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cpbmodels
from schemas.tuning import TuneSpec
from tasks.backtesting.folds import FoldSeries
from tasks.judging.baselines import reference
from tasks.judging.member import judge_member
from tasks.judging.pool import judge_pool
from tasks.storage.files import write_bytes
from tasks.training.planning import member_seed


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
    """A number, text, truth value or list as TOML, which writes them as JSON does (ASCII, so no escape differs)."""
    return json.dumps(list(value) if isinstance(value, tuple) else value)
