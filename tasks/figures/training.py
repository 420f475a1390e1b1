"""Losses per epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.figures.parts import figure, line, nothing, number
from tasks.figures.theme import MARKERS, SERIES, Figure


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
