"""The contract of forecast rows: a row per step of a forecast, prices in the quote currency, times UTC."""

from itertools import pairwise
from typing import Any

import polars as pl

from schemas.universe import INTERVAL_SECONDS

QUANTILE_COLUMNS = tuple(f"q{level:02d}" for level in range(5, 100, 5))
"""`q05 q10 … q95`: the close, at 19 levels."""

CANDLE_COLUMNS = ("q50_open", "q50_high", "q50_low")
"""With `q50` as its close, the median candle."""

KEY = ("symbol", "timeframe", "model_version", "issued_at", "step")
"""What makes a row unique."""

_TIME = pl.Datetime("us", "UTC")

FORECAST_SCHEMA: dict[str, Any] = {
    "symbol": pl.String,
    "timeframe": pl.String,
    "model_version": pl.String,
    "issued_at": _TIME,
    "step": pl.Int64,
    "target_time": _TIME,
    **dict.fromkeys(QUANTILE_COLUMNS, pl.Float64),
    **dict.fromkeys(CANDLE_COLUMNS, pl.Float64),
    "last_close": pl.Float64,
}
"""Columns and types of the forecast store. `issued_at` is the close of the last candle used; `target_time`
the close of the candle that is forecast, so step 1 ends one interval after `issued_at`."""

MADE_KEY = ("symbol", "timeframe", "model_version", "issued_at")
"""What makes a forecast, all its steps together, unique."""

MADE_SCHEMA: dict[str, Any] = {**{name: FORECAST_SCHEMA[name] for name in MADE_KEY}, "made_at": _TIME}
"""Columns of the separate file that tells live forecasts from replays: `made_at` is when the forecast was
written, by the clock. `issued_at` cannot tell: a run with `--as-of` in the past has the same."""

LEDGER_SCHEMA: dict[str, Any] = {
    **{name: FORECAST_SCHEMA[name] for name in KEY},
    "realised_close": pl.Float64,
    "scored_at": _TIME,
}
"""Columns of the separate file with what came true."""


def check_forecasts(frame: pl.DataFrame) -> pl.DataFrame:
    """Return `frame` if it keeps the contract.

    Raises:
        ValueError: it has no rows.
        pandera.errors.SchemaError: naming the column or the rule at fault.
    """
    if frame.is_empty():  # pandera lets an empty frame pass
        raise ValueError("a forecast has no rows")
    return _schema().validate(frame)


def _schema() -> Any:
    import pandera.polars as pa  # slow to import, needed on writing only

    positive = pa.Check.in_range(0, float("inf"), include_min=False, include_max=False)
    prices = (*QUANTILE_COLUMNS, *CANDLE_COLUMNS, "last_close")
    return pa.DataFrameSchema(
        {
            name: pa.Column(kind, positive if name in prices else None, nullable=False)
            for name, kind in FORECAST_SCHEMA.items()
        },
        checks=[
            _rule(pa, "step is 1 or more", pl.col("step") >= 1),
            _rule(
                pa, "timeframe is an interval of Binance", pl.col("timeframe").is_in(list(INTERVAL_SECONDS))
            ),
            _rule(pa, "target_time = issued_at + step x interval", _target_time() == pl.col("target_time")),
            _rule(pa, "quantiles do not cross", _increasing(QUANTILE_COLUMNS)),
            _rule(pa, "the median candle is valid", _valid_candle()),
        ],
        unique=list(KEY),
        strict=True,
        ordered=True,
    )


def _rule(pa: Any, name: str, condition: pl.Expr) -> Any:
    return pa.Check(lambda data: data.lazyframe.select(condition.alias("ok")), name=name, error=name)


def _target_time() -> pl.Expr:
    seconds = pl.col("timeframe").replace_strict(INTERVAL_SECONDS, return_dtype=pl.Int64, default=None)
    return pl.col("issued_at") + pl.duration(seconds=seconds * pl.col("step"))


def _increasing(names: tuple[str, ...]) -> pl.Expr:
    return pl.all_horizontal([pl.col(a) <= pl.col(b) for a, b in pairwise(names)])


def _valid_candle() -> pl.Expr:
    body_low, body_high = pl.min_horizontal("q50_open", "q50"), pl.max_horizontal("q50_open", "q50")
    return (pl.col("q50_low") <= body_low) & (pl.col("q50_high") >= body_high)
