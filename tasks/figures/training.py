"""Losses per epoch, and the equity of an illustrative strategy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.figures.parts import figure, level, line, nothing, number, numbers, scatter
from tasks.figures.theme import MARKERS, SERIES, Figure
from tasks.judging.scores import Array

Curve = tuple[NDArray[np.int64], Array]
"""Times [N] (µs UTC, ascending) and the cumulative log-returns [N] at these times."""

MAX_POINTS = 400
"""Maximum number of drawn points of a curve: enough for a screen, and keeps a file with twenty coins small."""


def losses_figure(histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Return training loss (dotted) and validation loss (solid) per epoch, with a colour per model.

    Args:
        histories: name of a model -> its epochs: rows with `train_loss` and `val_loss`, and optionally `epoch`.
    """
    shown = {name: rows for name, rows in histories.items() if rows}
    if not shown:
        return nothing("No epoch has been trained yet.")
    traces = [one for i, (name, rows) in enumerate(shown.items()) for one in _losses(i, name, rows)]
    longest = max(len(rows) for rows in shown.values())
    ends = [
        f"{name} {value:.4g}"
        for name, rows in shown.items()
        if (value := number(rows[-1].get("val_loss"))) is not None
    ]
    found = f"validation loss at the end: {', '.join(ends) or 'none'}"
    alt = f"Losses of {len(shown)} models over {longest} epochs; {found}."
    return figure(
        traces, alt, hovermode="x",
        xaxis={"title": {"text": "epoch"}, "tickformat": "d", "rangemode": "nonnegative"}
        | ({"dtick": 1} if longest < 12 else {}),
        yaxis={"title": {"text": "loss"}, "tickformat": ".4~g"},
    )  # fmt: skip


def _losses(i: int, name: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    epochs = [int(row.get("epoch", k)) for k, row in enumerate(rows, 1)]
    colour, symbol = SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)]
    found = []
    for key, what, dash, filled in (
        ("val_loss", "validation", "solid", ""),
        ("train_loss", "training", "dot", "-open"),
    ):
        found.append(
            line(
                i, f"{name}, {what}", epochs, [number(row.get(key)) for row in rows],
                line={"color": colour, "dash": dash, "width": 2},
                marker={"color": colour, "symbol": symbol + filled, "size": 6},
                mode="lines+markers" if len(rows) < 40 else "lines",
                hovertemplate="%{fullData.name}: %{y:.5g}<extra></extra>",
            )
        )  # fmt: skip
    return found


def equity_figure(strategy: Mapping[str, Curve], hold: Mapping[str, Curve]) -> Figure:
    """Return the returns of trading each series by a model's forecasts (thin), their mean, and the mean of holding.

    An illustration, never used to choose a model.

    Args:
        strategy: name of a series -> its curve after costs.
        hold: name of a series -> its buy-and-hold curve.
    """
    curves = {name: curve for name, curve in strategy.items() if len(curve[0])}
    if not curves:
        return nothing("There is no forecast to trade on.")
    if not any(np.any(values) for _, values in curves.values()):
        return nothing(
            "It never trades at these costs: no median is further from the last close than they are."
        )
    traces = [_curve(name, curve) for name, curve in curves.items()] if len(curves) > 1 else []
    ends = []
    for i, (name, of_kind) in enumerate((("forecasts", curves), ("buy and hold", hold))):
        mean = _mean(list(of_kind.values()))
        shown = _curve(name if len(curves) == 1 else f"{name}, mean of {len(curves)}", mean)
        shown |= {
            "line": {"color": SERIES[i], "dash": ("solid", "dash")[i], "width": 2.5},
            "showlegend": True,
        }
        traces.append(shown)
        ends.append(f"{name} {np.expm1(mean[1][-1]):+.1%}" if len(mean[1]) else f"{name} unknown")
    return figure(
        traces, f"Illustration: returns of {len(curves)} series after costs; at the end {', '.join(ends)} on average.",
        shapes=[level(0)], xaxis={"type": "date", "hoverformat": "%-d %b %Y"},
        yaxis={"title": {"text": "return after costs"}, "tickformat": "+.0%"},
    )  # fmt: skip


def _curve(name: str, curve: Curve) -> dict[str, Any]:
    chosen = np.unique(np.linspace(0, len(curve[0]) - 1, min(len(curve[0]), MAX_POINTS)).astype(int))
    moments = curve[0][chosen].astype("datetime64[us]").astype("datetime64[s]")
    return scatter(
        "lines", [f"{moment}Z" for moment in moments], numbers(np.expm1(curve[1][chosen])), name=name,
        line={"color": "$soft", "width": 0.8}, showlegend=False,
        hovertemplate="%{fullData.name}, %{x|%-d %b %Y}: %{y:+.1%}<extra></extra>",
    )  # fmt: skip


def _mean(curves: Sequence[Curve]) -> Curve:
    """Return the mean over the curves at all their instants; a curve is constant between and after its own instants."""
    if not curves:
        return np.empty(0, dtype=np.int64), np.empty(0)
    times = np.unique(np.concatenate([own for own, _ in curves]))
    padded = [
        np.concatenate([[0.0], values])[np.searchsorted(own, times, side="right")] for own, values in curves
    ]
    return times, np.mean(padded, axis=0)
