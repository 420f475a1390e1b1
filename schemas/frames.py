"""Contracts of stored candles and of feature files: columns, types and the conditions that every row must meet.

Times are the candle's open in UTC, prices and volumes are exact to the digits the exchange prints
(8 decimals fit a float64 for every coin so far). Features are finite, or NaN
during warm-up. pandera is imported on first use: the import takes a second.
"""

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import polars as pl

from cpbmodels.data.columns import FEATURES
from cpbmodels.data.figures import FEATURE_WARMUP
from cpbmodels.data.prices import PRICES
from schemas.errors import MemberError
from schemas.identity import INTERVAL_SECONDS, MONTH

if TYPE_CHECKING:
    import pandera.polars as pa


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


# NaN marks warm-up and is accepted; infinity is rejected. log σ is within [-20, 1]: 2e-9 … 270 % per candle.
_RANGES: dict[str, tuple[float, float]] = {
    "close_location": (-1, 1),
    "log_volume_change": (-5, 5),
    "hour_of_week_utc": (0, 167),
    "hour_of_week_ny": (0, 167),
}


def check_features(frame: pl.DataFrame) -> pl.DataFrame:
    """Return `frame` if it meets the contract of a feature file.

    Raises:
        MemberError: a column holds no value although there are more candles than its warm-up needs.
        pandera.errors.SchemaError: names the column and the check that failed.
    """
    checked = frame if _holds(frame) else _schema().validate(frame)  # pandera names the failed check
    if int(checked["segment"].unique_counts().max() or 0) > FEATURE_WARMUP:  # type: ignore[arg-type]  # shorter: warm-up only
        known = checked.select(pl.col(FEATURES).is_finite().any()).row(0)
        empty = [name for name, any_value in zip(FEATURES, known, strict=True) if not any_value]
        if empty:
            raise MemberError(
                f"feature column {empty[0]} has no value in any of {len(frame)} candles, so nothing can be learnt "
                "from it: check the candles it is computed from, with `cpb ingest --report`",
                code="empty-column",
                field=empty[0],
            )
    return checked


@cache
def _rules() -> dict[str, tuple[Any, pl.Expr]]:
    """Return the contract: per column, in order, its type and the condition that every row must meet."""
    rules = {
        "open_time": (pl.Datetime("us", "UTC"), (pl.col("open_time").diff() > pl.duration()).fill_null(True)),
        "segment": (pl.Int32, pl.lit(True)),
        **{name: (pl.Float64, pl.col(name).is_not_nan() & (pl.col(name) > 0)) for name in PRICES},
    }
    for name, (low, high) in {
        "volatility": (0.0, 10.0),
        **dict.fromkeys(FEATURES, (-50.0, 50.0)),
        **_RANGES,
    }.items():
        rules[name] = pl.Float64, pl.col(name).is_nan() | pl.col(name).is_between(low, high)
    return {
        name: (kind, (rule & pl.col(name).is_not_null()).fill_null(False))
        for name, (kind, rule) in rules.items()
    }


def _holds(frame: pl.DataFrame) -> bool:
    """Whether a frame meets `_schema`, in one polars pass: pandera takes 40 ms per series, more than the features."""
    rules = _rules()
    if list(frame.schema.items()) != [(name, kind) for name, (kind, _) in rules.items()]:
        return False
    return all(frame.select(rule.all().alias(name) for name, (_, rule) in rules.items()).row(0))


@cache
def _schema() -> Any:
    import pandera.polars as pa  # slow to import, only needed when a frame breaks a rule

    def check(rule: pl.Expr) -> pa.Check:
        return pa.Check(lambda data: data.lazyframe.select(rule), name=str(rule))

    columns = {
        name: pa.Column(kind, check(rule), nullable=True)  # NaN is null to pandera; the rules reject nulls
        for name, (kind, rule) in _rules().items()
    }
    return pa.DataFrameSchema(columns, strict=True, ordered=True)
