"""The reference of a model as a record: fitted here once, used for judging, forecasting and the drift watch."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cpbmodels.data.prices import LAMBDA
from cpbmodels.data.series import Series
from schemas.identity import SeriesId
from schemas.reference import Promise, Reference
from tasks.judging.baselines import EmpiricalWalk, Rows, ewma_walk
from tasks.judging.scores import Array

_DECILES = np.arange(1, 10) / 10


def fit_reference(
    series: Series, name: SeriesId, horizon: int, columns: Sequence[str], promised: Promise | None = None
) -> Reference:
    """Fit the reference on the training origins of a series, which must have a training span.

    Args:
        columns: input columns of the model, for their deciles; names that the series lacks are ignored.
        promised: the model's test metrics.

    Raises:
        ValueError: there is no training origin.
    """
    origins = series.origins("train", 1, horizon)
    if len(origins) == 0:
        raise ValueError(f"{name}: the reference needs at least one training origin")
    assert series.times is not None
    known = tuple(column for column in columns if column in series.names)
    values = series.columns(known)[origins]
    deciles = np.quantile(values, _DECILES, axis=0).T
    return Reference(
        series=name,
        table=tuple(map(tuple, ewma_walk(series, origins, horizon).table.tolist())),
        decay=LAMBDA,
        origins=len(origins),
        span=(int(series.times[origins[0]]), int(series.times[origins[-1]])),
        deciles={column: tuple(row) for column, row in zip(known, deciles.tolist(), strict=True)},
        shares={
            column: tuple(bin_shares(values[:, i], deciles[i]).tolist()) for i, column in enumerate(known)
        },
        promised=promised,
    )


def bin_shares(values: Array, edges: Array) -> Array:
    """Return the share [10] of values [N] in each bin between nine edges; bin i holds edges[i-1] <= x < edges[i]."""
    places: NDArray[np.int64] = np.searchsorted(edges, values, side="right")
    return np.bincount(places, minlength=len(edges) + 1) / max(1, len(values))


def reference_quantiles(reference: Reference, series: Series, origins: Rows) -> Array:
    """Return the reference's quantiles [N, H, 19] of the cumulative log-return after each origin.

    The reference's `decay` must equal that of the series' volatility (`cpbmodels.data.prices.LAMBDA`).
    """
    return EmpiricalWalk(np.asarray(reference.table), scaled=True).quantiles(series, origins)


def population_stability(reference: Reference, columns: Mapping[str, Array]) -> dict[str, float]:
    """Return the population stability index of each column [N] with deciles in the reference.

    Σ (now - then) ln(now / then) over the ten bins; an empty bin counts as half a row to keep the index finite.
    """
    found = {}
    for name, edges in reference.deciles.items():
        values = columns.get(name)
        if values is None or len(values) == 0:
            continue
        floor = 0.5 / len(values)
        now = np.maximum(bin_shares(values, np.asarray(edges)), floor)
        then = np.maximum(np.asarray(reference.shares[name]), floor)
        found[name] = float(np.sum((now - then) * np.log(now / then)))
    return found
