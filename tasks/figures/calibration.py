"""Calibration of the forecasts and skill by step: reliability, PIT, CRPS ratio per step."""

from collections.abc import Mapping

import numpy as np

from tasks.figures.parts import RATIO_TITLE, figure, level, line, nothing, numbers
from tasks.figures.theme import SERIES, Figure
from tasks.judging.scores import LEVELS, Array

_NOTHING = "No model has been judged yet."


def reliability_figure(curves: Mapping[str, Array]) -> Figure:
    """Return observed share minus stated level, a line per model; a calibrated model is at 0.

    Args:
        curves: name -> observed shares [19] at the levels of a forecast (`scores.reliability`).
    """
    if not curves:
        return nothing(_NOTHING)
    hover = "%{fullData.name}: %{y:+.1%} at the %{x:.0%} quantile<extra></extra>"
    stated = numbers(LEVELS)
    traces = [
        line(i, name, stated, numbers(observed - LEVELS), hovertemplate=hover)
        for i, (name, observed) in enumerate(curves.items())
    ]
    off = ", ".join(f"{name} {np.abs(observed - LEVELS).max():.1%}" for name, observed in curves.items())
    return figure(
        traces, f"Largest distance of the observed share of closes from the stated level: {off}.", shapes=[level(0)],
        xaxis={"title": {"text": "stated level"}, "tickformat": ".0%"},
        yaxis={"title": {"text": "observed − stated"}, "tickformat": "+.1%"},
    )  # fmt: skip


def pit_figure(shares: Mapping[str, Array]) -> Figure:
    """Return PIT histograms, a step line per model: flat at 5 % is calibrated, ∩-shaped too wide, ∪-shaped too narrow.

    Args:
        shares: name -> share of closes [20] between neighbouring quantiles (`scores.pit_histogram`).
    """
    if not shares:
        return nothing(_NOTHING)
    edges = numbers(np.arange(21) * 0.05)
    hover = "%{fullData.name}: %{y:.1%} of the closes from the %{x:.0%} quantile to the next<extra></extra>"
    traces = []
    for i, (name, share) in enumerate(shares.items()):
        values = numbers(share)
        steps = line(i, name, edges, [*values, values[-1]], mode="lines", hovertemplate=hover)
        traces.append(steps | {"line": {**steps["line"], "shape": "hv", "color": SERIES[i % len(SERIES)]}})
    off = ", ".join(f"{name} {np.abs(share - 0.05).max():.1%}" for name, share in shares.items())
    return figure(
        traces, f"Largest distance of a bin of the PIT histogram from 5 %: {off}.", shapes=[level(0.05)],
        xaxis={"title": {"text": "place among the quantiles"}, "tickformat": ".0%", "range": [0, 1]},
        yaxis={"title": {"text": "share of closes"}, "tickformat": ".0%", "rangemode": "tozero"},
    )  # fmt: skip


def steps_figure(ratios: Mapping[str, Array]) -> Figure:
    """Return the CRPS ratio per step ahead, a line per model; below 1 is skill.

    Args:
        ratios: name -> CRPS divided by the random walk's [H].
    """
    if not ratios:
        return nothing(_NOTHING)
    traces = [
        line(
            i, name, list(range(1, len(values) + 1)), numbers(values),
            hovertemplate="%{fullData.name}, candle %{x}: %{y:.4f}<extra></extra>",
        )
        for i, (name, values) in enumerate(ratios.items())
    ]  # fmt: skip
    ends = ", ".join(
        f"{name} {values[0]:.3f} to {values[-1]:.3f}" for name, values in ratios.items() if len(values)
    )
    return figure(
        traces, f"CRPS ratio from the first to the last candle ahead: {ends}.", shapes=[level(1)],
        xaxis={"title": {"text": "candles ahead"}, "tickformat": "d"},
        yaxis={"title": {"text": RATIO_TITLE}, "tickformat": ".3f"},
    )  # fmt: skip
