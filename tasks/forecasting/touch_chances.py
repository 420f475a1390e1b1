"""The chance that a price is touched, by the newest stored forecast of a series and the table of its model."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from cpbmodels.data.chances import Chances
from cpbmodels.data.extremes import SIDES
from cpbmodels.data.prediction import QUANTILE_COLUMNS
from cpbmodels.errors import ModelError
from schemas.errors import DamagedError, MemberError
from schemas.identity import SeriesId
from tasks.forecasting.months import forecast_command
from tasks.storage.packaged import read_packaged


def touch_of(home: Path, series: SeriesId, rows: pl.DataFrame) -> Chances:
    """Return the chances of the newest forecast of a series by the packaged model; `rows`: its steps, at least one.

    Raises:
        MemberError: that model is not the one that forecast (another version, or other weights under its name), is
            damaged, or has no table.
    """
    made_by, weights = rows["model_version"][0], rows["weights_sha256"][0]
    try:
        model = read_packaged(series.packaged(home))
        # Rows of before do not say which weights made them.
        if model.model_version == made_by and weights in (None, model.weights_sha256):
            close = rows.select(QUANTILE_COLUMNS).to_numpy()
            chances = Chances(model.extremes(), close, rows["last_close"][0])
            assert chances.table  # which raises
            return chances
    except DamagedError as error:
        raise MemberError(
            f"the packaged model of {series} is damaged: `{forecast_command(series)}` packages it again"
        ) from error
    except ModelError as error:
        raise MemberError(f"{series}: {error}") from error
    if model.model_version == made_by:
        raise MemberError(
            f"the newest forecast of {series} was made by other weights than those that serve as {made_by} now: "
            f"forecast once the next candle has closed, with `{forecast_command(series)}`"
        )
    raise MemberError(
        f"the newest forecast of {series} is of {made_by}, and {model.model_version} serves now: forecast with it "
        f"first, with `{forecast_command(series)}`"
    )


def touched(rows: pl.DataFrame, touch: Chances, prices: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield `price`, `side`, `probability` and `by` (UTC, a step's target time) of each price and step.

    Raises:
        ModelError: a price is not a number above 0.
    """
    times = rows["target_time"].to_list()
    for price, chances in zip(prices, touch.touch(prices).tolist(), strict=True):
        side = SIDES[int(price < touch.last_close)]
        for by, chance in zip(times, chances, strict=True):
            yield {"price": price, "side": side, "probability": chance, "by": by}


def stops(rows: pl.DataFrame, touch: Chances, chances: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield `probability`, `side`, `price` and `by` (UTC): the prices touched by the last step with some chances."""
    for chance in chances:
        for side in SIDES:
            price = float(touch.stop(chance, side)[-1])
            yield {"probability": chance, "side": side, "price": price, "by": rows["target_time"][-1]}
