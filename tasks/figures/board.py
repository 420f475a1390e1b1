"""Figures of models: CRPS ratios with intervals by architecture and coin, pairs of models, losses per epoch."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.figures.plot import (
    DASHES,
    MARKERS,
    RATIO_TITLE,
    SERIES,
    Figure,
    figure,
    level,
    line,
    nothing,
    number,
    numbers,
    scatter,
)

Row = Mapping[str, Any]

ROW_HEIGHT = 26
"""Height of a row in px, which keeps labels readable for any number of rows."""

MAX_TICKS = 10
"""Of an axis of epochs, which stand at whole numbers."""

UNKNOWN = "unknown"
"""Placeholder for the preset of a run that does not record it."""

_NOTHING = "No model has been judged yet."

_KINDS = (
    ("better than the random walk", "$good", "circle"),
    ("no different", "$unsure", "square-open"),
    ("worse than the random walk", "$bad", "diamond"),
)
"""Findings of an interval: name, colour and marker."""


def model_names(rows: Sequence[Row]) -> list[str]:
    """Return the name of each row's model: its architecture, with the preset if the rows have several presets of it.

    Args:
        rows: `architecture`, and optionally `preset`.

    Returns:
        `gru`, or `gru/default` and `gru/smoke`.
    """
    models = [(str(row["architecture"]), str(row.get("preset") or UNKNOWN)) for row in rows]
    presets = Counter(architecture for architecture, _ in set(models))
    return [f"{name}/{preset}" if presets[name] > 1 else name for name, preset in models]


def board_figure(rows: Sequence[Row]) -> Figure:
    """Return a forest plot of architectures: the ratio with its 95 % interval, in a row per timeframe and model.

    Args:
        rows: `timeframe architecture crps_ratio`, and `crps_ratio_low crps_ratio_high verdict` (None if unknown), as in
            `tasks.tracking.leaderboard`; with `preset` and `flow_run` if rows may differ in these.
    """
    labels = model_names(rows)
    # A label says only what tells rows apart: the timeframe, the preset and the run appear where they differ.
    if len({row.get("timeframe") for row in rows}) > 1:
        labels = [f"{label} {row['timeframe']}" for label, row in zip(labels, rows, strict=True)]
    runs = {(label, row.get("flow_run")) for label, row in zip(labels, rows, strict=True)}
    several = Counter(label for label, _ in runs)
    labels = [
        f"{label}, run {str(row.get('flow_run'))[:8]}" if several[label] > 1 else label
        for label, row in zip(labels, rows, strict=True)
    ]
    return _forest(labels, rows)


def coins_figure(rows: Sequence[Row]) -> Figure:
    """Return a heat map of the ratios of coins (rows) and models (columns), with the figures in the cells.

    Args:
        rows: `symbol architecture crps_ratio`, and optionally `preset`, in any order, a row for each coin and model;
            missing combinations are left blank.
    """
    names = model_names(rows)
    ratio_of = {
        (str(row["symbol"]), name): number(row["crps_ratio"]) for row, name in zip(rows, names, strict=True)
    }
    ratios = [value for value in ratio_of.values() if value is not None]
    if not ratios:
        return nothing(_NOTHING)
    columns = list(dict.fromkeys(names))
    coins = sorted({str(row["symbol"]) for row in rows})
    z = [[ratio_of.get((coin, column)) for column in columns] for coin in coins]
    # The scale ignores the worst tenth, because a single bad model would give all others the same colour.
    off = sorted(abs(value - 1) for value in ratios)
    reach = max(0.02, off[math.ceil(0.9 * len(off)) - 1])
    trace = {
        "type": "heatmap",
        "x": columns,
        "y": coins,
        "z": z,
        "text": [["" if value is None else f"{value:.3f}" for value in row] for row in z],
        "texttemplate": "%{text}",
        "zmin": 1 - reach,
        "zmax": 1 + reach,
        "xgap": 2,
        "ygap": 2,
        "hoverongaps": False,
        "colorscale": [[0, "$heat_low"], [0.5, "$heat_middle"], [1, "$heat_high"]],
        "colorbar": {
            "thickness": 10,
            "tickformat": ".3f",
            "nticks": 6,
            "title": {"text": "CRPS ratio", "side": "right"},
        },
        "hovertemplate": "%{y}, %{x}: %{z:.4f}<extra></extra>",
    }
    better = sum(value < 1 for value in ratios)
    alt = f"CRPS ratio of {len(coins)} coins by {len(columns)} models; {better} of {len(ratios)} are below 1."
    return figure(
        [trace],
        alt,
        height=_height(len(coins)),
        xaxis={"side": "top", "type": "category", "showgrid": False},
        yaxis={"autorange": "reversed", "type": "category", "showgrid": False},
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
    )


def compare_figure(first: str, second: str, rows: Sequence[Row], left_out: int = 0) -> Figure:
    """Return two models side by side: both ratios of each coin, joined by a line.

    Args:
        first, second: names of the models.
        rows: `symbol first second` (the CRPS ratio of each model).
        left_out: number of coins on which both were judged, but on different test spans, so that the ratios are not
            comparable.
    """
    apart = f"{left_out} coins are left out: the two were not judged on the same test span there."
    if not rows:
        return nothing(apart if left_out else "The two models have no coin in common.")
    ordered = sorted(rows, key=lambda row: row["first"])
    coins = [str(row["symbol"]) for row in ordered]
    ratios = {key: numbers(row[key] for row in ordered) for key in ("first", "second")}
    # One trace for all coins, with gaps: a trace per coin would take a legend entry and time each.
    x = [value for pair in zip(*ratios.values(), strict=True) for value in (*pair, None)]
    y = [value for coin in coins for value in (coin, coin, None)]
    joined = scatter("lines", x, y, line={"color": "$line", "width": 3}, hoverinfo="skip", showlegend=False)
    points = [
        _points(name, f"$series_{i}", symbol, ratios[key], coins)
        for i, (key, name, symbol) in enumerate((("first", first, "circle"), ("second", second, "diamond")))
    ]
    lower = sum(row["first"] < row["second"] for row in rows)
    alt = f"{first} against {second} on {len(rows)} coins: {first} has the lower ratio on {lower}."
    layout = _rows_layout(coins)
    if left_out:
        alt = f"{alt} {apart}"
        layout["xaxis"]["title"] = {"text": f"{RATIO_TITLE}<br>{apart}"}
    return figure([joined, *points], alt, **layout)


def _forest(labels: list[str], rows: Sequence[Row]) -> Figure:
    """Return rows of points with intervals, best first."""
    judged = [
        (label, row) for label, row in zip(labels, rows, strict=True) if number(row["crps_ratio"]) is not None
    ]
    if not judged:
        return nothing(_NOTHING)
    ordered = sorted(judged, key=lambda judged_row: judged_row[1]["crps_ratio"])
    traces = []
    for kind, (name, colour, symbol) in enumerate(_KINDS):
        of_kind = [(label, row) for label, row in ordered if _kind(row) == kind]
        if of_kind:
            traces.append(
                _points(
                    name,
                    colour,
                    symbol,
                    numbers(r["crps_ratio"] for _, r in of_kind),
                    [k for k, _ in of_kind],
                )
            )
            traces[-1] |= _error_bars([row for _, row in of_kind], colour)
    best = ordered[0]
    better = sum(_kind(row) == 0 for _, row in ordered)
    alt = (
        f"CRPS ratio of {len(ordered)} models with 95 % intervals; the lowest is {best[0]} with "
        f"{best[1]['crps_ratio']:.4f}; {better} lie entirely below 1."
    )
    return figure(traces, alt, **_rows_layout([label for label, _ in ordered]))


def _kind(row: Row) -> int:
    """Return the index in `_KINDS` by the verdict, which also uses p; `no different` without a verdict."""
    verdict = str(row.get("verdict"))
    return 0 if verdict.startswith("better") else 2 if verdict.startswith("worse") else 1


def _points(name: str, colour: str, symbol: str, x: list[float | None], y: list[str]) -> dict[str, Any]:
    marker = {"color": colour, "symbol": symbol, "size": 10, "line": {"width": 2, "color": colour}}
    hover = "%{y}: %{x:.4f}<extra>%{fullData.name}</extra>"
    return scatter("markers", x, y, name=name, marker=marker, hovertemplate=hover)


def _error_bars(rows: list[Row], colour: str) -> dict[str, Any]:
    """Return the intervals as error bars; a row without an interval has no error bar and no interval in its label."""
    ratios = [row["crps_ratio"] for row in rows]
    lows, highs = (numbers(row.get(f"crps_ratio_{end}") for row in rows) for end in ("low", "high"))
    shown = ["" if None in (a, b) else f" [{a:.4f}, {b:.4f}]" for a, b in zip(lows, highs, strict=True)]
    return {
        "error_x": {
            "type": "data",
            "symmetric": False,
            "color": colour,
            "thickness": 2,
            "width": 4,
            # Ends may lie on the wrong side of the ratio by rounding: an error bar's length is not negative.
            "array": [0 if b is None else max(0.0, b - r) for b, r in zip(highs, ratios, strict=True)],
            "arrayminus": [0 if a is None else max(0.0, r - a) for a, r in zip(lows, ratios, strict=True)],
        },
        "customdata": shown,
        "hovertemplate": "%{y}: %{x:.4f}%{customdata}<extra>%{fullData.name}</extra>",
    }


def _rows_layout(labels: Sequence[str]) -> dict[str, Any]:
    unique = list(dict.fromkeys(labels))
    return {
        "height": _height(len(unique)),
        "shapes": [level(1, "x") | {"line": {"color": "$soft", "width": 1.5, "dash": DASHES[1]}}],
        "xaxis": {"title": {"text": RATIO_TITLE}, "tickformat": ".3f", "tickangle": 0, "nticks": 6},
        "yaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": unique[::-1],
            "showgrid": False,
            "range": [-0.6, len(unique) - 0.4],
        },
    }


def _height(rows: int) -> int:
    return 110 + ROW_HEIGHT * max(rows, 3)


def losses_figure(histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Return training loss (dotted) and validation loss (solid) per epoch, with a colour per model.

    Args:
        histories: name of a model -> its epochs: rows with `train_loss` and `val_loss`, and optionally `epoch`.
    """
    shown = {name: rows for name, rows in histories.items() if rows}
    if not shown:
        return nothing("No epoch has been trained yet.")
    traces = [trace for i, (name, rows) in enumerate(shown.items()) for trace in _losses(i, name, rows)]
    longest = max(len(rows) for rows in shown.values())
    ends = [
        f"{name} {value:.4g}"
        for name, rows in shown.items()
        if (value := number(rows[-1].get("val_loss"))) is not None
    ]
    summary = f"validation loss at the end: {', '.join(ends) or 'none'}"
    alt = f"Losses of {len(shown)} models over {longest} epochs; {summary}."
    return figure(
        traces,
        alt,
        hovermode="x",
        xaxis={
            "title": {"text": "epoch"},
            "tickformat": "d",
            "dtick": -(
                -longest // MAX_TICKS
            ),  # plotly's own are halves for few epochs, and rounded twice the same
            "rangemode": "nonnegative",
        },
        yaxis={"title": {"text": "loss"}, "tickformat": ".4~g"},
    )


def _losses(i: int, name: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    epochs = [int(row.get("epoch", k)) for k, row in enumerate(rows, 1)]
    colour, symbol = SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)]
    traces = []
    for key, what, dash, filled in (
        ("val_loss", "validation", "solid", ""),
        ("train_loss", "training", "dot", "-open"),
    ):
        traces.append(
            line(
                i,
                f"{name}, {what}",
                epochs,
                [number(row.get(key)) for row in rows],
                line={"color": colour, "dash": dash, "width": 2},
                marker={"color": colour, "symbol": symbol + filled, "size": 6},
                mode="lines+markers" if len(rows) < 40 else "lines",
                hovertemplate="%{fullData.name}: %{y:.5g}<extra></extra>",
            )
        )
    return traces
