"""Contract of feature files: finite values, or NaN during warm-up."""

from functools import cache

import polars as pl

from cpbmodels.data import FEATURE_WARMUP
from cpbmodels.data.columns import FEATURES, PRICES
from schemas.candles import KLINES, NOT_INCREASING
from schemas.contract import Contract
from schemas.errors import MemberError

# NaN marks warm-up and is accepted; infinity is rejected. log σ is within [-20, 1]: 2e-9 … 270 % per candle.
_RANGES: dict[str, tuple[float, float]] = {
    "volatility": (0, 10),
    **dict.fromkeys(FEATURES, (-50, 50)),
    "close_location": (-1, 1),
    "log_volume_change": (-5, 5),
    "hour_of_week_utc": (0, 167),
    "hour_of_week_ny": (0, 167),
}


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
    # a column out of its range is a fault of the formula, and would train as an outlier
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
