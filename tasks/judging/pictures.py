"""The pictures of a member, drawn by Pillow: a run has hundreds, and each figure of matplotlib takes 60 ms more.

Colours are those of Okabe and Ito (colour-blind safe). Other figures are in `tasks.figures`. A picture's bytes depend
only on its data.
"""

import io
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image, ImageDraw, ImageFont

from cpbmodels.data.prediction import Prediction
from cpbmodels.data.series import Series
from tasks.judging.scores import BAND_LEVELS, LEVELS, MEDIAN, Array
from tasks.storage.files import write_bytes

BLUE, ORANGE, GREEN, RED = (0, 114, 178), (230, 159, 0), (0, 158, 115), (213, 94, 0)
_GREY = (110, 110, 110)

CANDLES_SHOWN = 48
"""Candles before the forecast in a fan chart."""

_WIDTH, _HEIGHT = 1152, 612
"""Everything is drawn twice as large as it is shown, and halved at the end, for smooth edges."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 140, 1132, 60, 536
"""Edges of the axes in the picture."""


def forecast_png(path: Path, series: Series, prediction: Prediction) -> None:
    """Write the fan chart of the newest origin: candles, bands of 50, 80 and 90 %, median, closes."""
    origin, quantiles = int(prediction.origins[-1]), prediction.quantiles[-1]
    prices = series.prices[max(0, origin - CANDLES_SHOWN + 1) : origin + 1 + len(quantiles)]
    x = np.arange(len(prices)) - (min(CANDLES_SHOWN, origin + 1) - 1)
    steps = np.arange(len(quantiles) + 1)
    fan = series.prices[origin, 3] * np.exp(np.vstack([np.zeros(LEVELS.size), quantiles]))
    when = (
        f"{np.datetime64(int(series.times[origin]), 'us')}"[:16] + " UTC" if series.times is not None else ""
    )
    title = f"{series.symbol} {series.timeframe} {when}".strip()
    chart = _Chart(
        title, "candles from the last known close", "price", x, np.append(prices.ravel(), fan.ravel())
    )
    for band, opacity in ((90, 46), (80, 64), (50, 90)):
        low, high = BAND_LEVELS[band]
        outline = chart.points(np.append(steps, steps[::-1]), np.append(fan[:, low], fan[::-1, high]))
        chart.draw.polygon(outline, fill=(*BLUE, opacity))
    for place, (opened, high, low, close) in zip(x, prices, strict=True):
        # faint after the last known candle
        colour = (*(GREEN if close >= opened else RED), 115 if place > 0 else 255)
        chart.line([place, place], [low, high], colour, 2)
        chart.line([place, place], [opened, close], colour, 8)
    chart.line(steps, fan[:, MEDIAN], BLUE, 3)
    for left, top in chart.points(x, prices[:, 3]):
        chart.draw.ellipse((left - 2, top - 2, left + 2, top + 2), fill=ORANGE)
    chart.legend({"median; bands 50, 80, 90 %": BLUE, "close": ORANGE})
    chart.write(path)


def loss_png(path: Path, history: Sequence[dict[str, Any]]) -> None:
    """Write the training and validation loss per epoch; an empty history gives empty axes."""
    keys = {"train_loss": BLUE, "val_loss": ORANGE}
    losses = np.array([[row.get(key, np.nan) for row in history] for key in keys], dtype=float)
    epochs = np.arange(1, len(history) + 1)
    chart = _Chart("Loss per epoch", "epoch", "loss", epochs, losses)
    for values, colour in zip(losses, keys.values(), strict=True):
        chart.line(epochs, values, colour, 3)
        if len(history) == 1 and np.isfinite(values[0]):  # closed form: a single epoch, which gives no line
            ((left, top),) = chart.points(epochs, values)
            chart.draw.ellipse((left - 6, top - 6, left + 6, top + 6), fill=colour)
    chart.legend({"training": BLUE, "validation": ORANGE})
    chart.write(path)


class _Chart:
    """A picture with a title and axes over the finite values of `x` and `y`; without values the axes have no ticks."""

    def __init__(self, title: str, x_label: str, y_label: str, x: ArrayLike, y: ArrayLike) -> None:
        self._picture = Image.new("RGB", (_WIDTH, _HEIGHT), "white")
        self.draw = ImageDraw.Draw(self._picture, "RGBA")
        self._x, self._y = _range(x), _range(y)
        middle = (_LEFT + _RIGHT) / 2
        self.text((middle, 28), title, "mm", size=24)
        self.text((middle, _HEIGHT - 24), x_label, "mm")
        self.text((16, 28), y_label, "lm")
        self.draw.line([(_LEFT, _TOP), (_LEFT, _BOTTOM), (_RIGHT, _BOTTOM)], _GREY, 2)
        for tick in _ticks(x, self._x, digits=0):
            ((left, _),) = self.points([tick], [self._y[0]])
            self.draw.line([(left, _BOTTOM), (left, _BOTTOM + 6)], _GREY, 2)
            self.text((left, _BOTTOM + 10), f"{tick:.6g}", "mt", size=18)
        for tick in _ticks(y, self._y):
            ((_, top),) = self.points([self._x[0]], [tick])
            self.draw.line([(_LEFT - 6, top), (_LEFT, top)], _GREY, 2)
            self.text((_LEFT - 10, top), f"{tick:,.6g}", "rm", size=18)

    def points(self, x: ArrayLike, y: ArrayLike) -> list[tuple[float, float]]:
        """Return the places of values in the picture."""
        left = _LEFT + (np.asarray(x) - self._x[0]) / (self._x[1] - self._x[0]) * (_RIGHT - _LEFT)
        top = _BOTTOM - (np.asarray(y) - self._y[0]) / (self._y[1] - self._y[0]) * (_BOTTOM - _TOP)
        return list(zip(left.tolist(), top.tolist(), strict=True))

    def line(self, x: ArrayLike, y: ArrayLike, colour: tuple[int, ...], width: int) -> None:
        """Draw a line through the finite values; a missing value breaks it."""
        for start, end in pairwise(self.points(x, y)):
            if np.isfinite([*start, *end]).all():
                self.draw.line([start, end], colour, width)

    def legend(self, colours: dict[str, tuple[int, int, int]]) -> None:
        """Name the colours of lines, at the top left."""
        left = _LEFT + 20
        for row, (name, colour) in enumerate(colours.items()):
            top = _TOP + 16 + 26 * row
            self.draw.line([(left, top), (left + 32, top)], colour, 4)
            self.text((left + 44, top), name, "lm", size=18)

    def text(self, place: tuple[float, float], words: str, anchor: str, size: int = 20) -> None:
        """Write at a place of the picture; `anchor` as in Pillow."""
        self.draw.text(place, words, "black", _font(size), anchor)

    def write(self, path: Path) -> None:
        """Write the picture as PNG."""
        buffer = io.BytesIO()
        self._picture.reduce(2).save(buffer, "png", compress_level=1)
        write_bytes(path, buffer.getbuffer())


_font = cache(ImageFont.load_default)


def _range(values: ArrayLike) -> tuple[float, float]:
    """Return the ends of an axis: those of the finite values, and a twentieth more on both sides."""
    finite = np.asarray(values, dtype=float)[np.isfinite(values)]
    if not finite.size:
        return 0.0, 1.0
    # Two equal ends would divide by 0: then a twentieth of the value, and for 0 alone half a unit.
    low, high = float(finite.min()), float(finite.max())
    margin = (high - low) / 20 or abs(low) / 20 or 0.5
    return low - margin, high + margin


def _ticks(values: ArrayLike, ends: tuple[float, float], digits: int | None = None) -> Array:
    """Return five places between the ends of an axis, rounded to `digits`; none for an axis without finite values."""
    places = np.linspace(*ends, 7)[1:-1] if np.isfinite(values).any() else np.empty(0)
    return places if digits is None else np.unique(places.round(digits))
