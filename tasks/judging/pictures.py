"""The pictures of a member: matplotlib's object API, Agg backend, colours of Okabe and Ito (colour-blind safe).

A run draws hundreds of `forecast.png` and `loss.png`, so they are small and simple; `tasks.figures` has the others.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cpbmodels.series import Series
from tasks.judging.classes import NAMES as CLASSES
from tasks.judging.member import Prediction
from tasks.judging.scores import LEVELS, MEDIAN, Array
from tasks.storage.files import write_bytes
from tasks.storage.model_folder import PICTURE_SUBJECT
from tasks.storage.records import member_subject

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"

CANDLES_SHOWN = 48
"""Candles before the forecast in a fan chart."""


def _write(path: Path, figure: Figure) -> None:
    """Write a figure as PNG, with what it is about, so that exchanged pictures are found (`picture_damage`)."""
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer, metadata={PICTURE_SUBJECT: member_subject(path)})
    write_bytes(path, buffer.getbuffer())


def forecast_png(path: Path, series: Series, prediction: Prediction, index: int = -1) -> None:
    """Write the forecast of one origin (the newest by default) as a fan chart with the realised closes."""
    _write(path, forecast_figure(series, prediction, index))


def loss_png(path: Path, history: Sequence[dict[str, Any]]) -> None:
    """Write the training and validation loss per epoch; an empty history gives empty axes."""
    _write(path, loss_figure(history))


def confusion_png(path: Path, metrics: dict[str, float]) -> None:
    """Write a classifier's confusion matrix from its metrics `test_confusion_ACTUAL_PREDICTED`, in shares of actual."""
    counts = np.array([[metrics[f"test_confusion_{a}_{p}"] for p in CLASSES] for a in CLASSES])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = Figure(figsize=(4, 3.4), dpi=90, layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (i, j), share in np.ndenumerate(shares):
        colour = "white" if share > 0.5 else "black"
        axes.text(
            j, i, f"{share:.0%}\n{counts[i, j]:.0f}", ha="center", va="center", color=colour, fontsize=8
        )
    axes.set_xticks(range(3), CLASSES)
    axes.set_yticks(range(3), CLASSES)
    axes.set(xlabel="predicted", ylabel="actual")
    axes.set_title("Next move on the test span", fontsize=9)
    _write(path, figure)


def loss_figure(history: Sequence[dict[str, Any]]) -> Figure:
    """Return training and validation loss per epoch."""
    figure, axes = _figure("Loss per epoch", "epoch", "loss")
    for key, colour, name in (("train_loss", BLUE, "training"), ("val_loss", ORANGE, "validation")):
        values = [row.get(key, np.nan) for row in history]
        dot = "o" if len(values) == 1 else None  # closed form: one epoch, and one point makes no line
        axes.plot(range(1, len(values) + 1), values, color=colour, label=name, marker=dot)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(history) == 1:
        axes.set_xlim(0, 2)
    axes.legend(frameon=False, fontsize=7)
    return figure


def forecast_figure(series: Series, prediction: Prediction, index: int = -1) -> Figure:
    """Return the fan of one origin: candles, bands of 50, 80 and 90 %, median, realised closes."""
    origin, quantiles = int(prediction.origins[index]), np.asarray(prediction.quantiles[index], dtype=float)
    prices = series.prices[max(0, origin - CANDLES_SHOWN + 1) : origin + 1 + len(quantiles)]
    known = min(CANDLES_SHOWN, origin + 1)
    title = f"{series.symbol} {series.timeframe} {_when(series, origin)}".strip()
    figure, axes = _figure(title, "candles from the last known close", "price")
    _candles(axes, prices, known)
    steps = np.arange(len(quantiles) + 1)
    fan = series.prices[origin, 3] * np.exp(np.vstack([np.zeros(LEVELS.size), quantiles]))
    for (low, high), alpha in zip(((0, 18), (1, 17), (4, 14)), (0.18, 0.25, 0.35), strict=True):
        axes.fill_between(steps, fan[:, low], fan[:, high], color=BLUE, alpha=alpha, linewidth=0)
    axes.plot(steps, fan[:, MEDIAN], color=BLUE, label="median; bands 50, 80, 90 %")
    axes.plot(
        np.arange(len(prices)) - known + 1, prices[:, 3], ".", color=ORANGE, markersize=3, label="close"
    )
    axes.legend(loc="upper left", fontsize=7, framealpha=0.85, edgecolor="none")
    return figure


def _figure(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, 3.4), dpi=90)
    axes = figure.add_axes((0.12, 0.14, 0.86, 0.76))
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(labelsize=7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _candles(axes: Axes, prices: Array, known: int) -> None:
    """Draw candles [rows, 4] with row `known - 1`, the last one known, at x = 0; later ones are faint."""
    x = np.arange(len(prices)) - known + 1.0
    opened, high, low, close = prices.T
    colours = [GREEN if up else RED for up in close >= opened]
    faint = np.where(x > 0, 0.45, 1.0)
    for bottom, top, thickness in ((low, high, 0.8), (opened, close, 3.0)):
        segments = np.stack([np.column_stack([x, bottom]), np.column_stack([x, top])], axis=1)
        axes.add_collection(LineCollection(list(segments), colors=colours, linewidths=thickness, alpha=faint))
    axes.set_xlim(x[0] - 1, x[-1] + 1)


def _when(series: Series, row: int) -> str:
    return str(np.datetime64(int(series.times[row]), "us"))[:16] + " UTC" if series.times is not None else ""
