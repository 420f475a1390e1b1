"""Forecasts of a trained member: as its trainer stored them, or made again by the model."""

from dataclasses import replace
from pathlib import Path

from cpbmodels.data.prediction import Prediction
from cpbmodels.data.series import Series
from cpbmodels.data.wide import NO_MARKET
from schemas.errors import DamagedError, log
from schemas.handover import JobMember
from tasks.signals.feature_files import cross_sections, market_key, read_features
from tasks.storage.arrays import read_npz
from tasks.training.shard import home_of, member_folder, read_job


def forecasts(shard: Path, member: JobMember, series: Series, split: str) -> Prediction:
    """Return the forecasts of a split's origins by the member of the shard in a folder.

    Raises:
        DamagedError: the member's folder is gone, or a file is damaged that the model needs.
    """
    folder = member_folder(shard, member.name)
    if stored := stored_forecasts(folder / f"{split}.npz"):
        return stored
    from cpbmodels.fleet.load import load  # torch, which no judge needs otherwise
    from cpbmodels.fleet.predict import predict

    model = load(folder / "model")
    if NO_MARKET in model.config["features"]:
        # The coins of the shard, as in its trainer: with others the columns of the market would differ.
        job = read_job(shard)
        home = home_of(shard, job)
        coins = {planned.model.series: read_features(home, planned.features) for planned in job.members}
        series = replace(series, cross_section=cross_sections(coins)[market_key(member.model.series)])
    prediction = predict([model], [series], [series.origins(split, model.context, model.horizon)])[0]
    # Rounded like the trainer's stored forecasts. Those were computed for several members at once, which rounds in
    # another order: a score that is made again differs from the first in its ninth digit, and nowhere before.
    return Prediction.of_arrays(prediction.arrays())


def stored_forecasts(path: Path) -> Prediction | None:
    """Return the forecasts that a trainer stored as float32; None if missing or damaged, so the model repeats them."""
    try:
        kept = read_npz(path)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        log.warning("%s", error)
        return None
    return Prediction.of_arrays(kept)
