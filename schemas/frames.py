"""Contracts of stored candles and of feature files: columns, types and the conditions that every row must meet.

Times are the candle's open in UTC, prices and volumes are exact to the digits the exchange prints
(8 decimals fit a float64 for every coin so far). Features are finite, or NaN
during warm-up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl

from cpbmodels.data import FEATURE_WARMUP
from cpbmodels.data.columns import FEATURES, PRICES
from schemas.errors import MemberError

if TYPE_CHECKING:
    import pandera.polars as pa


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
        return missing | {name: fault.fill_null(True) for name, fault in self.faults.items()}


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
    **{f"{name} is negative": pl.col(name) < 0 for name in list(KLINES)[5:]},
    "low is above open or close": pl.col("low") > pl.min_horizontal("open", "close"),
    "high is below open or close": pl.col("high") < pl.max_horizontal("open", "close"),
    "taker volume exceeds the total": _exceeds("taker_buy_volume", "volume")
    | _exceeds("taker_buy_quote_volume", "quote_volume"),
}
"""The faults that a candle can have by itself; the first word is the column at fault."""

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


@cache
def features_contract() -> Contract:
    """Return the contract of a feature file."""
    kinds = {"open_time": KLINES["open_time"], "segment": pl.Int32} | dict.fromkeys(
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
        known = checked.select(pl.col(FEATURES).is_finite().any()).row(0)
        empty = [name for name, any_value in zip(FEATURES, known, strict=True) if not any_value]
        if empty:
            raise MemberError(
                f"feature column {empty[0]} has no value in any of {len(frame)} candles, so nothing can be learnt "
                "from it: check the candles it is computed from, with `cpb ingest`",
                code="empty-column",
                field=empty[0],
            )
    return checked
