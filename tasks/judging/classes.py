"""Judging classifiers of the next move (up, flat, down) with the same machinery as distributions.

The ranked probability score is the CRPS of a forecast over ordered classes, so ratio, interval, test, pooling
and verdict stay what they are. "Flat" is a band in units of EWMA volatility, so to a random walk the classes
are equally likely at all times: the reference's forecast is the training span's class frequencies.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cpbmodels.series import Series
from tasks.judging.baselines import Rows, realised
from tasks.judging.member import MemberScore, certainty, step_us, times_of
from tasks.judging.scores import Array, classification

NAMES = ("up", "flat", "down")


class ClassPrediction(Protocol):
    """Origins [N] and `probabilities` [N, 3]: up, flat, down over the next candle."""

    origins: NDArray[np.int64]
    probabilities: Array


def true_classes(series: Series, origins: Rows, band: float) -> NDArray[np.int64]:
    """Return the class [N] of the next close: 0 up, 1 flat (within `band` × σ), 2 down."""
    move = realised(series, origins, 1)[:, 0] / series.volatility[origins]
    return np.where(move > band, 0, np.where(move < -band, 2, 1)).astype(np.int64)


def ranked_probability_score(probabilities: Array, actual: NDArray[np.int64]) -> Array:
    """Return the squared distance [N] of the cumulative class probabilities [N, C] from what happened."""
    happened = np.arange(probabilities.shape[1])[None, :] >= actual[:, None]
    return ((np.cumsum(probabilities, axis=1) - happened)[:, :-1] ** 2).sum(axis=1)


def judge_classes(
    series: Series, prediction: ClassPrediction, *, band: float, architecture: str, seed: int = 0
) -> MemberScore:
    """Score a classifier; `test_crps…` is the ranked probability score, beside accuracy, macro-F1 and confusion.

    `test_majority_accuracy` is that of always naming the training span's most frequent class. The confusion
    matrix stands in the metrics as `test_confusion_ACTUAL_PREDICTED`, in counts.

    Raises:
        ValueError: no origins, or probabilities that are not finite.
    """
    origins, chances = np.asarray(prediction.origins), np.asarray(prediction.probabilities, dtype=np.float64)
    name = f"{architecture}/{series.symbol}/{series.timeframe}"
    if len(origins) == 0:
        raise ValueError(f"{name}: no test origin to judge; the test span is too short")
    if not np.isfinite(chances).all():
        raise ValueError(f"{name}: the forecast holds values that are not finite; the training diverged")
    learnt = true_classes(series, series.origins("train", 1, 1), band)
    frequencies = np.bincount(learnt, minlength=3) / max(1, len(learnt))
    actual = true_classes(series, origins, band)
    known = np.broadcast_to(frequencies, chances.shape)
    losses = {
        "crps": ranked_probability_score(chances, actual),
        "reference_crps": ranked_probability_score(known, actual),
    }
    score = MemberScore(
        symbol=series.symbol, timeframe=series.timeframe, architecture=architecture,
        metrics=_metrics(chances, actual, frequencies, losses), times=times_of(series, origins), losses=losses,
        steps={k: v.mean(keepdims=True) for k, v in losses.items()}, step_us=step_us(series),
    )  # fmt: skip
    score.metrics.update(certainty(score, seed))
    return score


def _metrics(
    chances: Array, actual: NDArray[np.int64], frequencies: Array, losses: dict[str, Array]
) -> dict[str, float]:
    predicted = chances.argmax(axis=1).astype(np.int64)
    found = classification(predicted, actual)
    moved = actual != 1
    metrics = {
        "test_n": float(len(actual)),
        "test_crps": losses["crps"].mean(),
        "test_crps_ratio": losses["crps"].mean() / losses["reference_crps"].mean(),
        "test_accuracy": found["accuracy"],
        "test_majority_accuracy": (actual == frequencies.argmax()).mean(),
        "test_macro_f1": found["macro_f1"],
        "test_directional_accuracy": np.mean((chances[moved, 0] > chances[moved, 2]) == (actual[moved] == 0))
        if moved.any()
        else 0.5,
    }
    for (i, j), count in np.ndenumerate(found["confusion"]):
        metrics[f"test_confusion_{NAMES[i]}_{NAMES[j]}"] = count
    return {name: float(value) for name, value in metrics.items()}
