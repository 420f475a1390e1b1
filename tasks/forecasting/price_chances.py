"""What the newest stored forecast of a series says of prices, by the table of the model that made it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from cpbmodels.data.chances import Chances
from cpbmodels.data.extremes import SIDES, Extremes
from cpbmodels.data.prediction import QUANTILE_COLUMNS
from cpbmodels.errors import ModelError, PriceError
from schemas.errors import DamagedError, MemberError, UsageError
from schemas.identity import SeriesId
from tasks.forecasting.months import forecast_command
from tasks.storage.packaged import read_packaged


@dataclass(frozen=True)
class PriceChances:
    """The chances of a series' newest forecast; `rows`: its steps.

    Answers are dictionaries, of which `by` is a step's target time (UTC). Each question raises
    UsageError: a price or chance that cannot be asked about, such as a target and a stop on one side of the last close.
    MemberError: the model has no table of extremes, or for `first` only one of before.
    """

    series: SeriesId
    rows: pl.DataFrame
    chances: Chances

    def touch(self, prices: Sequence[float]) -> list[dict[str, Any]]:
        """Return `price`, `side`, `probability` and `by` of each price and step: the chance that it is touched."""
        last_close = float(self.chances.last_close)
        asked = [{"price": price, "side": SIDES[price < last_close]} for price in prices]
        return self._by_step(asked, self.chances.touch)

    def above(self, prices: Sequence[float]) -> list[dict[str, Any]]:
        """Return `price`, `probability` and `by` of each price and step: the chance of a close above it."""
        return self._by_step([{"price": price} for price in prices], self.chances.above)

    def first(self, target: float, stop: float) -> list[dict[str, Any]]:
        """Return `target_first`, `stop_first`, `neither` and `by` of each step, with `target`, `stop` and `side`."""
        with _errors_of(self.series):
            chances = self.chances.first(target, stop).tolist()
        asked = {"target": target, "stop": stop, "side": "long" if target > stop else "short"}
        return [
            asked | {"target_first": won, "stop_first": lost, "neither": max(1 - won - lost, 0.0), "by": by}
            for (won, lost), by in zip(chances, self.rows["target_time"], strict=True)
        ]

    def stops(self, chances: Sequence[float]) -> list[dict[str, Any]]:
        """Return `probability`, `side`, `price` and `by`: the prices touched by the last step with some chances."""
        by = self.rows["target_time"][-1]
        with _errors_of(self.series):
            return [
                {"probability": c, "side": side, "price": float(self.chances.stop(c, side)[-1]), "by": by}
                for c in chances
                for side in SIDES
            ]

    def table(self) -> Extremes:
        """Return the model's table of extremes."""
        with _errors_of(self.series):
            return self.chances.table

    def _by_step(
        self, asked: Sequence[dict[str, Any]], chance: Callable[[Sequence[float]], np.ndarray]
    ) -> list[dict[str, Any]]:
        """Return what is asked about each `price`, for each step with its chance."""
        with _errors_of(self.series):
            chances = chance([about["price"] for about in asked]).tolist()
        times = self.rows["target_time"].to_list()
        return [
            {**about, "probability": probability, "by": by}
            for about, of_price in zip(asked, chances, strict=True)
            for probability, by in zip(of_price, times, strict=True)
        ]


def chances_of(home: Path, series: SeriesId, rows: pl.DataFrame) -> PriceChances:
    """Return the chances of the newest forecast of a series by the packaged model; `rows`: its steps, at least one.

    Raises:
        MemberError: that model is not the one that forecast (another version, or other weights under its name), or is
            damaged.
    """
    made_by, weights = rows["model_version"][0], rows["weights_sha256"][0]
    try:
        model = read_packaged(series.packaged(home))
        # Rows of before do not say which weights made them.
        if model.model_version == made_by and weights in (None, model.weights_sha256):
            close = rows.select(QUANTILE_COLUMNS).to_numpy()
            return PriceChances(series, rows, Chances(model.extremes(), close, rows["last_close"][0]))
    except DamagedError as error:
        raise MemberError(
            f"the packaged model of {series} is damaged: `{forecast_command(series)}` packages it again"
        ) from error
    if model.model_version == made_by:
        raise MemberError(
            f"the newest forecast of {series} was made by other weights than those that serve as {made_by} now: "
            f"forecast once the next candle has closed, with `{forecast_command(series)}`"
        )
    raise MemberError(
        f"the newest forecast of {series} is of {made_by}, and {model.model_version} serves now: forecast with it "
        f"first, with `{forecast_command(series)}`"
    )


@contextmanager
def _errors_of(series: SeriesId) -> Iterator[None]:
    """Tell the library's errors as those of a series."""
    try:
        yield
    except PriceError as error:
        raise UsageError(f"{series}: {error}", code="price", field="") from error
    except ModelError as error:
        raise MemberError(f"{series}: {error}") from error
