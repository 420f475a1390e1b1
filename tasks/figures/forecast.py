"""Fan chart of a forecast over candles with volume, the realised closes, and earlier forecasts."""

from datetime import datetime, timedelta
from typing import Any

import polars as pl

from tasks.figures.plot import Figure, figure, nothing, price_format, price_text, prices, scatter, time, times

BANDS = ((90, "q05", "q95"), (80, "q10", "q90"), (50, "q25", "q75"))
"""Central bands in per cent with their lower and upper quantile, widest first."""

SHOWN = 120
"""Candles in the initial view without a forecast; panning to the left shows the others."""

FORECAST_SHARE = 0.25
"""Share of the initial view's width that the forecast takes."""

_HOVER = (
    "<b>%{x|%-d %b %Y %H:%M} UTC</b><br>median %{y}<br>50 %: %{customdata[2]} to %{customdata[3]}"
    "<br>80 %: %{customdata[1]} to %{customdata[4]}<br>90 %: %{customdata[0]} to %{customdata[5]}<extra></extra>"
)


def forecast_figure(
    candles: pl.DataFrame,
    forecast: pl.DataFrame | None,
    earlier: pl.DataFrame | None = None,
) -> Figure:
    """Return candles and volume with a forecast's bands of 50, 80 and 90 %, its median and the realised closes.

    Candles are drawn at their close, like the forecast's step for the same candle.

    Args:
        candles: `open_time` (UTC), `open high low close volume`, oldest first; including candles after the forecast's
            issue, whose closes are drawn at the forecast's times.
        forecast: rows of a forecast: `issued_at step target_time q05 … q95 last_close`; None or empty for none.
        earlier: rows of earlier forecasts, like `forecast`; drawn as bands of 80 % and medians.
    """
    shown = None if forecast is None or forecast.is_empty() else forecast.sort("step")
    if candles.is_empty() and shown is None:
        return nothing("No candles are stored for this series.")
    closes = candles.sort("open_time").with_columns(
        close_time=pl.col("open_time") + _candle_length(candles, shown)
    )
    traces = [_candles(closes), _volume(closes)]
    if earlier is not None and not earlier.is_empty():
        traces += _earlier(earlier)
    shapes: list[dict[str, Any]] = []
    if shown is not None:
        traces += [*_bands(shown), _median(shown), *_came_true(shown, closes)]
        shapes.append(_issue_line(shown))
    return figure(traces, _alt(closes, shown), shapes=shapes, **_layout(closes, shown))


def _candle_length(candles: pl.DataFrame, forecast: pl.DataFrame | None) -> timedelta:
    if forecast is not None:
        step, target, issued = forecast.select("step", "target_time", "issued_at").row(0)
        length: timedelta = (target - issued) / step
        return length
    # The shortest, as holes are longer.
    steps = candles["open_time"].sort().diff().drop_nulls()
    shortest = steps.min()
    return shortest if isinstance(shortest, timedelta) else timedelta()


def _candles(frame: pl.DataFrame) -> dict[str, Any]:
    return {
        "type": "candlestick",
        "zorder": 1,  # above the bands, below the lines
        "name": "candles",
        "x": times(frame["close_time"]),
        **{name: prices(frame[name]) for name in ("open", "high", "low", "close")},
        "increasing": {"line": {"color": "$up", "width": 1.2}, "fillcolor": "$up_fill"},  # hollow
        "decreasing": {"line": {"color": "$down", "width": 1.2}, "fillcolor": "$down_fill"},
        "hovertemplate": "<b>%{x|%-d %b %Y %H:%M} UTC</b><br>open %{open}<br>high %{high}<br>low %{low}"
        "<br>close %{close}<extra></extra>",
    }


def _volume(frame: pl.DataFrame) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": "volume",
        "x": times(frame["close_time"]),
        "y": prices(frame["volume"]),
        "yaxis": "y2",
        "marker": {"color": "$volume", "line": {"width": 0}},
        "hovertemplate": "volume %{y:,.4s}<extra></extra>",
        "showlegend": False,
    }


