"""Code of the resident processes (`tasks.running.resident`) that judge trained members; `fleet.py` sends the requests.

Judging writes a score file into each member's folder (losses per origin, for pooling), and into its `model` folder
`metrics.json`, `reference.json`, `forecast.png` (a classifier has neither of the two) and `loss.png`.
Judging does not need torch unless a member's forecasts are missing and its model must regenerate them.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cpbmodels.data.prediction import Prediction
from cpbmodels.data.series import Series
from schemas.failure import Failure
from schemas.handover import JobMember, ShardJob, TrainedMember
from schemas.ledger import BANDS, JudgedMetrics, Reference
from tasks.judging.baselines import ScaledTable, fit_reference, reference_quantiles, step_scale
from tasks.judging.chance_scores import chance_scores
from tasks.judging.classes import judge_classes
from tasks.judging.forecasts import forecasts
from tasks.judging.member import judge_member
from tasks.judging.pictures import forecast_png, loss_png
from tasks.judging.score_files import known_score, score_file
from tasks.judging.scores import coverage, pinball, realised
from tasks.running.resident import Requests
from tasks.signals.feature_files import load_series
from tasks.storage.model_folder import FORECAST_PICTURE, LOSS_PICTURE, REFERENCE, write_reference
from tasks.storage.sealed import resealing, writing
from tasks.training.shard import home_of, member_folder, read_job, read_result

log = logging.getLogger("cpb")


def serve(requests: Requests) -> None:
    """Judge the members in each request."""
    for folder, names in requests:
        requests.answer(judge_members(folder, names))


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


def _judge(shard: Path, job: ShardJob, planned: JobMember, trained: TrainedMember) -> None:
    folder = member_folder(shard, planned.name)
    series = load_series(home_of(shard, job), planned.features, planned.bounds)
    test = forecasts(shard, planned, series, "test")
    fitted: Reference | None = None
    if test.quantiles.size:
        fitted = fit_reference(series, planned.model.series, test.quantiles.shape[1])
        # By the table that is stored as the reference, so that judging, forecasting and the watch use the same
        # numbers.
        walk = ScaledTable(step_scale, np.asarray(fitted.table))
        other = walk.quantiles(series, test.origins)
        score = judge_member(
            series,
            test,
            other,
            architecture=job.architecture,
            seed=planned.model.seed,
            chances=chance_scores(series, test, walk),
        )
        validation = forecasts(shard, planned, series, "validation")
        skill = {"validation_crps_ratio": _crps_ratio(series, validation, fitted)}
        score = replace(score, metrics=score.metrics | skill)
        # Of the first step alone: its targets do not overlap, so the watch can bet on each of them.
        first = {band: float(score.steps[f"coverage_{band}"][0]) for band in BANDS}
        truth = realised(series, test.origins, 1)
        reference_first = {band: float(coverage(other[:, :1], truth, band)[0]) for band in BANDS}
        promised = JudgedMetrics.of(score.metrics, first, reference_first)
        fitted = fitted.model_copy(update={"promised": promised})
    else:
        assert trained.flat_band is not None
        band = trained.flat_band
        score = judge_classes(series, test, band=band, architecture=job.architecture, seed=planned.model.seed)
    # The seal is without these files while they are written: if this judge is killed in between they count as
    # missing, and the member is judged again.
    model, scored, predicted = folder / "model", score_file(folder), ("test.npz", "validation.npz")
    judged = (f"model/{name}" for name in (REFERENCE, FORECAST_PICTURE, LOSS_PICTURE))
    with writing(folder):
        # A run of the same command judges the same members at the same time: what the first has stored stays listed,
        # since it reads its scores as soon as its judge answers.
        if known_score(folder):
            return
        with resealing(folder, scored.name, *judged, *predicted):
            if fitted:
                write_reference(model, fitted)
                forecast_png(model / FORECAST_PICTURE, series, test)
            loss_png(model / LOSS_PICTURE, list(trained.history))
            score.to_npz(scored)
            for name in predicted:  # 4 MB per member, and the model can regenerate them
                (folder / name).unlink(missing_ok=True)


def _crps_ratio(series: Series, prediction: Prediction, fitted: Reference) -> float:
    truth = realised(series, prediction.origins, prediction.quantiles.shape[1])
    loss = pinball(prediction.quantiles, truth).mean()
    return float(loss / pinball(reference_quantiles(fitted, series, prediction.origins), truth).mean())
