"""The pictures of a member: matplotlib's object API, Agg backend, colours of Okabe and Ito (colour-blind safe).

A run draws hundreds of `forecast.png` and `loss.png`; other figures are in `tasks.figures`. Building and drawing a new
figure takes four times as long, so a process has one figure per kind, with a fixed layout: the common parts are drawn
once and copied, and each picture sets all the variable parts, so that its bytes depend only on its data.
"""

import io
import math
import threading
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from cpbmodels.data.series import Prediction, Series
from tasks.judging.classes import NAMES as CLASSES
from tasks.judging.scores import BANDS, LEVELS, MEDIAN, Array
from tasks.storage.files import write_bytes
from tasks.storage.model_folder import PICTURE_SUBJECT
from tasks.storage.records import member_subject

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"

CANDLES_SHOWN = 48
"""Candles before the forecast in a fan chart."""

_BANDS = ((*BANDS[90], 0.18), (*BANDS[80], 0.25), (*BANDS[50], 0.35))
"""Lower level, upper level and opacity of the bands of 90, 80 and 50 %."""

_MAX_TICKS = 7
_ONE_AT_A_TIME = threading.Lock()
"""Held while a thread sets, draws and encodes a figure, which all threads share."""


class _Template(Figure):
    """A figure whose `moving` artists differ between pictures; all others are drawn once and copied."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), dpi=90)
        self.moving: list[Any] = []
        self._still: Any = None

    def draw(self, renderer: RendererBase) -> None:
        """Draw the picture; `renderer` is the Agg renderer."""
        if self._still is None:
            for artist in self.moving:
                artist.set_animated(True)  # skipped by `Axes.draw`
            super().draw(renderer)
            self._still = renderer.copy_from_bbox(self.bbox)  # type: ignore[attr-defined]
        renderer.restore_region(self._still)  # type: ignore[attr-defined]
        for artist in self.moving:
            artist.draw(renderer)


def forecast_png(path: Path, series: Series, prediction: Prediction, index: int = -1) -> None:
    """Write the forecast of an origin (by default the newest) as a fan chart with the realised closes."""
    with _ONE_AT_A_TIME:
        _write(path, forecast_figure(series, prediction, index))


def loss_png(path: Path, history: Sequence[dict[str, Any]]) -> None:
    """Write the training and validation loss per epoch; an empty history gives empty axes."""
    with _ONE_AT_A_TIME:
        _write(path, loss_figure(history))


def confusion_png(path: Path, metrics: dict[str, float]) -> None:
    """Write a classifier's confusion matrix from its metrics `test_confusion_ACTUAL_PREDICTED`, in shares of actual."""
    with _ONE_AT_A_TIME:
        _write(path, confusion_figure(metrics))


def _write(path: Path, figure: Figure) -> None:
    """Write a figure as PNG with its subject as metadata, so that swapped pictures are detected (`picture_damage`)."""
    canvas, about, buffer = FigureCanvasAgg(figure), PngInfo(), io.BytesIO()
    canvas.draw()
    about.add_text(PICTURE_SUBJECT, member_subject(path))
    # Nothing is transparent; without the alpha channel, level 1 gives the same file size as level 6 with it.
    drawn = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba(), "raw", "RGBA", 0, 1)
    drawn.convert("RGB").save(buffer, "png", pnginfo=about, compress_level=1)
    write_bytes(path, buffer.getbuffer())


def loss_figure(history: Sequence[dict[str, Any]]) -> Figure:
    """Return training and validation loss per epoch; the figure is shared and valid until the next call."""
    figure, axes, lines = _loss_template()
    losses = np.array([[row.get(k, np.nan) for row in history] for k in ("train_loss", "val_loss")], float)
    epochs = np.arange(1.0, len(history) + 1)
    marker = "o" if len(epochs) == 1 else "None"  # closed form: a single epoch, which gives no line
    for line, values in zip(lines, losses, strict=True):
        line.set(data=(epochs, values), marker=marker)
    _set_range(axes.xaxis, epochs, whole=True)
    _set_range(axes.yaxis, losses)
    return figure