def _bands(forecast: pl.DataFrame) -> list[dict[str, Any]]:
    return [
        scatter(
            "lines",
            *_outline(forecast, low, high),
            name=f"{band} %",
            fill="toself",
            fillcolor=f"$band_{band}",
            line={"width": 0, "color": "$model"},
            hoverinfo="skip",
        )
        for band, low, high in BANDS
    ]


def _outline(forecast: pl.DataFrame, low: str, high: str) -> tuple[list[Any], list[Any]]:
    """Return x and y of a band's outline: from the last close along its upper edge and back along its lower edge."""
    there = times(forecast["target_time"])
    origin, last = time(forecast["issued_at"][0]), prices(forecast["last_close"])[0]
    upper, lower = prices(forecast[high]), prices(forecast[low])
    return [origin, *there, *reversed(there), origin], [last, *upper, *reversed(lower), last]


def _median(forecast: pl.DataFrame) -> dict[str, Any]:
    names = ("q05", "q10", "q25", "q75", "q90", "q95")
    rows = [[price_text(value) for value in row] for row in forecast.select(names).iter_rows()]
    return scatter(
        "lines+markers",
        *_from_the_origin(forecast, forecast["target_time"], forecast["q50"]),
        name="median",
        zorder=2,
        customdata=[[price_text(prices(forecast["last_close"])[0])] * len(names), *rows],
        line={"color": "$model", "width": 2},
        marker={"color": "$model", "size": 4},
        hovertemplate=_HOVER,
    )


def _from_the_origin(
    forecast: pl.DataFrame, ends: pl.Series, closes: pl.Series
) -> tuple[list[Any], list[Any]]:
    """Return x and y of closes at these times, after the last close before the forecast."""
    x = [time(forecast["issued_at"][0]), *times(ends)]
    return x, [*prices(forecast["last_close"])[:1], *prices(closes)]


def _came_true(forecast: pl.DataFrame, candles: pl.DataFrame) -> list[dict[str, Any]]:
    closes = candles.filter(pl.col("close_time").is_in(forecast["target_time"].to_list()))
    if closes.is_empty():
        return []
    return [
        scatter(
            "lines+markers",
            *_from_the_origin(forecast, closes["close_time"], closes["close"]),
            name="actual close",
            zorder=2,
            line={"color": "$real", "width": 2, "dash": "dot"},
            marker={"color": "$real", "size": 6, "symbol": "diamond"},
            hovertemplate="<b>%{x|%-d %b %Y %H:%M} UTC</b><br>actual close: %{y}<extra></extra>",
        )
    ]


