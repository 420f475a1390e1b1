"""Pictures of forecasts; matplotlib is an extra of the library."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cpbmodels.errors import ModelError
from cpbmodels.prediction import check_forecasts_prices

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from cpbmodels.prediction import Forecast

INTERVALS = ((0.05, 0.95, "90 %"), (0.25, 0.75, "50 %"))


def draw_forecast(forecast: Forecast, candles: int, ax: Axes | None) -> Axes:
    """Draw closes, median and intervals; see `Forecast.plot`."""
    check_forecasts_prices(forecast.probabilities)
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ModelError("Drawing needs matplotlib: pip install matplotlib.") from None
    if ax is None:
        _, ax = plt.subplots(figsize=(9, 4), layout="constrained")
    series, row = forecast.series, forecast.issued_row
    first = max(row - candles + 1, 0)
    past: list[Any] = list(range(first - row, 1))
    future: list[Any] = list(range(len(forecast.candle) + 1))
    if series.times is not None:
        step = timedelta(seconds=series.step_seconds)
        past = [forecast.issued_at + step * one for one in past]
        future = [forecast.issued_at + step * one for one in future]
    ax.plot(past, series.prices[first : row + 1, 3], color="black", linewidth=1, label="close")
    last = forecast.last_close
    for alpha, (low, high, name) in zip((0.2, 0.35), INTERVALS, strict=True):
        bottom, top = ([last, *forecast.close[level]] for level in (low, high))
        ax.fill_between(future, bottom, top, color="tab:blue", alpha=alpha, linewidth=0, label=name)
    ax.plot(future, [last, *forecast.close[0.5]], color="tab:blue", label="median")
    ax.set_title(f"{series.symbol} {series.timeframe}".strip() or "forecast")
    ax.legend(loc="best", frameon=False)
    return ax
