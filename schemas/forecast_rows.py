"""Contracts of forecast rows, of the closes that came true, and of a backtest's rows.

A forecast has a row per step, with the model's quantiles and the random walk's for the same origin. Realised closes
(`ledger`) are stored in separate files so that a written forecast row never changes; a backtest row holds both its fold
and the realised close.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import polars as pl

from cpbmodels.data import INTERVAL_SECONDS
from cpbmodels.data.prediction import MEDIAN_COLUMNS, QUANTILE_COLUMNS
from schemas.contract import Rule, check_rows

KEY = ("symbol", "timeframe", "model_version", "issued_at", "step")
"""The columns that identify a row."""

CHAMPION = "champion"
"""Role of every model that forecasts."""

_TIME = pl.Datetime("us", "UTC")
_PREDICTION: dict[str, Any] = {
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
ADDED_COLUMNS: dict[str, Any] = {"weights_sha256": pl.String, "standing": pl.Int64}
"""Columns of a forecast that rows stored by older versions lack: null there, and no part of their digests."""

BACKTEST_KEY = (*KEY, "fold")
"""The columns that identify a row of a backtest, where `model_version` is the model's name."""

BACKTEST_SCHEMA: dict[str, Any] = {
    **_PREDICTION,
    "step": pl.Int16,
    "realised_close": pl.Float64,
    "fold": pl.Int16,
}
"""Columns and types of a backtest's rows; a model that forecasts only the close has no `MEDIAN_COLUMNS`."""

STANDING = 6
"""So many candles that stand still are told with a forecast: a living market moves within a candle or two."""

REFERENCE_COLUMNS = tuple(f"ref_{name}" for name in QUANTILE_COLUMNS)
"""`ref_q05 … ref_q95`: the close by the random walk with EWMA volatility, from the same origin."""

OF_BEFORE = pl.all_horizontal([pl.col(name).is_null() for name in ADDED_COLUMNS])
"""Whether a row was stored by an older version. A row with one of the two columns breaks the contract."""

FORECAST_SCHEMA: dict[str, Any] = {
    **_PREDICTION,
    "role": pl.String,
    "made_at": _TIME,
    **dict.fromkeys(REFERENCE_COLUMNS, pl.Float64),
    **ADDED_COLUMNS,
}
"""Columns and types of the forecast store. `issued_at` is the close of the last candle used; `target_time` is
the close of the forecast candle, so step 1 ends an interval after `issued_at`. `made_at` is the wall-clock time at
which the row was stored: it distinguishes live forecasts from replays, which `issued_at` cannot (it is the same in a
run with `--as-of` in the past); null (unknown) counts as a replay. The reference's quantiles are all present or all
null; rows stored before the reference was introduced have nulls. `weights_sha256` is that of the weights that made the
forecast; `standing` the number of candles that stand still (`Series.still`), counted back from the last candle used;
rows stored before these were introduced have nulls."""

LEDGER_SCHEMA: dict[str, Any] = {
    **{name: FORECAST_SCHEMA[name] for name in KEY},
    "realised_close": pl.Float64,
    "scored_at": _TIME,
}
"""Columns and types of the ledger file with the realised closes."""

_FIRST_STEP: Rule = ("step is 1 or more", pl.col("step") >= 1)
_KNOWN_TIMEFRAME: Rule = (
    "timeframe is an interval of Binance",
    pl.col("timeframe").is_in(list(INTERVAL_SECONDS)),
)

# The chain's digests join a row's texts with commas and end the row with a line break, so a text may contain neither.
_PLAIN_TEXTS: list[Rule] = [
    (f"{name} holds no comma and no control character", ~pl.col(name).str.contains(r"[,\p{Cc}]"))
    for name in ("symbol", "model_version")
]
_ADDED_RULES: list[Rule] = [
    (
        "weights_sha256 is 64 hexadecimal digits",
        OF_BEFORE | pl.col("weights_sha256").str.contains("^[0-9a-f]{64}$"),
    ),
    ("standing is 0 or more", OF_BEFORE | (pl.col("standing") >= 0)),
]
_KNOWN_ROLE: Rule = (f"role is {CHAMPION}", pl.col("role") == CHAMPION)


