"""Contract of stored candles: columns, types, and the faults that a candle can have.

`open_time` is in UTC; prices and volumes are exact to the digits the exchange prints (8 decimals fit a float64 for
every coin so far).
"""

from collections.abc import Mapping

import polars as pl

from cpbmodels.data.columns import MAX_PRICE, MAX_VOLUME, MIN_PRICE, PRICES

NOT_INCREASING = pl.col("open_time").diff().fill_null(pl.duration(microseconds=1)) <= pl.duration()
"""Whether a candle does not open after the candle before it."""

KLINES: dict[str, pl.DataType | type[pl.DataType]] = {
    "open_time": pl.Datetime("us", "UTC"),
    "open": pl.Float64,
    "high": pl.Float64,
    "low": pl.Float64,
    "close": pl.Float64,
    "volume": pl.Float64,
    "quote_volume": pl.Float64,
    "count": pl.Int64,
    "taker_buy_volume": pl.Float64,
    "taker_buy_quote_volume": pl.Float64,
}
"""Column names and types of a stored series, in order."""

_TAKER_SLACK = 1e-8
"""Share by which taker volume may exceed the total volume: the two sums are rounded to 8 decimals separately."""

_TAKER_ROUNDING = 1e-7  # volumes are printed with 8 decimals: slack for sums near zero


def _exceeds(part: str, whole: str) -> pl.Expr:
    return pl.col(part) > pl.col(whole) * (1 + _TAKER_SLACK) + _TAKER_ROUNDING


CANDLE_FAULTS: Mapping[str, pl.Expr] = {
    # is_finite also rejects +inf, which `> 0` accepts.
    **{
        f"{name} is not finite": ~pl.col(name).is_finite()
        for name, kind in KLINES.items()
        if kind == pl.Float64
    },
    **{f"{name} is not positive": pl.col(name) <= 0 for name in PRICES},
    **{
        f"{name} is not between {MIN_PRICE:g} and {MAX_PRICE:g}": ~pl.col(name).is_between(
            MIN_PRICE, MAX_PRICE
        )
        for name in PRICES
    },
    # 0 is allowed: a candle in which nothing was traded
    **{f"{name} is negative": pl.col(name) < 0 for name in list(KLINES)[5:]},
    **{
        f"{name} is above {MAX_VOLUME:g}": pl.col(name) > MAX_VOLUME
        for name in ("volume", "quote_volume", "taker_buy_volume", "taker_buy_quote_volume")
    },
    "low is above open or close": pl.col("low") > pl.min_horizontal("open", "close"),
    "high is below open or close": pl.col("high") < pl.max_horizontal("open", "close"),
    "taker volume exceeds the total": _exceeds("taker_buy_volume", "volume")
    | _exceeds("taker_buy_quote_volume", "quote_volume"),
}
"""The faults that a candle can have by itself; the first word is the column at fault."""
