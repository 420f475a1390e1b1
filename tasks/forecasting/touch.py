"""The chance that a price is touched, by the newest stored forecast of a series and the table of its model."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from cpbmodels.data.series import QUANTILE_COLUMNS
from cpbmodels.data.touch import SIDES, Touch
from cpbmodels.errors import ModelError
from schemas.errors import DamagedError, MemberError
from schemas.identity import SeriesId, tree_of
from tasks.forecasting.months import forecast_command, latest
from tasks.storage.model_folder import read_config, read_touch


def newest_touch(home: Path, series: SeriesId, until: datetime | None = None) -> tuple[pl.DataFrame, Touch]:
    """Return the rows of the newest forecast of a series (issued by `until`), and its chances.

    Raises:
        MemberError: there is no forecast, the packaged model is another than the one that made it, or is damaged, or
            has no table of extremes.
    """
    rows = latest(home, series, until)
    if rows.is_empty():
        raise MemberError(f"{series} has no forecast yet: make one with `{forecast_command(series)}`")
    version = rows["model_version"][0]
    folder = tree_of(home, "hub", series.market) / series.label / series.timeframe
    try:
        serving = read_config(folder).model_version
        if serving != version:
            raise MemberError(
                f"the newest forecast of {series} is of {version}, and {serving} serves now: forecast with it first, "
                f"with `{forecast_command(series)}`"
            )
        return rows, Touch(
            read_touch(folder), rows.select(QUANTILE_COLUMNS).to_numpy(), rows["last_close"][0]
        )
    except DamagedError as error:
        raise MemberError(
            f"the packaged model of {series} is damaged: `{forecast_command(series)}` packages it again"
        ) from error
    except ModelError as error:
        raise MemberError(f"{series}: {error}") from error


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
