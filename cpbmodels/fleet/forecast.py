"""Forecasts as users read them: in prices, after the newest candle or after every one, and as joint paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from cpbmodels.data.chances import Bracket, Chances, Direction, Numbers, Pairs
from cpbmodels.data.extremes import Extremes
from cpbmodels.data.paths import Paths, coin_factors, draw_closes
from cpbmodels.data.prediction import forecast_rows, to_pandas
from cpbmodels.data.series import Series, microseconds
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.data.wide import LONG, LOOKBACK_DAYS, WIDE_COLUMNS
from cpbmodels.errors import ModelError, grouped, printable
from cpbmodels.fleet.model import Model
from cpbmodels.fleet.predict import predict

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class QuantilePaths(Mapping[Any, np.ndarray]):
    """Prices [H] by level: `paths[0.05]`, `paths["q05"]` or `paths[0]`; `.array` is [H, 19]."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __getitem__(self, key: float | str) -> np.ndarray:
        if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
            return self.array[:, int(key)]
        level = float(key[1:]) / 100 if isinstance(key, str) else float(key)
        # Close is enough: a level computed as 0.1 + 0.2 is not the float 0.3.
        columns = np.flatnonzero(np.isclose(QUANTILES, level))
        if not len(columns):
            raise KeyError(f"no quantile {key!r}: the levels are 0.05, 0.10 .. 0.95")
        return self.array[:, int(columns[0])]

    def __iter__(self) -> Iterator[float]:
        return iter(QUANTILES.tolist())

    def __len__(self) -> int:
        return len(QUANTILES)


@dataclass(frozen=True)
class Forecast:
    """What comes after the series' last usable candle, in prices.

    `close[q]`: [H] for q = 0.05 .. 0.95. `candle`: float64 [H, 4], the median open, high, low, close.
    `probabilities`: [3] up, flat, down for a classifier, else None. `issued_row` is the last candle used, in `series`.
    `extremes`: the model's table of extremes, if it has one.
    """

    series: Series
    close: QuantilePaths
    candle: np.ndarray
    last_close: float
    issued_row: int
    probabilities: np.ndarray | None = None
    extremes: Extremes | None = None

    @property
    def issued_at(self) -> datetime:
        """Close of the last candle used, UTC; ModelError if the series has no times."""
        return self.series.end_of(self.issued_row)

    def touch(self, price: Numbers) -> np.ndarray:
        """The chance that the high (of a price above the last close) or the low (below) has reached it by each step.

        float64 [H] of one price, [K, H] of K prices; 1 at the last close.

        Raises:
            ModelError: a price is not a number above 0; the model has no table of extremes, or is a classifier.
        """
        return self._chances.touch(price)

    def stop(self, probability: float, side: str) -> np.ndarray:
        """The price, float64 [H], that is touched within each step with this chance; side: "up" or "down".

        Raises:
            ModelError: the probability is not between 0 and 1, the side is neither; or as in `touch`.
        """
        return self._chances.stop(probability, side)

    def first(self, target: Numbers, stop: Numbers) -> np.ndarray:
        """The chances that the target, and that the stop, is reached first by each step; the rest: neither is.

        Target and stop lie on opposite sides of the last close: the target above of a long position, below of a short.
        A candle that reaches both counts for the stop.

        float64 [H, 2] of two prices, [K, H, 2] of vectors, which broadcast.

        Raises:
            ModelError: a price is not a number above 0; both lie on one side, or at the close; the model is a
                classifier, has no table of extremes, or one of an earlier version, which cannot tell.
        """
        return self._chances.first(target, stop)

    def above(self, price: Numbers) -> np.ndarray:
        """The chance that the close of each step lies above a price: float64 [H], or [K, H] of K prices.

        Raises:
            ModelError: a price is not a number above 0; the model is a classifier.
        """
        return self._chances.above(price)

    def bracket(self, chance: float = 0.05, reward: float = 2, side: Direction = "long") -> Bracket:
        """A stop that is touched within the horizon with a chance, a target `reward` times as far, and their chances.

        side: "long" (the stop below the last close) or "short". `Bracket.break_even` is the share of decided trades
        that must reach the target for no loss before fees: 1 / (1 + reward).

        Raises:
            ModelError: an impossible chance, reward or side; or as in `first`.
        """
        return self._chances.bracket(chance, reward, side)

    @property
    def _chances(self) -> Chances:
        check_forecasts_prices(self.probabilities)
        return Chances(self.extremes, self.close.array, self.last_close)

    def to_frame(
        self, touch: Numbers = (), stop: Numbers = (), first: Pairs = (), above: Numbers = ()
    ) -> pl.DataFrame:
        """Rows `issued_at step target_time q05 … q95 q50_open q50_high q50_low`, a row for each step, in prices.

        Args:
            touch: prices; of each a column such as `touch_98000`, its chances (`Forecast.touch`).
            stop: chances; of each the columns `stop_up_0.05` and `stop_down_0.05`, prices (`Forecast.stop`).
            first: pairs (target, stop) of prices, such as [(107000, 103000)]; of each the columns
                `target_first_107000_103000` and `stop_first_107000_103000`, chances (`Forecast.first`).
            above: prices; of each a column such as `above_105000`, its chances (`Forecast.above`).

        Raises:
            ModelError: the series has no times, the model is a classifier, which forecasts no price; or as in `touch`,
                `stop`, `first` and `above`.
        """
        check_forecasts_prices(self.probabilities)
        rows = forecast_rows(
            [self.issued_at], self.series.step_seconds, self.close.array[None], self.candle[None]
        )
        return rows.with_columns(**self._chances.columns(touch, stop, first, above))

    def to_pandas(
        self, touch: Numbers = (), stop: Numbers = (), first: Pairs = (), above: Numbers = ()
    ) -> pd.DataFrame:
        """The rows of `to_frame` for pandas, without pyarrow (which polars' own `to_pandas` needs)."""
        return to_pandas(self.to_frame(touch, stop, first, above))

    def paths(self, n: int = 1000, seed: int = 0) -> Paths:
        """n joint paths of the close over the horizon; `Paths.close` is [1, n, H]. See `cpbmodels.paths`."""
        return paths([self], n, seed)

    def __repr__(self) -> str:
        """One line: which candles follow what, and the last step's median and 90 % interval."""
        name = printable(f"{self.series.symbol or '-'} {self.series.timeframe}".strip(), keep="")
        timed = self.series.times is not None
        when = f"issued {self.issued_at:%Y-%m-%d %H:%M} UTC" if timed else f"after row {self.issued_row}"
        if self.probabilities is not None:
            chances = dict(zip(("up", "flat", "down"), self.probabilities.round(3).tolist(), strict=True))
            return f"<Forecast {name}, {when}: {chances}>"
        last_step = (self.close[q][-1] for q in (0.05, 0.5, 0.95))
        close, low, middle, high = (grouped(price, 6) for price in (self.last_close, *last_step))
        return (
            f"<Forecast {name}, {when}: {len(self.candle)} candles, close {close} -> {middle} "
            f"(90 %: {low} to {high})>"
        )


