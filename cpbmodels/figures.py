"""Figures that models and pipeline must agree on, each defined once."""

HORIZON = 10
"""Candles that every model forecasts, unless its preset says otherwise."""

ROLLING = (1, 3, 6, 12, 24, 72, 168)
"""Windows of the rolling means, in candles."""

WARMUP = ROLLING[-1]
"""Candles after a listing or a hole until all features exist: the longest rolling window, a week of hours."""

EMBARGO = WARMUP + HORIZON
"""Candles between two spans, so that no candle is an input of one and a target of the other."""