@cache
def _loss_template() -> tuple[Figure, Axes, list[Any]]:
    figure, axes, title = _template("epoch", "loss")
    title.set_text("Loss per epoch")
    lines = [axes.plot([], [], color=c, label=n)[0] for c, n in ((BLUE, "training"), (ORANGE, "validation"))]
    _add_legend(figure, lines)
    _move_ticks(figure, axes.xaxis)
    figure.moving += lines
    return figure, axes, lines


def forecast_figure(series: Series, prediction: Prediction, index: int = -1) -> Figure:
    """Return the fan chart of an origin: candles, bands of 50, 80 and 90 %, median, realised closes.

    The figure is shared and valid until the next call.
    """
    origin, quantiles = int(prediction.origins[index]), prediction.quantiles[index]
    prices = series.prices[max(0, origin - CANDLES_SHOWN + 1) : origin + 1 + len(quantiles)]
    x = np.arange(float(len(prices))) - (min(CANDLES_SHOWN, origin + 1) - 1)
    figure, axes, title, bands, candles, median, closes = _forecast_template(x[0] - 1, x[-1] + 1)
    steps = np.arange(len(quantiles) + 1.0)
    fan = series.prices[origin, 3] * np.exp(np.vstack([np.zeros(LEVELS.size), quantiles]))
    title.set_text(f"{series.symbol} {series.timeframe} {_when(series, origin)}".strip())
    for band, (low, high, _) in zip(bands, _BANDS, strict=True):
        outline = np.concatenate([fan[:, low], fan[::-1, high]])
        band.set_verts([np.column_stack([np.concatenate([steps, steps[::-1]]), outline])])
    _set_candles(candles, x, prices)
    median.set_data(steps, fan[:, MEDIAN])
    closes.set_data(x, prices[:, 3])
    _set_range(axes.yaxis, np.concatenate([fan[:, 0], fan[:, -1], prices.ravel()]))
    return figure


@lru_cache(maxsize=4)  # shared by all origins with enough candles before them
def _forecast_template(first: float, last: float) -> tuple[Any, ...]:
    figure, axes, title = _template("candles from the last known close", "price")
    axes.set_xlim(first, last)
    bands = [axes.add_collection(PolyCollection([], color=BLUE, alpha=a, linewidth=0)) for *_, a in _BANDS]
    candles = [axes.add_collection(LineCollection([], linewidths=width)) for width in (0.8, 3.0)]
    (median,) = axes.plot([], [], color=BLUE, label="median; bands 50, 80, 90 %")
    (closes,) = axes.plot([], [], ".", color=ORANGE, markersize=3, label="close")
    _add_legend(figure, [median, closes])
    figure.moving += [title, *bands, *candles, median, closes]
    return figure, axes, title, bands, candles, median, closes


def _set_candles(lines: Sequence[LineCollection], x: Array, prices: Array) -> None:
    """Set wicks and bodies to candles [rows, 4]; candles after x = 0, the last known candle, are faint."""
    opened, high, low, close = prices.T
    colours = np.where((close >= opened)[:, None], to_rgba(GREEN), to_rgba(RED))
    colours[:, 3] = np.where(x > 0, 0.45, 1.0)
    for collection, bottom, top in zip(lines, (low, opened), (high, close), strict=True):
        ends = np.column_stack([x, bottom]), np.column_stack([x, top])
        collection.set_segments(list(np.stack(ends, axis=1)))
        collection.set_color(colours)  # type: ignore[arg-type]  # an RGBA array, missing in the stubs


