"""Judges trained members against the reference on the same rows, shard by shard, and pools a fleet's scores.

Each member's folder gains a score file (losses per origin, for pooling), and its `model` folder `metrics.json`,
`reference.json`, `forecast.png` (a classifier: no reference, and `confusion.png`) and `loss.png`, and the metrics in
`config.json`. The process that trained a shard judges it; whoever asks for a fleet's score reads what is there, and
judges what is missing.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from cpbmodels.member import load
from cpbmodels.prediction import predict
from cpbmodels.series import Series
from schemas.errors import DamagedError
from schemas.handover import Failure, FleetJob, FleetPlan, FleetResult, JobMember, TrainedMember
from schemas.reference import BANDS, Promise, Reference
from tasks.judging.baselines import realised
from tasks.judging.classes import judge_classes
from tasks.judging.member import MemberScore, judge_member
from tasks.judging.pictures import confusion_png, forecast_png, loss_png
from tasks.judging.pool import PoolScore, apply_holm, judge_pools
from tasks.judging.reference import fit_reference, reference_quantiles
from tasks.judging.scores import pinball
from tasks.progress import tell, telling
from tasks.signals.store import load_series
from tasks.storage.digests import code_digest
from tasks.storage.model_folder import (
    PICTURES,
    REFERENCE,
    picture_damage,
    read_config,
    read_reference,
    write_metrics,
    write_reference,
)
from tasks.storage.npz import read_npz
from tasks.storage.records import member_subject
from tasks.training.fleet_files import fleet_folder, home_of, member_folder

log = logging.getLogger("cpb")


@dataclass(frozen=True)
class FleetScore:
    """Scores of a fleet's members by folder name, as in `BTCUSDT-1h`, pooled per timeframe, and what failed."""

    members: dict[str, MemberScore]
    pools: list[PoolScore]
    failures: list[Failure]


def judge_fleet(root: Path, plan: FleetPlan, results: Sequence[FleetResult]) -> FleetScore:
    """Judge every trained member of a fleet; one that cannot be judged is a failure of its own.

    Args:
        root: the market's home, which holds the shards' folders.
        plan: the fleet.
        results: of each of its shards, in order.
    """
    scores: dict[str, MemberScore] = {}
    folders: dict[str, Path] = {}
    failures: list[Failure] = []
    total, done = sum(len(one.members) for one in results), itertools.count(1)

    def told(judged: int, of: int) -> None:
        if judged:
            tell(f"judge {plan.architecture}", next(done), total, "members")

    with telling(f"judge {plan.architecture}", total, "members"):
        for job, result in zip(plan.shards, results, strict=True):
            folder = fleet_folder(root, job)
            found, failed = judge_shard(folder, job, result, told)
            failures += failed
            scores |= found
            folders |= {name: member_folder(folder, name) for name in found}
    corrected = apply_holm(list(scores.values()))
    members = dict(zip(scores, corrected, strict=True))
    for name, score in members.items():
        write_metrics(folders[name] / "model", score.metrics, score.verdict)
    return FleetScore(members, judge_pools(corrected) if corrected else [], failures)


def judge_shard(
    folder: Path, job: FleetJob, result: FleetResult, told: Callable[[int, int], None] = lambda done, of: None
) -> tuple[dict[str, MemberScore], list[Failure]]:
    """Judge every trained member of the job in `folder`; return the scores by folder name, and a failure per other one.

    `told`: called with the number of members judged and that of all, first with none.
    """
    specs = {m.name: m for m in job.members}
    scores: dict[str, MemberScore] = {}
    failures = []
    told(0, len(result.members))
    for done, trained in enumerate(result.members, start=1):
        try:
            scores[trained.name] = _judge(folder, job, specs[trained.name], trained)
        except Exception as error:  # one member's fault must not cost the others their judgement
            log.debug("%s cannot be judged", trained.model, exc_info=error)
            failures.append(Failure.of(trained.model, "evaluate", error))
        told(done, len(result.members))
    return scores, failures