def is_standstill(standing: int | None) -> bool:
    """Whether a forecast must say that its last candles stand still; None: not known, of a row of before."""
    return standing is not None and standing >= STANDING


def check_forecasts(frame: pl.DataFrame) -> pl.DataFrame:
    """Return forecast rows that meet the contract; raises `MemberError` (code `rows`) naming the broken rule."""
    rules = [*_forecast_rules(candle=True), *_PLAIN_TEXTS, _KNOWN_ROLE, *_REFERENCE_RULES, *_ADDED_RULES]
    nullable = {"made_at", *REFERENCE_COLUMNS, *ADDED_COLUMNS}
    return check_rows("forecast rows", frame, FORECAST_SCHEMA, KEY, rules, nullable)


def check_ledger(frame: pl.DataFrame) -> pl.DataFrame:
    """Return ledger rows that meet their contract; errors as in `check_forecasts`."""
    closed = ("scored_at is not before the candle's close", pl.col("scored_at") >= _target_time())
    return check_rows(
        "ledger rows", frame, LEDGER_SCHEMA, KEY, [_FIRST_STEP, _KNOWN_TIMEFRAME, *_PLAIN_TEXTS, closed]
    )


def check_backtest_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a backtest's rows that meet their contract; errors as in `check_forecasts`."""
    candle = any(name in frame.columns for name in MEDIAN_COLUMNS)
    # a head that forecasts only the close has no median candle; with one of its columns all are due
    schema = {n: kind for n, kind in BACKTEST_SCHEMA.items() if candle or n not in MEDIAN_COLUMNS}
    rules = [*_forecast_rules(candle=candle), ("fold is 1 or more", pl.col("fold") >= 1)]
    return check_rows("backtest rows", frame, schema, BACKTEST_KEY, rules)


def with_added_columns(rows: pl.DataFrame, schema: Mapping[str, Any]) -> pl.DataFrame:
    """Return rows with nulls in those of `ADDED_COLUMNS` that the schema has, if they have none: a file of before."""
    # with one of them it is no file of before, and the contract names the one that lacks
    if any(name in rows.columns for name in ADDED_COLUMNS):
        return rows
    added = {name: kind for name, kind in ADDED_COLUMNS.items() if name in schema}
    return rows.with_columns(pl.lit(None, kind).alias(name) for name, kind in added.items())


def _forecast_rules(*, candle: bool) -> list[Rule]:
    return [
        _FIRST_STEP,
        _KNOWN_TIMEFRAME,
        ("target_time = issued_at + step x interval", _target_time() == pl.col("target_time")),
        ("quantiles do not cross", _increasing(QUANTILE_COLUMNS)),
        *([("the median candle is valid", _valid_candle())] if candle else []),
    ]


def _target_time() -> pl.Expr:
    # an unknown timeframe gives null, and the rule on timeframes names it
    seconds = pl.col("timeframe").replace_strict(INTERVAL_SECONDS, return_dtype=pl.Int64, default=None)
    return pl.col("issued_at") + pl.duration(seconds=seconds * pl.col("step"))


def _increasing(names: tuple[str, ...]) -> pl.Expr:
    return pl.all_horizontal([pl.col(a) <= pl.col(b) for a, b in pairwise(names)])


_WITHOUT_REFERENCE = pl.all_horizontal([pl.col(name).is_null() for name in REFERENCE_COLUMNS])
_REFERENCE_RULES: list[Rule] = [
    (
        "the reference has all its quantiles or none",
        _WITHOUT_REFERENCE | pl.all_horizontal([pl.col(name).is_not_null() for name in REFERENCE_COLUMNS]),
    ),
    ("the reference's quantiles do not cross", _WITHOUT_REFERENCE | _increasing(REFERENCE_COLUMNS)),
]


def _valid_candle() -> pl.Expr:
    body_low, body_high = pl.min_horizontal("q50_open", "q50"), pl.max_horizontal("q50_open", "q50")
    return (pl.col("q50_low") <= body_low) & (pl.col("q50_high") >= body_high)