def _earlier(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the bands and medians of earlier forecasts, a trace per kind with gaps between the forecasts."""
    # Two traces for all of them: dozens of traces make panning slow.
    band: tuple[list[Any], list[Any]] = ([], [])
    middle: tuple[list[Any], list[Any]] = ([], [])
    for issued in rows.sort("issued_at", "step").partition_by("issued_at", maintain_order=True):
        median = _from_the_origin(issued, issued["target_time"], issued["q50"])
        for into, part in ((band, _outline(issued, "q10", "q90")), (middle, median)):
            for axis, values in zip(into, part, strict=True):
                axis += [*values, None]
    common: dict[str, Any] = {"hoverinfo": "skip", "legendgroup": "earlier"}
    return [
        scatter(
            "lines",
            *band,
            **common,
            name="earlier forecasts (80 %)",
            fill="toself",
            fillcolor="$earlier_band",
            line={"width": 0.5, "color": "$earlier"},
        ),
        scatter(
            "lines",
            *middle,
            **common,
            name="earlier medians",
            showlegend=False,
            line={"width": 1.5, "color": "$earlier", "dash": "dash"},
        ),
    ]


def _issue_line(forecast: pl.DataFrame) -> dict[str, Any]:
    issued = time(forecast["issued_at"][0])
    return {
        "type": "line",
        "x0": issued,
        "x1": issued,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": {"color": "$soft", "width": 1, "dash": "dot"},
        "label": {
            "text": "issued",
            "textposition": "end",
            "xanchor": "right",
            "yanchor": "top",
            "textangle": 0,
            "font": {"size": 11, "color": "$soft"},
        },
    }


def _layout(candles: pl.DataFrame, forecast: pl.DataFrame | None) -> dict[str, Any]:
    last = (
        candles["close"][-1] if len(candles) else forecast["last_close"][0] if forecast is not None else None
    )
    ends, lows, highs = _view(candles, forecast)
    prices_axis = {
        "side": "right",
        "tickformat": price_format(last),
        "hoverformat": price_format(last),
        "showspikes": True,
        "spikemode": "across",
        "spikesnap": "cursor",
        "range": _padded(lows, highs),
        "domain": [0.2, 1],
    }
    times_axis = {
        "type": "date",
        "rangeslider": {"visible": False},
        "showspikes": True,
        "spikemode": "across",
        "spikesnap": "cursor",
        "hoverformat": "%-d %b %Y %H:%M UTC",
        "range": [time(end) for end in ends],
        "anchor": "y2",
    }
    return {
        "hovermode": "x",
        "dragmode": "pan",
        "margin": {"l": 8, "r": 8, "t": 40, "b": 8},
        "xaxis": times_axis,
        "yaxis": prices_axis,
        "yaxis2": {
            "domain": [0, 0.16],
            "side": "right",
            "tickformat": ".2s",
            "nticks": 3,
            "fixedrange": True,
            "showgrid": False,
            "rangemode": "tozero",
            "title": {"text": "volume"},
        },
    }


def _view(
    candles: pl.DataFrame, forecast: pl.DataFrame | None
) -> tuple[list[datetime], list[float], list[float]]:
    """Return both ends of the initial view, and the lows and highs in it.

    A forecast takes `FORECAST_SHARE` of the width. After it come newer candles, for half the width at most.
    """
    # All candles are in the figure: panning needs no request.
    closes = candles["close_time"]
    if forecast is None:
        first, last = closes.tail(SHOWN)[0], closes[-1]
        pad = (last - first) / 50 or timedelta(hours=1)
        ends, extremes = [first - pad, last + pad], []
    else:
        origin, last = forecast["issued_at"][0], forecast["target_time"][-1]
        width = (last - origin) / FORECAST_SHARE
        newest = max([last, *closes.tail(1)])
        until = min(newest, last + width / 2) + width / 50
        ends, extremes = [until - width, until], [*forecast["q05"], *forecast["q95"]]
    shown = candles.filter(closes.is_between(*ends))
    return ends, [*shown["low"], *extremes], [*shown["high"], *extremes]


def _padded(lows: list[Any], highs: list[Any]) -> list[float] | None:
    prices = [price for price in (*lows, *highs) if price is not None and price == price]
    if not prices:
        return None
    low, high = min(prices), max(prices)
    pad = (high - low) * 0.06 or abs(high) * 0.01 or 1.0
    return [low - pad, high + pad]


def _alt(candles: pl.DataFrame, forecast: pl.DataFrame | None) -> str:
    text = "No candles."
    if len(candles):
        ends = f"{candles['close_time'][0]:%Y-%m-%d %H:%M} to {candles['close_time'][-1]:%Y-%m-%d %H:%M} UTC"
        text = f"{len(candles)} candles from {ends}, last close {price_text(candles['close'][-1])}."
    if forecast is None:
        return f"{text} There is no forecast."
    low, high = (price_text(forecast[name][-1]) for name in ("q10", "q90"))
    return (
        f"{text} Forecast issued {forecast['issued_at'][0]:%Y-%m-%d %H:%M} UTC: the close of candle {len(forecast)} "
        f"ahead lies between {low} and {high} with 80 % probability."
    )
