"""Contracts of stored rows (candles, features, forecasts, scores, backtests): columns, types, what every row must meet.

Times are the candle's open in UTC, prices and volumes are exact to the digits the exchange prints
(8 decimals fit a float64 for every coin so far). Features are finite, or NaN
during warm-up.

A forecast has a row per step, with the model's quantiles and the random walk's for the same origin. Realised closes
(`ledger`) are stored in separate files so that a written forecast row never changes; a backtest row holds both its fold
and the realised close.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl

from cpbmodels.data import FEATURE_WARMUP, INTERVAL_SECONDS
from cpbmodels.data.columns import FEATURES, MAX_PRICE, MAX_VOLUME, MIN_PRICE, PRICES
from cpbmodels.data.series import MEDIAN_COLUMNS, QUANTILE_COLUMNS
from schemas.errors import MemberError

if TYPE_CHECKING:
    import pandera.polars as pa

# NaN marks warm-up and is accepted; infinity is rejected. log σ is within [-20, 1]: 2e-9 … 270 % per candle.
_RANGES: dict[str, tuple[float, float]] = {
    "volatility": (0, 10),
    **dict.fromkeys(FEATURES, (-50, 50)),
    "close_location": (-1, 1),
    "log_volume_change": (-5, 5),
    "hour_of_week_utc": (0, 167),
    "hour_of_week_ny": (0, 167),
}
NOT_INCREASING = pl.col("open_time").diff().fill_null(pl.duration(microseconds=1)) <= pl.duration()
"""Whether a candle does not open after the candle before it."""

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


@dataclass(frozen=True)
class Contract:
    """The columns and types of a frame, in order, and the faults that no row may have.

    `faults`: an expression per row by the sentence that names it; a null, which makes it unknown, counts as a fault.
    """

    kinds: Mapping[str, Any]
    faults: Mapping[str, pl.Expr]

    def check(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return `frame` if it meets the contract.

        One polars pass decides; pandera, which takes a second to import and a millisecond per check, names the fault.

        Raises:
            pandera.errors.SchemaError: naming the column or the check that failed.
        """
        return frame if self.holds(frame) else self.schema().validate(frame)

    def holds(self, frame: pl.DataFrame) -> bool:
        """Whether a frame meets the contract."""
        if list(frame.schema.items()) != list(self.kinds.items()):
            return False
        return not any(frame.select(fault.any().alias(name) for name, fault in self._all.items()).row(0))

    def schema(self) -> "pa.DataFrameSchema":
        """Return the same contract for pandera, for eager frames: it skips the values of lazy frames."""
        import pandera.polars as pa

        def check(name: str, fault: pl.Expr) -> pa.Check:
            return pa.Check(lambda data: data.lazyframe.select(~fault), name=name, error=name)

        columns = {name: pa.Column(kind, nullable=True) for name, kind in self.kinds.items()}
        checks = [check(name, fault) for name, fault in self._all.items()]
        return pa.DataFrameSchema(columns, checks=checks, strict=True, ordered=True)

    @property
    def _all(self) -> dict[str, pl.Expr]:
        missing = {f"{name} is missing": pl.col(name).is_null() for name in self.kinds}
        return missing | {name: fault.fill_null(value=True) for name, fault in self.faults.items()}


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


@cache
def features_contract() -> Contract:
    """Return the contract of a feature file."""
    kinds = {"open_time": KLINES["open_time"], "segment": pl.Int32, "still": pl.Boolean} | dict.fromkeys(
        (*PRICES, *_RANGES), pl.Float64
    )
    faults = {
        "open_time is not strictly increasing": NOT_INCREASING,
        **{f"{name} is not positive": pl.col(name).is_nan() | (pl.col(name) <= 0) for name in PRICES},
    }
    for name, (low, high) in _RANGES.items():
        faults[f"{name} is outside [{low}, {high}]"] = ~(
            pl.col(name).is_nan() | pl.col(name).is_between(low, high)
        )
    return Contract(kinds, faults)


def check_features(frame: pl.DataFrame) -> pl.DataFrame:
    """Return `frame` if it meets the contract of a feature file.

    Raises:
        MemberError: a column holds no value although there are more candles than its warm-up needs.
        pandera.errors.SchemaError: names the column and the check that failed.
    """
    checked = features_contract().check(frame)
    if int(checked["segment"].unique_counts().max() or 0) > FEATURE_WARMUP:  # type: ignore[arg-type]  # shorter: warm-up only
        has_value = checked.select(pl.col(FEATURES).is_finite().any()).row(0)
        empty = [name for name, any_value in zip(FEATURES, has_value, strict=True) if not any_value]
        if empty:
            raise MemberError(
                f"feature column {empty[0]} has no value in any of {len(frame)} candles, so nothing can be learnt "
                "from it: check the candles it is computed from, with `cpb ingest`",
                code="empty-column",
                field=empty[0],
            )
    return checked


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


