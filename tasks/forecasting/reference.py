"""The reference beside a forecast: stored in the model's folder, as fitted during judging."""

from pathlib import Path

import numpy as np

from cpbmodels.data.series import Series
from schemas.errors import DamagedError, MemberError
from schemas.identity import SeriesId
from schemas.reference import Reference
from tasks.judging.reference import reference_quantiles
from tasks.judging.scores import Array
from tasks.storage.model_folder import read_reference


def reference_of(series: SeriesId, folder: Path) -> Reference:
    """Return the reference of the model in `folder`.

    Raises:
        MemberError: (code `reference`) the folder has no reference, or a damaged reference.
    """
    try:
        if known := read_reference(folder):
            return known
    except DamagedError as error:
        raise _unusable(series, str(error)) from error
    raise _unusable(series, "its model has no record of its reference")


def _unusable(series: SeriesId, why: str) -> MemberError:
    return MemberError(
        f"{series}: {why}; train it again, as in `cpb train-all {series.options}`", code="reference"
    )


def reference_prices(reference: Reference, series: Series, row: int, horizon: int) -> Array:
    """Return the reference's quantiles [19, H] of the closes after the candle in `row`, in prices.

    Raises:
        MemberError: (code `reference`) it was fitted for fewer steps.
    """
    if reference.horizon < horizon:
        why = f"its reference has {reference.horizon} steps, the forecast {horizon}"
        raise _unusable(reference.series, why)
    moves = reference_quantiles(reference, series, np.asarray([row]))[0, :horizon]
    return np.ascontiguousarray(series.prices[row, 3] * np.exp(moves).T)
