"""The contracts of forecast rows and of the files beside them: prices in the quote currency, times UTC.

A forecast is a row per step. When it was written (`issued`) and what came true (`ledger`) lie in files of their
own, so that a row once written never changes; a backtest's rows carry both fold and truth.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import polars as pl

from cpbmodels.rows import MEDIAN_COLUMNS, QUANTILE_COLUMNS
from schemas.errors import MemberError
from schemas.universe import INTERVAL_SECONDS

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
    **dict.fromkeys(MEDIAN_COLUMNS, pl.Float64),
    "last_close": pl.Float64,
}
"""Columns and types of the forecast store. `issued_at` is the close of the last candle used; `target_time`
the close of the candle that is forecast, so step 1 ends one interval after `issued_at`."""

ISSUED_KEY = ("symbol", "timeframe", "model_version", "issued_at")
"""What makes a forecast, all its steps together, unique."""

ISSUED_SCHEMA: dict[str, Any] = {**{name: FORECAST_SCHEMA[name] for name in ISSUED_KEY}, "made_at": _TIME}
"""Columns of the separate file that tells live forecasts from replays: `made_at` is when the forecast was
written, by the clock. `issued_at` cannot tell: a run with `--as-of` in the past has the same."""

LEDGER_SCHEMA: dict[str, Any] = {
    **{name: FORECAST_SCHEMA[name] for name in KEY},
    "realised_close": pl.Float64,
    "scored_at": _TIME,
}
"""Columns of the separate file with what came true."""

BACKTEST_KEY = (*KEY, "fold")
"""What makes a row of a backtest unique; `model_version` is the model's name there."""

BACKTEST_SCHEMA: dict[str, Any] = {
    **FORECAST_SCHEMA,
    "step": pl.Int16,
    "realised_close": pl.Float64,
    "fold": pl.Int16,
}
"""Columns of a backtest's rows; a model that forecasts the close alone has no `MEDIAN_COLUMNS`."""


def check_forecasts(frame: pl.DataFrame) -> pl.DataFrame:
    """Return forecast rows that keep the contract; raises `MemberError` (code `rows`) naming what does not."""
    return _checked("forecast rows", frame, FORECAST_SCHEMA, KEY, _forecast_rules(candle=True))


def check_issued(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows of `issued` that keep their contract; errors as in `check_forecasts`."""
    return _checked("rows of issued", frame, ISSUED_SCHEMA, ISSUED_KEY, [_KNOWN_TIMEFRAME])


def check_ledger(frame: pl.DataFrame) -> pl.DataFrame:
    """Return ledger rows that keep their contract; errors as in `check_forecasts`."""
    closed = ("scored_at is not before the candle's close", pl.col("scored_at") >= _target_time())
    return _checked("ledger rows", frame, LEDGER_SCHEMA, KEY, [_FIRST_STEP, _KNOWN_TIMEFRAME, closed])


def check_backtest_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a backtest's rows that keep their contract; errors as in `check_forecasts`."""
    candle = any(name in frame.columns for name in MEDIAN_COLUMNS)
    schema = {n: kind for n, kind in BACKTEST_SCHEMA.items() if candle or n not in MEDIAN_COLUMNS}
    rules = [*_forecast_rules(candle), ("fold is 1 or more", pl.col("fold") >= 1)]
    return _checked("backtest rows", frame, schema, BACKTEST_KEY, rules)


def check_columns(frame: pl.DataFrame, schema: Mapping[str, Any]) -> pl.DataFrame:
    """Return a frame that has exactly a contract's columns and types: the check that reading can afford.

    Raises:
        MemberError: (code `rows`) naming the first column at fault.
    """
    if dict(frame.schema) != dict(schema) or frame.columns != list(schema):
        wrong = [n for n in schema if frame.schema.get(n) != schema[n]] or frame.columns
        raise MemberError(f"column {wrong[0]} is not what the contract says", code="rows", field=wrong[0])
    return frame


Rule = tuple[str, pl.Expr]
_FIRST_STEP: Rule = ("step is 1 or more", pl.col("step") >= 1)
_KNOWN_TIMEFRAME: Rule = (
    "timeframe is an interval of Binance",
    pl.col("timeframe").is_in(list(INTERVAL_SECONDS)),
)


def _forecast_rules(candle: bool) -> list[Rule]:
    return [
        _FIRST_STEP,
        _KNOWN_TIMEFRAME,
        ("target_time = issued_at + step x interval", _target_time() == pl.col("target_time")),
        ("quantiles do not cross", _increasing(QUANTILE_COLUMNS)),
        *([("the median candle is valid", _valid_candle())] if candle else []),
    ]


def _checked(
    what: str, frame: pl.DataFrame, schema: Mapping[str, Any], key: Iterable[str], rules: Iterable[Rule]
) -> pl.DataFrame:
    import pandera.polars as pa  # slow to import, needed on writing only
    from pandera.errors import SchemaError, SchemaErrors

    if frame.is_empty():  # pandera lets an empty frame pass
        raise MemberError(f"{what}: there are none", code="rows")
    prices = [name for name, kind in schema.items() if kind == pl.Float64]
    # One rule for all prices: a check of its own for each of 23 columns takes 70 ms more.
    positive = [(_POSITIVE, pl.all_horizontal(_is_positive(prices)))] if prices else []
    contract = pa.DataFrameSchema(
        {name: pa.Column(kind) for name, kind in schema.items()},
        checks=[
            pa.Check(_holds(condition), name=name, error=name) for name, condition in [*positive, *rules]
        ],
        unique=list(key),
        strict=True,
        ordered=True,
    )
    try:
        return contract.validate(frame)
    except (SchemaError, SchemaErrors) as error:
        column = str(getattr(getattr(error, "schema", None), "name", "") or "")
        reason = str(error).splitlines()[0][:160]
        if _POSITIVE in reason:
            column = next((n for n in prices if not frame.select(_is_positive([n])[0].all()).item()), "")
            reason = f"column {column} is not positive and finite everywhere"
        raise MemberError(f"{what} break their contract: {reason}", code="rows", field=column) from error


_POSITIVE = "prices are positive and finite"


def _is_positive(names: Iterable[str]) -> list[pl.Expr]:
    return [pl.col(name).is_finite() & (pl.col(name) > 0) for name in names]


def _holds(condition: pl.Expr) -> Any:
    return lambda data: data.lazyframe.select(condition.alias("ok"))


def _target_time() -> pl.Expr:
    seconds = pl.col("timeframe").replace_strict(INTERVAL_SECONDS, return_dtype=pl.Int64, default=None)
    return pl.col("issued_at") + pl.duration(seconds=seconds * pl.col("step"))


def _increasing(names: tuple[str, ...]) -> pl.Expr:
    return pl.all_horizontal([pl.col(a) <= pl.col(b) for a, b in pairwise(names)])


def _valid_candle() -> pl.Expr:
    body_low, body_high = pl.min_horizontal("q50_open", "q50"), pl.max_horizontal("q50_open", "q50")
    return (pl.col("q50_low") <= body_low) & (pl.col("q50_high") >= body_high)
