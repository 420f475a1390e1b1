"""Contract of stored candles: columns, types and the conditions that every row must meet.

Times are the candle's open in UTC, prices and volumes are exact to the digits the exchange prints
(8 decimals fit a float64 for every coin so far). pandera is imported on first use: the import takes a second.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

import polars as pl

from schemas.universe import INTERVAL_SECONDS, MONTH

if TYPE_CHECKING:
    import pandera.polars as pa

PRICES = ("open", "high", "low", "close")

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

TAKER_SLACK = 1e-8
"""Share by which taker volume may exceed the total volume: the two sums are rounded to 8 decimals separately."""


_DAY_US = 86_400_000_000
_MONDAY_US = 4 * _DAY_US  # 1970-01-01 was a Thursday


@lru_cache(maxsize=32)
def klines_schema(timeframe: str) -> "pa.DataFrameSchema":
    """Return the pandera schema of a stored series, for eager frames (pandera skips the values of lazy frames)."""
    import pandera.polars as pa

    def holds(expression: pl.Expr, name: str) -> pa.Check:
        return pa.Check(lambda data: data.lazyframe.select(expression), name=name, error=name)

    # The checks cover the whole frame instead of each column: pandera takes 1 ms per check, whatever its size.
    # is_finite also rejects +inf, which gt(0) accepts.
    prices, amounts = (
        pl.col(PRICES),
        pl.col("volume", "quote_volume", "taker_buy_volume", "taker_buy_quote_volume"),
    )
    increasing = pl.col("open_time").diff().dt.total_microseconds().fill_null(1) > 0
    return pa.DataFrameSchema(
        {name: pa.Column(kind, nullable=False) for name, kind in KLINES.items()},
        checks=[
            holds(pl.all_horizontal(prices.is_finite() & (prices > 0)), "a price is not positive and finite"),
            holds(
                pl.all_horizontal(amounts.is_finite() & (amounts >= 0)), "a volume is negative or not finite"
            ),
            holds(pl.col("count") >= 0, "a count is negative"),
            holds(pl.col("low") <= pl.min_horizontal("open", "close"), "low above open or close"),
            holds(pl.col("high") >= pl.max_horizontal("open", "close"), "high below open or close"),
            holds(
                increasing & _on_grid(timeframe),
                f"open_time not strictly increasing, or off the grid of {timeframe}",
            ),
        ],
        strict=True,
        ordered=True,
    )


def _on_grid(timeframe: str) -> pl.Expr:
    """Whether each candle opens at a valid time for its interval."""
    time = pl.col("open_time").to_physical()
    if timeframe == MONTH:
        return (pl.col("open_time").dt.day() == 1) & (time % _DAY_US == 0)
    step = INTERVAL_SECONDS[timeframe] * 1_000_000
    if timeframe == "3d":  # Binance does not document the origin of this grid: the first candle defines it
        return (time - time.first()) % step == 0
    return (time - (_MONDAY_US if timeframe == "1w" else 0)) % step == 0


def validate_klines(frame: pl.DataFrame, timeframe: str) -> pl.DataFrame:
    """Return `frame` if it meets the contract for candles of this interval.

    Raises:
        pandera.errors.SchemaError: naming the column and the check that failed.
    """
    return klines_schema(timeframe).validate(frame)
