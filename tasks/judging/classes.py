"""The score of a classifier of the next move (up, flat, down), by the same statistics as that of a distribution.

The ranked probability score is the CRPS of a forecast over ordered classes, so ratio, interval, test, pooling and
verdict apply unchanged. "Flat" is a band in units of EWMA volatility, so the class probabilities of a random walk are
constant over time: the reference forecasts the class frequencies of the training span.
"""

import numpy as np
from numpy.typing import NDArray

from cpbmodels.data.prediction import Prediction
from cpbmodels.data.series import Series
from tasks.judging.member import MemberScore, certainty, check_judgeable, step_us, times_of
from tasks.judging.scores import Array, Rows, classification, realised

NAMES = ("up", "flat", "down")
"""The classes, in the order of a forecast's probabilities."""


def true_classes(series: Series, origins: Rows, band: float) -> NDArray[np.int64]:
    """Return the class [N] of the next close: 0 up, 1 flat (within `band` × σ), 2 down."""
    move = realised(series, origins, 1)[:, 0] / series.volatility[origins]
    return np.where(move > band, 0, np.where(move < -band, 2, 1)).astype(np.int64)


def ranked_probability_score(probabilities: Array, actual: NDArray[np.int64]) -> Array:
    """Return the squared distance [N] between cumulative class probabilities [N, C] and the class that occurred."""
    # The last cumulative probability is always 1, for any forecast and outcome, and is left out of the sum.
    occurred = np.arange(probabilities.shape[1])[None, :] >= actual[:, None]  # cumulative outcome
    return ((np.cumsum(probabilities, axis=1) - occurred)[:, :-1] ** 2).sum(axis=1)


def judge_classes(
    series: Series, prediction: Prediction, *, band: float, architecture: str, seed: int = 0
) -> MemberScore:
    """Score a classifier: ranked probability score (as `test_crps…`), accuracy, macro-F1 and confusion matrix.

    `test_majority_accuracy` is the accuracy of always forecasting the most frequent class of the training span. The
    confusion matrix is in the metrics as `test_confusion_ACTUAL_PREDICTED`, in counts.

    Args:
        series: the forecast series; the reference is fitted on its training span.
        prediction: origins [N] and probabilities [N, 3].
        band: half-width of the class flat, in units of EWMA volatility.
        architecture: name of the model in reports.
        seed: seed of the bootstrap.

    Raises:
        MemberError: no origins (code `no-origin`), or probabilities that are not finite (code `non-finite`).
    """
    origins, chances = prediction.origins, prediction.probabilities
    assert chances is not None
    check_judgeable(f"{architecture}/{series.symbol}/{series.timeframe}", chances)
    # The reference may look at the training span alone: the frequencies of the test span would be knowledge of its
    # outcome.
    training = true_classes(series, series.origins("train", 1, 1), band)
    frequencies = np.bincount(training, minlength=3) / max(1, len(training))
    actual = true_classes(series, origins, band)
    reference = np.broadcast_to(frequencies, chances.shape)
    losses = {
        "crps": ranked_probability_score(chances, actual),
        "reference_crps": ranked_probability_score(reference, actual),
    }
    score = MemberScore(
        symbol=series.symbol,
        timeframe=series.timeframe,
        architecture=architecture,
        metrics=_class_metrics(chances, actual, frequencies, losses),
        times=times_of(series, origins),
        losses=losses,
        steps={k: v.mean(keepdims=True) for k, v in losses.items()},
        step_us=step_us(series),
    )
    score.metrics.update(certainty(score, seed))
    return score


def _class_metrics(
    chances: Array, actual: NDArray[np.int64], frequencies: Array, losses: dict[str, Array]
) -> dict[str, float]:
    predicted = chances.argmax(axis=1).astype(np.int64)
    classified = classification(predicted, actual)
    moved = actual != 1
    metrics = {
        "test_n": float(len(actual)),
        "test_crps": losses["crps"].mean(),
        "test_crps_ratio": losses["crps"].mean() / losses["reference_crps"].mean(),
        "test_accuracy": classified["accuracy"],
        "test_majority_accuracy": (actual == frequencies.argmax()).mean(),
        "test_macro_f1": classified["macro_f1"],
        "test_directional_accuracy": np.mean((chances[moved, 0] > chances[moved, 2]) == (actual[moved] == 0))
        if moved.any()
        else 0.5,
    }
    for (i, j), count in np.ndenumerate(classified["confusion"]):
        metrics[f"test_confusion_{NAMES[i]}_{NAMES[j]}"] = count
    return {name: float(value) for name, value in metrics.items()}