def read_scores(root: Path, results: Iterable[FleetResult]) -> list[MemberScore]:
    """Return the scores of a fleet's members by its shards' results; those that could not be judged are left out."""
    places = [member_folder(root / "fleets" / one.key, m.name) for one in results for m in one.members]
    kept = [score_file(place) for place in places]
    return apply_holm([MemberScore.from_npz(path) for path in kept if path.exists()])


def score_file(folder: Path) -> Path:
    """Return where the score of a member lies, with its losses per origin; another code's scores are not read."""
    return folder / f"score-{code_digest('tasks/judging/fleet.py')}.npz"


def _known_score(folder: Path, kept: Path) -> MemberScore | None:
    """Return a score that was computed before; None where it, or what was made with it, is missing or damaged."""
    pictures = [p for name in PICTURES if (p := folder / "model" / name).exists()]
    if any(picture_damage(path) for path in pictures):
        return None
    try:
        score = MemberScore.from_npz(kept)
        is_classifier = "test_accuracy" in score.metrics
        subject = member_subject(folder / "model" / REFERENCE)
        return score if is_classifier or read_reference(folder / "model", of=subject) else None
    except FileNotFoundError:
        return None
    except DamagedError as error:
        log.warning("%s", error)
        return None


def _judge(fleet: Path, job: FleetJob, spec: JobMember, trained: TrainedMember) -> MemberScore:
    folder = member_folder(fleet, spec.name)
    kept = score_file(folder)
    if known := _known_score(folder, kept):
        return known
    series = load_series(home_of(fleet, job), spec.features, spec.bounds)
    test = _forecasts(folder, series, "test")
    if test.quantiles.size:
        columns = read_config(folder / "model").features
        fitted = fit_reference(series, spec.model.series, test.quantiles.shape[1], columns)
        other = reference_quantiles(fitted, series, test.origins)
        score = judge_member(series, test, other, architecture=job.architecture, seed=spec.model.seed)
        own = {"validation_crps_ratio": _crps_ratio(series, _forecasts(folder, series, "validation"), fitted)}
        score = replace(score, metrics=score.metrics | own)
        first = {band: float(score.steps[f"coverage_{band}"][0]) for band in BANDS}
        promised = Promise.of(score.metrics, first)
        write_reference(folder / "model", fitted.model_copy(update={"promised": promised}))
        forecast_png(folder / "model" / "forecast.png", series, test)
    else:
        assert trained.flat_band is not None
        band = trained.flat_band
        score = judge_classes(series, test, band=band, architecture=job.architecture, seed=spec.model.seed)
        confusion_png(folder / "model" / "confusion.png", score.metrics)
    loss_png(folder / "model" / "loss.png", list(trained.history))
    score.to_npz(kept)
    for split in ("test", "validation"):  # 4 MB a member, and the model can make them again
        (folder / f"{split}.npz").unlink(missing_ok=True)
    return score


def _forecasts(folder: Path, series: Series, split: str) -> Any:
    """Return a split's forecasts as the trainer left them, or made again by the model."""
    try:
        kept = read_npz(folder / f"{split}.npz")
    except FileNotFoundError:
        return _made_again(folder, series, split)
    except DamagedError as error:
        log.warning("%s", error)
        return _made_again(folder, series, split)
    origins = kept.pop("origins")
    return SimpleNamespace(origins=origins, **{k: v.astype(np.float64) for k, v in kept.items()})


def _made_again(folder: Path, series: Series, split: str) -> Any:
    member = load(folder / "model")
    found = predict([member], [series], [series.origins(split, member.context, member.horizon)])[0]
    arrays = {"quantiles": found.quantiles, "candle": found.candle, "probabilities": found.probabilities}
    # Rounded like those that the trainer stores, so that judging again gives the same score to the last bit.
    rounded = {k: v.astype(np.float32).astype(np.float64) for k, v in arrays.items() if v is not None}
    return SimpleNamespace(origins=found.origins, **rounded)


def _crps_ratio(series: Series, forecasts: Any, fitted: Reference) -> float:
    truth = realised(series, forecasts.origins, forecasts.quantiles.shape[1])
    own = pinball(forecasts.quantiles, truth).mean()
    return float(own / pinball(reference_quantiles(fitted, series, forecasts.origins), truth).mean())
