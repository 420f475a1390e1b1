"""Code of the resident processes (`tasks.running.resident`) that judge trained members; `judges.py` sends the orders.

Judging writes a score file into each member's folder (losses per origin, for pooling), and into its `model` folder
`metrics.json`, `reference.json`, `forecast.png` (a classifier: no reference, and `confusion.png`) and `loss.png`.
Judging does not need torch unless a member's forecasts are missing and its model must make them again.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from cpbmodels.data.paths import scaled_errors
from cpbmodels.data.series import Series
from cpbmodels.data.wide import NO_MARKET
from schemas.errors import DamagedError
from schemas.handover import Failure, JobMember, ShardJob, TrainedMember
from schemas.identity import SeriesId
from schemas.reference import BANDS, Promise, Reference
from tasks.judging.baselines import fit_reference, realised, reference_quantiles
from tasks.judging.classes import judge_classes
from tasks.judging.fleet import score_file
from tasks.judging.member import judge_member, times_of
from tasks.judging.pictures import confusion_png, forecast_png, loss_png
from tasks.judging.scores import coverage, pinball
from tasks.running.resident import Orders
from tasks.signals.store import load_series, market_key, markets, read_features
from tasks.storage.model_folder import read_config, write_reference
from tasks.storage.records import read_npz
from tasks.training.files import home_of, member_folder, read_job, read_result

log = logging.getLogger("cpb")


def serve(orders: Orders) -> None:
    """Judge the members in each order."""
    for order in orders:
        failures = judge_members(Path(order["folder"]), order["names"])
        orders.answer([failure.model_dump(mode="json") for failure in failures])


def judge_members(folder: Path, names: Sequence[str]) -> list[Failure]:
    """Judge these members of the shard in `folder`; return a failure for each member that cannot be judged."""
    job, result = read_job(folder), read_result(folder)
    planned, trained = {m.name: m for m in job.members}, {m.name: m for m in result.members}
    failures = []
    for name in names:
        try:
            _judge(folder, job, planned[name], trained[name])
        except Exception as error:  # an error of a member must not affect the others
            log.debug("%s cannot be judged", trained[name].model, exc_info=error)
            failures.append(Failure.of(trained[name].model, "evaluate", error))
    return failures


def _judge(fleet: Path, job: ShardJob, spec: JobMember, trained: TrainedMember) -> None:
    folder = member_folder(fleet, spec.name)
    series = load_series(home_of(fleet, job), spec.features, spec.bounds)
    test = _forecasts(folder, job, spec.model.series, series, "test")
    if test.quantiles.size:
        columns = read_config(folder / "model").features
        fitted = fit_reference(series, spec.model.series, test.quantiles.shape[1], columns)
        other = reference_quantiles(fitted, series, test.origins)
        score = judge_member(series, test, other, architecture=job.architecture, seed=spec.model.seed)
        validation = _forecasts(folder, job, spec.model.series, series, "validation")
        own = {"validation_crps_ratio": _crps_ratio(series, validation, fitted)}
        score = replace(score, metrics=score.metrics | own, errors=_errors(series, validation))
        first = {band: float(score.steps[f"coverage_{band}"][0]) for band in BANDS}
        truth = realised(series, test.origins, 1)
        reference_first = {band: float(coverage(other[:, :1], truth, band)[0]) for band in BANDS}
        promised = Promise.of(score.metrics, first, reference_first)
        write_reference(folder / "model", fitted.model_copy(update={"promised": promised}))
        forecast_png(folder / "model" / "forecast.png", series, test)
    else:
        assert trained.flat_band is not None
        band = trained.flat_band
        score = judge_classes(series, test, band=band, architecture=job.architecture, seed=spec.model.seed)
        confusion_png(folder / "model" / "confusion.png", score.metrics)
    loss_png(folder / "model" / "loss.png", list(trained.history))
    score.to_npz(score_file(folder))
    for split in ("test", "validation"):  # 4 MB per member, and the model can make them again
        (folder / f"{split}.npz").unlink(missing_ok=True)


def _forecasts(folder: Path, job: ShardJob, name: SeriesId, series: Series, split: str) -> Any:
    """Return a split's forecasts as stored by the trainer, or made again by the model."""
    try:
        kept = read_npz(folder / f"{split}.npz")
    except FileNotFoundError:
        return _made_again(folder, job, name, series, split)
    except DamagedError as error:
        log.warning("%s", error)
        return _made_again(folder, job, name, series, split)
    origins = kept.pop("origins")
    return SimpleNamespace(origins=origins, **{k: v.astype(np.float64) for k, v in kept.items()})


def _made_again(folder: Path, job: ShardJob, name: SeriesId, series: Series, split: str) -> Any:
    from cpbmodels.fleet.member import load  # torch
    from cpbmodels.fleet.prediction import predict

    member = load(folder / "model")
    if NO_MARKET in member.config["features"]:
        home = home_of(folder.parent.parent, job)
        coins = {one.model.series: read_features(home, one.features) for one in job.members}
        series = replace(series, market=markets(coins)[market_key(name)])
    found = predict([member], [series], [series.origins(split, member.context, member.horizon)])[0]
    arrays = {"quantiles": found.quantiles, "candle": found.candle, "probabilities": found.probabilities}
    # Rounded like the trainer's stored forecasts, so that judging again gives the same score to the last bit.
    rounded = {k: v.astype(np.float32).astype(np.float64) for k, v in arrays.items() if v is not None}
    return SimpleNamespace(origins=found.origins, **rounded)


_MAX_ERRORS = 2000
"""Newest validation origins whose errors are kept: 80 kB with 10 steps."""


def _errors(series: Series, forecasts: Any) -> dict[str, Any]:
    """Return `MemberScore.errors`."""
    origins, quantiles = forecasts.origins[-_MAX_ERRORS:], forecasts.quantiles[-_MAX_ERRORS:]
    truth = realised(series, origins, quantiles.shape[1])
    return {"times": times_of(series, origins), "scaled": scaled_errors(quantiles, truth).astype(np.float32)}


def _crps_ratio(series: Series, forecasts: Any, fitted: Reference) -> float:
    truth = realised(series, forecasts.origins, forecasts.quantiles.shape[1])
    own = pinball(forecasts.quantiles, truth).mean()
    return float(own / pinball(reference_quantiles(fitted, series, forecasts.origins), truth).mean())
