"""Judges a trained fleet: every member's forecasts against the reference on the same rows, written beside it.

Each member's folder gains `score.npz` (losses per origin, for pooling), and its `model` folder `metrics.json`,
`forecast.png` and `loss.png`, and the metrics in `config.json`. A score that is there
already is read, not computed again.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from cpbmodels.series import Series
from tasks.files import read_json, write_json
from tasks.judging.baselines import realised, reference
from tasks.judging.member import MemberScore, judge_member
from tasks.judging.pictures import forecast_png, loss_png
from tasks.judging.pool import PoolScore, apply_holm, judge_pools
from tasks.signals.store import load_series
from tasks.training.job import Job, JobMember


@dataclass(frozen=True)
class FleetScore:
    """Scores of a fleet's members by folder name, as in `BTCUSDT-1h`, and pooled per timeframe."""

    members: dict[str, MemberScore]
    pools: list[PoolScore]


def judge_fleet(folder: Path) -> FleetScore:
    """Judge every finished member of the fleet in `folder`."""
    job = Job.load(folder)
    names = read_json(folder / "done.json")["members"]
    specs = {m.name: m for m in job.members if m.name in names}
    scores = [_judge(folder / "members" / name, job, spec) for name, spec in specs.items()]
    corrected = apply_holm(scores)
    members = dict(zip(specs, corrected, strict=True))
    for name, score in members.items():
        _keep_metrics(folder / "members" / name / "model", score)
    return FleetScore(members, judge_pools(corrected))


def _judge(folder: Path, job: Job, spec: JobMember) -> MemberScore:
    kept = folder / "score.npz"
    if kept.exists():
        return MemberScore.from_npz(kept)
    series = load_series(spec.features, job.bounds[spec.timeframe], spec.symbol)
    test, validation = _forecasts(folder, "test"), _forecasts(folder, "validation")
    score = judge_member(
        series, test, _reference(series, test), architecture=job.architecture, seed=spec.seed
    )
    own = {"validation_crps_ratio": _crps_ratio(series, validation)}
    score = replace(score, metrics=score.metrics | own)
    trained = read_json(folder / "history.json")
    forecast_png(folder / "model" / "forecast.png", series, test)
    loss_png(folder / "model" / "loss.png", trained["history"])
    score.to_npz(kept)
    return score


def _forecasts(folder: Path, split: str) -> Any:
    with np.load(folder / f"{split}.npz") as kept:
        return SimpleNamespace(
            origins=kept["origins"], quantiles=kept["quantiles"].astype(np.float64), candle=kept["candle"]
        )


def _reference(series: Series, forecasts: Any) -> Any:
    horizon = forecasts.quantiles.shape[1]
    return reference(series, series.origins("train", 1, horizon), forecasts.origins, horizon)


def _crps_ratio(series: Series, forecasts: Any) -> float:
    from tasks.judging.scores import pinball

    truth = realised(series, forecasts.origins, forecasts.quantiles.shape[1])
    own = pinball(forecasts.quantiles, truth).mean()
    return float(own / pinball(_reference(series, forecasts), truth).mean())


def _keep_metrics(folder: Path, score: MemberScore) -> None:
    write_json(folder / "metrics.json", score.metrics | {"verdict": score.verdict})
    config = read_json(folder / "config.json")
    if config.get("metrics") != score.metrics:
        write_json(folder / "config.json", config | {"metrics": score.metrics})