def check_forecasts(frame: pl.DataFrame) -> pl.DataFrame:
    """Return forecast rows that meet the contract; raises `MemberError` (code `rows`) naming the broken rule."""
    rules = [*_forecast_rules(candle=True), *_PLAIN_TEXTS, _KNOWN_ROLE, *_REFERENCE_RULES, *_ADDED_RULES]
    nullable = {"made_at", *REFERENCE_COLUMNS, *ADDED_COLUMNS}
    return _checked("forecast rows", frame, FORECAST_SCHEMA, KEY, rules, nullable)


def check_ledger(frame: pl.DataFrame) -> pl.DataFrame:
    """Return ledger rows that meet their contract; errors as in `check_forecasts`."""
    closed = ("scored_at is not before the candle's close", pl.col("scored_at") >= _target_time())
    return _checked(
        "ledger rows", frame, LEDGER_SCHEMA, KEY, [_FIRST_STEP, _KNOWN_TIMEFRAME, *_PLAIN_TEXTS, closed]
    )


def check_backtest_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a backtest's rows that meet their contract; errors as in `check_forecasts`."""
    candle = any(name in frame.columns for name in MEDIAN_COLUMNS)
    schema = {n: kind for n, kind in BACKTEST_SCHEMA.items() if candle or n not in MEDIAN_COLUMNS}
    rules = [*_forecast_rules(candle=candle), ("fold is 1 or more", pl.col("fold") >= 1)]
    return _checked("backtest rows", frame, schema, BACKTEST_KEY, rules)


def with_added_columns(rows: pl.DataFrame, schema: Mapping[str, Any]) -> pl.DataFrame:
    """Return rows with nulls in those of `ADDED_COLUMNS` that the schema has, if they have none: a file of before."""
    if any(name in rows.columns for name in ADDED_COLUMNS):
        return rows
    added = {name: kind for name, kind in ADDED_COLUMNS.items() if name in schema}
    return rows.with_columns(pl.lit(None, kind).alias(name) for name, kind in added.items())


def check_columns(frame: pl.DataFrame, schema: Mapping[str, Any]) -> pl.DataFrame:
    """Return a frame that has exactly a contract's columns and types, a check cheap enough for every read.

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


def _forecast_rules(*, candle: bool) -> list[Rule]:
    return [
        _FIRST_STEP,
        _KNOWN_TIMEFRAME,
        ("target_time = issued_at + step x interval", _target_time() == pl.col("target_time")),
        ("quantiles do not cross", _increasing(QUANTILE_COLUMNS)),
        *([("the median candle is valid", _valid_candle())] if candle else []),
    ]


def _checked(
    what: str,
    frame: pl.DataFrame,
    schema: Mapping[str, Any],
    key: Iterable[str],
    rules: Iterable[Rule],
    nullable: Iterable[str] = (),
) -> pl.DataFrame:
    # Plain polars in a single pass: pandera takes 100 ms for each of the thousand files that `cpb verify` checks.
    if frame.is_empty():
        raise MemberError(f"{what}: there are none", code="rows")
    check_columns(frame, schema)
    names = [(name, f"column {name} has no gaps", pl.col(name).is_not_null()) for name in schema]
    names = [rule for rule in names if rule[0] not in set(nullable)]
    prices = [
        (name, f"column {name} is positive and finite everywhere", _is_price(name))
        for name, kind in schema.items()
        if kind == pl.Float64
    ]
    unique = ("", "no row is stored twice", ~pl.struct(*key).is_duplicated())
    every = [*names, *prices, *(("", text, holds) for text, holds in rules), unique]
    held = frame.select(
        holds.fill_null(value=False).all().alias(str(i)) for i, (_, _, holds) in enumerate(every)
    )
    for (column, text, _), good in zip(every, held.row(0), strict=True):
        if not good:
            raise MemberError(f"{what} break their contract: not true is {text!r}", code="rows", field=column)
    return frame


def _is_price(name: str) -> pl.Expr:
    """Whether a price is positive and finite; a null passes here, the rule on gaps checks nulls."""
    return pl.col(name).is_null() | (pl.col(name).is_finite() & (pl.col(name) > 0))


def _target_time() -> pl.Expr:
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