def confusion_figure(metrics: dict[str, float]) -> Figure:
    """Return a classifier's confusion matrix; the figure is shared and valid until the next call."""
    figure, mesh, texts = _confusion_template()
    counts = np.array([[metrics[f"test_confusion_{a}_{p}"] for p in CLASSES] for a in CLASSES])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    mesh.set_array(shares)
    for text, share, count in zip(texts, shares.ravel(), counts.ravel(), strict=True):
        text.set(text=f"{share:.0%}\n{count:.0f}", color="white" if share > 0.5 else "black")
    return figure


@cache
def _confusion_template() -> tuple[Any, ...]:
    figure = _Template(4, 3.4)
    axes = figure.add_axes((0.2, 0.15, 0.7, 0.78))
    mesh = axes.pcolormesh(range(3), range(3), np.zeros((3, 3)), cmap="Blues", vmin=0, vmax=1)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    texts = [axes.text(j, i, "", ha="center", va="center", fontsize=8) for i, j in np.ndindex(3, 3)]
    axes.set_xticks(range(3), CLASSES)
    axes.set_yticks(range(3), CLASSES)
    axes.set(xlabel="predicted", ylabel="actual")
    axes.set_title("Next move on the test span", fontsize=9)
    figure.moving += [mesh, *axes.spines.values(), *texts]
    return figure, mesh, texts


def _template(x: str, y: str) -> tuple[_Template, Axes, Any]:
    """Return a figure with empty axes and movable y ticks, and its title."""
    figure = _Template(6.4, 3.4)
    axes = figure.add_axes((0.12, 0.14, 0.86, 0.76))
    title = figure.text(0.55, 0.935, "", fontsize=9, ha="center")
    figure.text(0.12, 0.04, x, fontsize=8, va="center")
    figure.text(0.02, 0.935, y, fontsize=8)  # above the ticks, whatever their width
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_autoscale_on(False)
    _move_ticks(figure, axes.yaxis)
    return figure, axes, title


def _move_ticks(figure: _Template, axis: Axis) -> None:
    """Let the ticks of an axis differ between pictures, without laying out the axis, which is slower than drawing."""
    axis.set_animated(True)
    figure.moving += axis.get_major_ticks(_MAX_TICKS + 2)


def _add_legend(figure: Figure, lines: Sequence[Any]) -> None:
    """Add the legend below the axes, where it cannot cover data."""
    figure.legend(
        handles=lines, loc="center right", bbox_to_anchor=(0.985, 0.04), ncols=2, frameon=False, fontsize=7
    )


def _set_range(axis: Axis, values: Array, *, whole: bool = False) -> None:
    """Set limits and ticks of an axis to show all finite values, with a margin of 5 %; `whole`: ticks at integers."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    size = max(-low, high) or 1.0
    margin = (high - low) * 0.05 if high - low > 1e-9 * size else 1.0 if whole else 0.05 * size
    low, high = low - margin, high + margin
    axis.set_view_interval(low, high, ignore=True)
    locator = MaxNLocator(_MAX_TICKS, steps=[1, 2, 5, 10], integer=whole)
    places = np.asarray(locator.tick_values(low, high))
    step = places[1] - places[0]
    shown = places[(places >= low) & (places <= high)]
    for i, tick in enumerate(axis.get_major_ticks(_MAX_TICKS + 2)):
        tick.set_visible(i < len(shown))
        if i < len(shown):
            tick.update_position(shown[i])
            tick.label1.set_text(_label(shown[i], step, max(-low, high)))


def _label(place: float, step: float, largest: float) -> str:
    """Return a tick as text with the digits needed for the tick spacing; tiny and huge values as powers of ten."""
    digits, size = -math.floor(math.log10(step) + 1e-9), math.floor(math.log10(largest))
    text = f"{place:.{max(0, digits)}f}" if -4 <= size < 7 else f"{place:.{max(0, size + digits)}e}"
    return text.replace("-", "\N{MINUS SIGN}")


def _when(series: Series, row: int) -> str:
    return str(np.datetime64(int(series.times[row]), "us"))[:16] + " UTC" if series.times is not None else ""
