"""Training on shuffled inputs: if a model without information beats the reference, it has some from the future."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cpbmodels.data import RETURNS
from cpbmodels.data.columns import candle_columns
from cpbmodels.data.series import Series

LEAK = "LOOK-AHEAD"
"""Marks a finding of look-ahead in messages."""

MIN_RATIO_WITHOUT_SKILL = 0.99
"""A model trained on shuffled inputs with a lower CRPS ratio must have information from elsewhere."""

MIN_FORECASTS = 1000
"""With fewer forecasts the ratio may be lower by chance, so the difference must also be significant."""


def with_shuffled_features(series: Series) -> Series:
    """Return the series with the feature rows of its training and validation spans shuffled within each span.

    Targets (prices, returns) and volatility are unchanged. The features then contain no information about the targets,
    so the CRPS ratio on the unchanged test span must not be below 0.99.
    """
    random = np.random.default_rng(0)
    features = series.features.copy()
    moved = [i for i, name in enumerate(series.names) if name not in RETURNS]
    # Rows with gaps stay where they are: otherwise windows would vanish or appear, and with them origins.
    complete = np.isfinite(features).all(axis=1)
    for rows in _learned(series, complete):
        features[rows[:, None], moved] = features[random.permutation(rows)[:, None], moved]
    return replace(series, features=features)


def with_shuffled_candles(series: Series) -> Series:
    """Return the series with the candles of its training and validation spans shuffled, for models that read returns.

    The target is computed from the returns, so shuffling only the features would keep information. Prices, columns of
    candles and volatility are recomputed from the shuffled log-returns; the returns of the test span are unchanged.
    """
    random = np.random.default_rng(0)
    returns = series.columns(RETURNS)
    whole = np.isfinite(returns).all(axis=1)
    for rows in _learned(series, whole):
        returns[rows] = returns[random.permutation(rows)]
    # A hole in the candles is a move of 0: prices stay finite, and no window crosses it anyway.
    moves = np.where(whole[:, None], returns, 0.0)
    # Returns of a row are relative to the close of the previous row; column 3 is the return of the close.
    close = np.cumsum(moves[:, 3])
    prices = np.exp(moves + (close - moves[:, 3])[:, None])
    names, columns, volatility = candle_columns(prices, series.segments)
    features = series.features.copy()
    features[:, [series.names.index(name) for name in names]] = columns
    return replace(series, prices=prices, features=features, volatility=volatility)


def trial_finding(ratio: float, n: int, verdict: str) -> str:
    """Return the interpretation of the CRPS ratio of a model trained on shuffled inputs, with n test forecasts."""
    if ratio >= MIN_RATIO_WITHOUT_SKILL:
        return "no skill, as expected"
    if n >= MIN_FORECASTS or verdict.startswith("better than"):
        return f"{LEAK}: skill from shuffled inputs"
    return "too few forecasts to be significant"


def _learned(series: Series, whole: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows without gaps of the training span, then those of the validation span."""
    for name in ("train", "validation"):
        first, last = series.spans[name]
        yield first + np.flatnonzero(whole[first:last])
