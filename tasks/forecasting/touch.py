"""The chance that a price is touched, by the newest stored forecast of a series and the table of its model."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from cpbmodels.data.series import QUANTILE_COLUMNS
from cpbmodels.data.touch import SIDES, Touch
from cpbmodels.errors import ModelError
from schemas.errors import DamagedError, MemberError
from schemas.identity import SeriesId
from tasks.forecasting.months import forecast_command
from tasks.storage.model_folder import read_touch


def touch_of(home: Path, series: SeriesId, rows: pl.DataFrame) -> Touch:
    """Return the chances of the newest forecast of a series by the packaged model; `rows`: its steps, at least one.

    Raises:
        MemberError: that model is of another version than the one that forecast, is damaged, or has no table.
    """
    made_by = rows["model_version"][0]
    try:
        version, table = read_touch(series.packaged(home))
        if version == made_by:
            return Touch(table, rows.select(QUANTILE_COLUMNS).to_numpy(), rows["last_close"][0])
    except DamagedError as error:
        raise MemberError(
            f"the packaged model of {series} is damaged: `{forecast_command(series)}` packages it again"
        ) from error
    except ModelError as error:
        raise MemberError(f"{series}: {error}") from error
    raise MemberError(
        f"the newest forecast of {series} is of {made_by}, and {version} serves now: forecast with it first, with "
        f"`{forecast_command(series)}`"
    )


def touched(rows: pl.DataFrame, touch: Touch, prices: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield `price`, `side`, `probability` and `by` (UTC, a step's target time) of each price and step.

    Raises:
        ModelError: a price is not a number above 0.
    """
    times = rows["target_time"].to_list()
    for price, chances in zip(prices, touch.chance(prices).tolist(), strict=True):
        side = SIDES[int(price < touch.last_close)]
        for by, chance in zip(times, chances, strict=True):
            yield {"price": price, "side": side, "probability": chance, "by": by}


def stops(rows: pl.DataFrame, touch: Touch, chances: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield `probability`, `side`, `price` and `by` (UTC): the prices touched by the last step with some chances."""
    for chance in chances:
        for side in SIDES:
            price = float(touch.stop(chance, side)[-1])
            yield {"probability": chance, "side": side, "price": price, "by": rows["target_time"][-1]}
