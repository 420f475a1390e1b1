"""The pictures of a member: matplotlib's object API, colours of Okabe and Ito (colour-blind safe).

Other figures are in `tasks.figures`. A picture's bytes depend only on its data and its place.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cpbmodels.data.series import Prediction, Series
from tasks.judging.classes import NAMES as CLASSES
from tasks.judging.scores import BANDS, LEVELS, MEDIAN
from tasks.storage.model_folder import write_picture

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"

CANDLES_SHOWN = 48
"""Candles before the forecast in a fan chart."""

_BANDS = ((*BANDS[90], 0.18), (*BANDS[80], 0.25), (*BANDS[50], 0.35))
"""Lower level, upper level and opacity of the bands of 90, 80 and 50 %."""


def forecast_png(path: Path, series: Series, prediction: Prediction, index: int = -1) -> None:
    """Write the forecast of an origin (by default the newest) as a fan chart with the realised closes."""
    _write(path, forecast_figure(series, prediction, index))


def loss_png(path: Path, history: Sequence[dict[str, Any]]) -> None:
    """Write the training and validation loss per epoch; an empty history gives empty axes."""
    _write(path, loss_figure(history))


def confusion_png(path: Path, metrics: dict[str, float]) -> None:
    """Write a classifier's confusion matrix from its metrics `test_confusion_ACTUAL_PREDICTED`, in shares of actual."""
    _write(path, confusion_figure(metrics))


def _write(path: Path, figure: Figure) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    write_picture(path, buffer.getvalue())


def loss_figure(history: Sequence[dict[str, Any]]) -> Figure:
    """Return training and validation loss per epoch."""
    figure, axes = _axes("epoch", "loss", "Loss per epoch")
    marker = "o" if len(history) == 1 else "None"  # closed form: a single epoch, which gives no line
    for key, name, colour in (("train_loss", "training", BLUE), ("val_loss", "validation", ORANGE)):
        values = [row.get(key, np.nan) for row in history]
        axes.plot(range(1, len(history) + 1), values, color=colour, label=name, marker=marker)
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    axes.legend(loc="upper right", frameon=False, fontsize=7)
    return figure


def forecast_figure(series: Series, prediction: Prediction, index: int = -1) -> Figure:
    """Return the fan chart of an origin: candles, bands of 50, 80 and 90 %, median, realised closes."""
    origin, quantiles = int(prediction.origins[index]), prediction.quantiles[index]
    prices = series.prices[max(0, origin - CANDLES_SHOWN + 1) : origin + 1 + len(quantiles)]
    x = np.arange(len(prices)) - (min(CANDLES_SHOWN, origin + 1) - 1)
    steps = np.arange(len(quantiles) + 1)
    fan = series.prices[origin, 3] * np.exp(np.vstack([np.zeros(LEVELS.size), quantiles]))
    when = (
        f"{np.datetime64(int(series.times[origin]), 'us')}"[:16] + " UTC" if series.times is not None else ""
    )
    title = f"{series.symbol} {series.timeframe} {when}".strip()
    figure, axes = _axes("candles from the last known close", "price", title)
    for lower, upper, opacity in _BANDS:
        axes.fill_between(steps, fan[:, lower], fan[:, upper], color=BLUE, alpha=opacity, linewidth=0)
    opened, high, low, close = prices.T
    colours = np.where(close >= opened, GREEN, RED).tolist()
    faint = np.where(x > 0, 0.45, 1.0)  # after the last known candle
    axes.vlines(x, low, high, colours, linewidth=0.8, alpha=faint)
    axes.vlines(x, opened, close, colours, linewidth=3, alpha=faint)
    axes.plot(steps, fan[:, MEDIAN], color=BLUE, label="median; bands 50, 80, 90 %")
    axes.plot(x, close, ".", color=ORANGE, markersize=3, label="close")
    axes.legend(loc="upper left", frameon=False, fontsize=7)
    return figure


def confusion_figure(metrics: dict[str, float]) -> Figure:
    """Return a classifier's confusion matrix."""
    figure, axes = _axes("predicted", "actual", "Next move on the test span", (4, 3.4))
    counts = np.array([[metrics[f"test_confusion_{a}_{p}"] for p in CLASSES] for a in CLASSES])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (i, j), share in np.ndenumerate(shares):
        text, colour = f"{share:.0%}\n{counts[i, j]:.0f}", "white" if share > 0.5 else "black"
        axes.text(j, i, text, color=colour, ha="center", va="center", fontsize=8)
    axes.set_xticks(range(3), CLASSES)
    axes.set_yticks(range(3), CLASSES)
    return figure


def _axes(x: str, y: str, title: str, size: tuple[float, float] = (6.4, 3.4)) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, dpi=90)
    axes = figure.add_axes((0.13, 0.14, 0.84, 0.76))  # a computed layout takes as long as drawing
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.set_title(title, fontsize=9)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
