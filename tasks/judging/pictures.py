"""Pictures of forecasts and scores: matplotlib's object API, Agg backend, colours of Okabe and Ito (colour-blind safe).

A run draws hundreds of `forecast.png` and `loss.png`, so those two are small and simple.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from cpbmodels.series import Series
from tasks.judging.classes import NAMES as CLASSES
from tasks.judging.member import Prediction
from tasks.judging.scores import LEVELS, MEDIAN, Array
from tasks.storage.files import write_bytes

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#777777",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY)
"""Line colours, in the order of use."""

CANDLES_SHOWN = 48
"""Candles before the forecast in a fan chart."""


def png(figure: Figure) -> bytes:
    """Return the figure as PNG."""
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


def forecast_png(path: Path, series: Series, prediction: Prediction, index: int = -1) -> None:
    """Write the forecast of one origin (the newest by default) as a fan chart with the realised closes."""
    write_bytes(path, png(forecast_figure(series, prediction, index)))


def loss_png(path: Path, history: Sequence[dict[str, Any]]) -> None:
    """Write the training and validation loss per epoch; an empty history gives empty axes."""
    write_bytes(path, png(loss_figure(history)))


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
    write_bytes(path, png(figure))


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


def reliability_figure(curves: dict[str, Array]) -> Figure:
    """Return observed share minus stated level (`scores.reliability`), a line per model."""
    figure, axes = _figure(
        "Reliability: stated against observed", "stated level", "observed share − stated level"
    )
    axes.axhline(0, color=GREY, linewidth=1)
    for colour, (name, observed) in zip(_cycle(), curves.items(), strict=False):
        axes.plot(LEVELS, observed - LEVELS, color=colour, marker="o", markersize=3, label=name)
    axes.legend(frameon=False, fontsize=7)
    return figure


def pit_figure(shares: dict[str, Array]) -> Figure:
    """Return the PIT histograms (`scores.pit_histogram`): flat at 5 % is calibrated, a hump too wide a forecast."""
    figure, axes = _figure("PIT: realised values among the quantiles", "between quantiles", "share")
    axes.axhline(0.05, color=GREY, linewidth=1)
    edges = np.arange(21) * 0.05
    for colour, (name, share) in zip(_cycle(), shares.items(), strict=False):
        axes.stairs(share, edges, color=colour, label=name)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=7)
    return figure


def steps_figure(ratios: dict[str, Array]) -> Figure:
    """Return the CRPS ratio to the reference per step ahead, a line per model; below 1 is skill."""
    figure, axes = _figure("Skill per step", "candles ahead", "CRPS / reference's CRPS")
    axes.axhline(1, color=GREY, linewidth=1)
    for colour, (name, values) in zip(_cycle(), ratios.items(), strict=False):
        axes.plot(np.arange(1, len(values) + 1), values, color=colour, marker="o", markersize=3, label=name)
    axes.legend(frameon=False, fontsize=7)
    return figure


def heat_figure(rows: Sequence[str], columns: Sequence[str], ratios: Array) -> Figure:
    """Return the CRPS ratio of coin (rows) × model (columns) as a heat map; blue is skill, NaN is left blank."""
    figure = Figure(figsize=(1.6 + 1.1 * len(columns), 1.2 + 0.24 * len(rows)), dpi=90, layout="constrained")
    axes = figure.subplots()
    reach = max(0.02, float(np.nanquantile(np.abs(ratios - 1), 0.9))) if np.isfinite(ratios).any() else 0.02
    axes.imshow(ratios, cmap="RdBu_r", vmin=1 - reach, vmax=1 + reach, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, fontsize=7, rotation=20)
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    for (i, j), value in np.ndenumerate(ratios):
        if np.isfinite(value):
            colour = "white" if abs(value - 1) > 0.7 * reach else "black"
            axes.text(j, i, f"{value:.3f}", ha="center", va="center", fontsize=6.5, color=colour)
    axes.set_title("CRPS / reference's, coin × model (below 1 is skill)", fontsize=9)
    return figure


def equity_figure(times: NDArray[np.int64], curves: dict[str, Array]) -> Figure:
    """Return cumulative log-returns of strategies over time (`times`: µs UTC)."""
    figure, axes = _figure("Illustration only: equity after costs", "", "cumulative log-return")
    axes.axhline(0, color=GREY, linewidth=1)
    for colour, (name, curve) in zip(_cycle(), curves.items(), strict=False):
        axes.plot(times.astype("datetime64[us]"), curve, color=colour, linewidth=1, label=name)
    axes.legend(frameon=False, fontsize=7)
    axes.xaxis.get_offset_text().set_fontsize(7)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(axes.xaxis.get_major_locator()))
    return figure


def _cycle() -> list[str]:
    return list(COLOURS) * 10


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
