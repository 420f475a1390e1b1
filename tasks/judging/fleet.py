"""Judges a trained fleet: every member's forecasts against the reference on the same rows, written beside it.

Each member's folder gains a score file (losses per origin, for pooling), and its `model` folder `metrics.json`,
`forecast.png` (a classifier: `confusion.png`) and `loss.png`, and the metrics in `config.json`. A score that is there
already is read, not computed again.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from cpbmodels.member import load
from cpbmodels.prediction import predict
from cpbmodels.series import Series
from tasks.storage.files import read_json, write_json
from tasks.judging.baselines import realised, reference
from tasks.judging.classes import judge_classes
from tasks.judging.member import MemberScore, judge_member
from tasks.judging.pictures import confusion_png, forecast_png, loss_png
from tasks.judging.pool import PoolScore, apply_holm, judge_pools
from tasks.judging.scores import pinball
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
    kept = folder / f"score-{code_digest()}.npz"
    if kept.exists():
        return MemberScore.from_npz(kept)
    series = load_series(spec.features, job.bounds[spec.timeframe], spec.symbol)
    test = _forecasts(folder, series, "test")
    if test.quantiles.size:
        score = judge_member(
            series, test, _reference(series, test), architecture=job.architecture, seed=spec.seed
        )
        own = {"validation_crps_ratio": _crps_ratio(series, _forecasts(folder, series, "validation"))}
        score = replace(score, metrics=score.metrics | own)
        forecast_png(folder / "model" / "forecast.png", series, test)
    else:
        band = read_json(folder / "model" / "config.json")["flat_band"]
        score = judge_classes(series, test, band=band, architecture=job.architecture, seed=spec.seed)
        confusion_png(folder / "model" / "confusion.png", score.metrics)
    loss_png(folder / "model" / "loss.png", read_json(folder / "history.json")["history"])
    score.to_npz(kept)
    for split in ("test", "validation"):  # 4 MB a member, and the model can make them again
        (folder / f"{split}.npz").unlink(missing_ok=True)
    return score


@cache
def code_digest() -> str:
    """Return a digest of the sources that decide a score: a stored one of other code is not used."""
    digest = hashlib.sha256()
    for name in ("scores", "baselines", "inference", "member", "classes", "fleet"):
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()[:12]


def _forecasts(folder: Path, series: Series, split: str) -> Any:
    """Return a split's forecasts as the worker left them, or made again by the model."""
    if not (folder / f"{split}.npz").exists():
        member = load(folder / "model")
        origins = series.origins(split, member.context, member.horizon)
        return predict([member], [series], [origins])[0]
    with np.load(folder / f"{split}.npz") as kept:
        arrays = {name: kept[name].astype(np.float64) for name in kept.files if name != "origins"}
        return SimpleNamespace(origins=kept["origins"], **arrays)


def _reference(series: Series, forecasts: Any) -> Any:
    horizon = forecasts.quantiles.shape[1]
    return reference(series, series.origins("train", 1, horizon), forecasts.origins, horizon)


def _crps_ratio(series: Series, forecasts: Any) -> float:
    truth = realised(series, forecasts.origins, forecasts.quantiles.shape[1])
    own = pinball(forecasts.quantiles, truth).mean()
    return float(own / pinball(_reference(series, forecasts), truth).mean())


def _keep_metrics(folder: Path, score: MemberScore) -> None:
    write_json(folder / "metrics.json", score.metrics | {"verdict": score.verdict})
    config = read_json(folder / "config.json")
    if config.get("metrics") != score.metrics:
        write_json(folder / "config.json", config | {"metrics": score.metrics})
