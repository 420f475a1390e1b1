"""The reference beside a forecast: the model's own record of it, or one fitted from stored candles for older models."""

import logging
import re
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from cpbmodels.columns import feature_frame
from cpbmodels.figures import HORIZON
from cpbmodels.series import LAMBDA, Series
from schemas.errors import DamagedError, MemberError
from schemas.handover import SplitBounds
from schemas.identity import SeriesId, is_series_name, tree_of
from schemas.reference import BANDS, Promise, Reference
from tasks.judging.reference import fit_reference, reference_quantiles
from tasks.judging.scores import Array
from tasks.market.store import read_klines
from tasks.signals.store import series_of
from tasks.storage.digests import value_digest
from tasks.storage.model_folder import ModelConfig, read_config, read_reference
from tasks.storage.records import find_record, write_record

log = logging.getLogger("cpb")


def reference_of(home: Path, series: SeriesId, folder: Path) -> Reference:
    """Return the reference of the model in `folder`, as judging fitted it.

    Models of releases that kept none get one from the stored candles of their training span, once: it is kept in the
    ledger's folder. So does a model whose record is damaged.

    Raises:
        MemberError: (code `reference`) there is none, and none can be fitted.
        DamagedError: `config.json` is damaged.
    """
    try:
        known = read_reference(folder)
    except DamagedError as error:
        log.warning("%s; it is fitted again from the stored candles of the training span", error)
        known = None
    if known and known.decay == LAMBDA:  # else of a release with another volatility
        return known
    config = read_config(folder)
    key = value_digest([series.name, config.bounds, config.horizon, config.features, LAMBDA])[:16]
    path = _folder(home, series.market) / f"{series.name}-{key}.json"
    if kept := find_record(path, Reference, of=path.stem):
        return kept
    made = _fitted(home, series, config)
    write_record(path, made, of=path.stem, compact=True)
    log.warning(
        "the model of %s has no record of its reference: fitted from the %d stored "
        "origins of its training span",
        series, made.origins,
    )  # fmt: skip
    return made


def reference_files(home: Path, market: str) -> list[Path]:
    """Return the files of a market's references; others' files beside them are left out."""
    return sorted(path for path in _folder(home, market).glob("*.json") if _is_own(path.stem))


def _is_own(stem: str) -> bool:
    name, _, key = stem.rpartition("-")
    return re.fullmatch(r"[0-9a-f]{16}", key) is not None and is_series_name(name)


def _folder(home: Path, market: str) -> Path:
    return tree_of(home, "ledger", market) / "references"


def _fitted(home: Path, series: SeriesId, config: ModelConfig) -> Reference:
    try:
        bounds = SplitBounds.model_validate(config.bounds)
    except ValidationError as error:
        raise _impossible(series, "its config.json does not say on which candles it was trained") from error
    first, end = bounds.train
    # From the span's start on, as in training: columns warm up within it.
    klines = read_klines(home, series, since=first, as_of=end)
    if klines.is_empty():
        raise _impossible(series, f"no candles are stored of {first:%Y-%m-%d} to {end:%Y-%m-%d}")
    candles = series_of(feature_frame(klines, series.timeframe), series, bounds)
    try:
        return fit_reference(
            candles, series, config.horizon or HORIZON, config.features, _promised(config.model_dump())
        )
    except ValueError as error:
        raise _impossible(series, str(error)) from error


def _promised(config: dict[str, object]) -> Promise | None:
    """Return what the metrics in a `config.json` promise; they do not tell the coverage of the first step."""
    metrics = config.get("metrics")
    needed = ("n", "crps_ratio", "crps_ratio_low", "crps_ratio_high", "tail_pinball_ratio")
    names = {f"test_{name}" for name in (*needed, *(f"coverage_{band}" for band in BANDS))}
    return Promise.of(metrics, {}) if isinstance(metrics, dict) and names <= metrics.keys() else None


def _impossible(series: SeriesId, why: str) -> MemberError:
    return MemberError(
        f"{series}: its model has no record of its reference and none can be fitted: {why}; train it again, as in "
        f"`cpb train-all {series.options}`",
        code="reference",
    )


def reference_prices(reference: Reference, series: Series, row: int, horizon: int) -> Array:
    """Return the reference's quantiles [19, H] of the closes after the candle in `row`, in prices.

    Raises:
        MemberError: (code `reference`) it was fitted for fewer steps.
    """
    if reference.horizon < horizon:
        raise _impossible(reference.series, f"it has {reference.horizon} steps, the forecast {horizon}")
    moves = reference_quantiles(reference, series, np.asarray([row]))[0, :horizon]
    return np.ascontiguousarray(series.prices[row, 3] * np.exp(moves).T)
