"""The contract of a feature file: which columns, in which ranges, finite or warm-up NaN."""

from functools import cache
from typing import Any

import polars as pl

from cpbmodels.columns import FEATURES, PRICES
from cpbmodels.figures import WARMUP
from schemas.errors import MemberError

# NaN passes: it marks warm-up. Infinity never does. log σ lies in [-20, 1]: 2e-9 … 270 % a candle.
_RANGES: dict[str, tuple[float, float]] = {
    "close_location": (-1, 1),
    "log_volume_change": (-5, 5),
    "hour_of_week_utc": (0, 167),
    "hour_of_week_ny": (0, 167),
}


def check_features(frame: pl.DataFrame) -> pl.DataFrame:
    """Return `frame` if it keeps the contract of a feature file.

    Raises:
        MemberError: a column holds no value at all, though there are candles enough for it.
        pandera.errors.SchemaError: naming the column and the check at fault.
    """
    checked = frame if _holds(frame) else _schema().validate(frame)  # which names what does not
    if int(checked["segment"].unique_counts().max() or 0) > WARMUP:  # type: ignore[arg-type]  # else warm-up is all there can be
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


def _bounds() -> dict[str, tuple[float, float]]:
    """Return the range of each column that may be NaN."""
    return {"volatility": (0.0, 10.0), **{name: _RANGES.get(name, (-50.0, 50.0)) for name in FEATURES}}


@cache
def _rules() -> tuple[dict[str, Any], list[pl.Expr]]:
    """Return the contract's types by column, and its rules as expressions that are true of a whole frame."""
    kinds = {
        "open_time": pl.Datetime("us", "UTC"),
        "segment": pl.Int32,
        **dict.fromkeys((*PRICES, *_bounds()), pl.Float64),
    }
    column = pl.col
    rules = [column("open_time").is_not_null(), column("segment").is_not_null()]
    rules.append((column("open_time").diff() > pl.duration()).fill_null(True))
    rules += [column(name).is_not_nan() & (column(name) > 0) for name in PRICES]
    rules += [
        column(name).is_nan() | column(name).is_between(low, high) for name, (low, high) in _bounds().items()
    ]
    return kinds, [rule.fill_null(False).all().alias(str(i)) for i, rule in enumerate(rules)]


def _holds(frame: pl.DataFrame) -> bool:
    """Whether a frame keeps `_schema`, in one pass of polars: pandera takes 40 ms a series, more than the columns."""
    kinds, rules = _rules()
    if frame.columns != list(kinds) or dict(frame.schema) != kinds:
        return False
    return all(frame.select(rules).row(0))


@cache
def _schema() -> Any:
    import pandera.polars as pa  # slow to import, needed by one step only

    def number(low: float, high: float) -> pa.Column:
        within = pa.Check(
            lambda data: data.lazyframe.select(
                (pl.col(data.key).is_nan() | pl.col(data.key).is_between(low, high)).fill_null(False)
            ),
            name=f"NaN or in [{low}, {high}]",
        )
        return pa.Column(pl.Float64, within, nullable=True)  # to pandera NaN is null, to Polars not

    ordered = pa.Check(
        lambda data: data.lazyframe.select((pl.col(data.key).diff() > pl.duration()).fill_null(True)),
        name="strictly increasing",
    )
    positive = pa.Check.gt(0)
    return pa.DataFrameSchema(
        {
            "open_time": pa.Column(pl.Datetime("us", "UTC"), ordered),
            "segment": pa.Column(pl.Int32),
            **{name: pa.Column(pl.Float64, positive) for name in PRICES},
            **{name: number(*bounds) for name, bounds in _bounds().items()},
        },
        strict=True,
        ordered=True,
    )