def forecast_all(members: Sequence[Model], series: Sequence[Series]) -> list[Forecast]:
    """Live forecasts of member i after the last usable candle of series i, in prices."""
    recent = [_recent(candles, member) for member, candles in zip(members, series, strict=True)]
    newest = [np.array([s.newest_origin(m.context)]) for m, s in zip(members, recent, strict=True)]
    forecasts = []
    for prediction, cut, candles in zip(predict(members, recent, newest), recent, series, strict=True):
        # Rows of the cut, as rows of the whole series, which the forecast shows.
        row = int(prediction.origins[0]) + len(candles) - len(cut)
        last = float(candles.prices[row, 3])
        chances = prediction.probabilities[0] if prediction.probabilities is not None else None
        close = QuantilePaths(last * np.exp(prediction.quantiles[0]))
        candle = last * np.exp(prediction.candle[0])
        forecasts.append(Forecast(candles, close, candle, last, row, chances, prediction.extremes))
    return forecasts


def paths(forecasts: Sequence[Forecast], n: int = 1000, seed: int = 0) -> Paths:
    """Joint paths of several coins, in prices: margins are the forecasts' quantiles, n scenarios that hold for all.

    Steps depend as a random walk's do, and coins as the log-returns before the forecasts (`cpbmodels.data.paths`).

    Raises:
        ModelError: a classifier's forecast; forecasts with different timeframes, horizons or times of issue; or several
            coins without times, with too few common candles, or with a price that never moves.
    """
    if not isinstance(forecasts, Sequence) or {type(f) for f in forecasts} != {Forecast}:
        raise ModelError("There are no forecasts to draw paths from: give a list of model.forecast(series).")
    for forecast in forecasts:
        check_forecasts_prices(forecast.probabilities)
    if len(forecasts) > 1 and len({(f.series.timeframe, len(f.candle), f.issued_at) for f in forecasts}) > 1:
        raise ModelError(
            "Joint paths need forecasts of one timeframe, horizon and time of issue; these differ: draw them apart."
        )
    factors = coin_factors([f.series for f in forecasts], [f.issued_row for f in forecasts])
    close = draw_closes(np.stack([f.close.array for f in forecasts]), factors, n, seed)
    return Paths(tuple(f.series.symbol for f in forecasts), close)


def predict_rows(
    member: Model,
    series: Series,
    since: datetime | str | None = None,
    **asked: Any,
) -> pl.DataFrame:
    """The forecasts of every origin from `since` on (UTC close of the last candle used) as rows, in prices.

    asked: as in `Chances.columns`.

    Raises:
        ModelError: see `Forecast.to_frame`; also when `since` is not an aware time.
    """
    origins = np.flatnonzero(series.usable(member.context)).astype(np.int64)
    if since is not None:
        # `since` is a close, and rows are known by the time at which they open.
        first = microseconds(since) - series.step_seconds * 1_000_000
        assert series.times is not None or series.end_of(0)  # which raises
        origins = origins[series.times[origins] >= first]  # type: ignore[index]
    forecasts = predict([member], [series], [origins])[0]
    check_forecasts_prices(forecasts.probabilities)
    last = series.prices[origins, 3]
    issued = [series.end_of(int(row)) for row in origins]
    close, candle = (last[:, None, None] * np.exp(moves) for moves in (forecasts.quantiles, forecasts.candle))
    rows = forecast_rows(issued, series.step_seconds, close, candle)
    columns = Chances(forecasts.extremes, close, last).columns(**asked)
    return rows.with_columns(**{name: values.ravel() for name, values in columns.items()})


def check_forecasts_prices(probabilities: np.ndarray | None) -> None:
    """Raise ModelError for a classifier: it forecasts up, flat or down and no price."""
    if probabilities is not None:
        raise ModelError(
            "A classifier forecasts up, flat or down and no price: read `forecast.probabilities`, or use "
            "`cpbmodels.predict`."
        )


def _recent(series: Series, member: Model) -> Series:
    """The series' last rows if a forecast can be made from them: years of history need not be copied."""
    reach = (
        LOOKBACK_DAYS * 86_400 // series.step_seconds if {*member.config["features"]} & {*WIDE_COLUMNS} else 0
    )
    # 256 rows to spare, should the newest origin lie before a gap; if it lies still further back, the whole series.
    cut = series.tail(member.context + 256 + max(reach, reach and LONG[-1]))
    return cut if cut.usable(member.context).any() else series
