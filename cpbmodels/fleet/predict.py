"""Forecasts of many models together: models of equal options are stacked into one fleet, windows into batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cpbmodels.arch.heads import Classes
from cpbmodels.arch.options import differing
from cpbmodels.data.paths import Paths, coin_factors, draw_closes
from cpbmodels.data.series import Prediction, Series, forecast_rows, microseconds, to_pandas
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.data.touch import Numbers, Touch
from cpbmodels.data.wide import LONG, LOOKBACK_DAYS, WIDE_COLUMNS
from cpbmodels.errors import ModelError, printable
from cpbmodels.fleet.bank import Bank, Scaling
from cpbmodels.fleet.net import Net, windows_in_flight

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from cpbmodels.fleet.member import Member


MAX_STACK_BYTES = 16_000_000  # weights stacked at once on a CPU: they stay in its cache from step to step
MAX_ONE_THREAD_WINDOWS = 256
"""At most as many windows are forecast on one CPU thread, as live forecasts are: the products are small, and on a busy
machine two threads waited for each other 25 times as long as one thread worked."""
MAX_MOVE = 25
"""Largest log-return of a forecast. No coin moves e^25-fold within a horizon, and paths, which extrapolate the
outermost quantiles up to 22 times as far, stay finite in float64 (e^709)."""
SURE_MOVE, MAX_UNITS = 1.0, 20.0
"""A forecast may move the price e-fold, and further only within 20 units of volatility x sqrt(step): the volatility is
large after a crash. The 5 and 95 % quantiles of a trained model lie within about 3 units."""


class QuantilePaths(Mapping[Any, np.ndarray]):
    """Prices [H] by level: `paths[0.05]`, `paths["q05"]` or `paths[0]`; `.array` is [H, 19]."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __getitem__(self, key: float | str) -> np.ndarray:
        if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
            return self.array[:, int(key)]
        level = float(key[1:]) / 100 if isinstance(key, str) else float(key)
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
    `touch_table`: as `Prediction.touch`.
    """

    series: Series
    close: QuantilePaths
    candle: np.ndarray
    last_close: float
    issued_row: int
    probabilities: np.ndarray | None = None
    touch_table: np.ndarray | None = None

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
        return self._touch.chance(price)

    def stop(self, probability: float, side: str) -> np.ndarray:
        """The price, float64 [H], that is touched within each step with this chance; side: "up" or "down".

        Raises:
            ModelError: the probability is not between 0 and 1, the side is neither; or as in `touch`.
        """
        return self._touch.stop(probability, side)

    @property
    def _touch(self) -> Touch:
        check_forecasts_prices(self.probabilities)
        return Touch(self.touch_table, self.close.array, self.last_close)

    def to_frame(self, touch: Numbers = (), stop: Numbers = ()) -> pl.DataFrame:
        """Rows `issued_at step target_time q05 … q95 q50_open q50_high q50_low`, a row for each step, in prices.

        Args:
            touch: prices; of each a column such as `touch_98000`, its chances (`Forecast.touch`).
            stop: chances; of each the columns `stop_up_0.05` and `stop_down_0.05`, prices (`Forecast.stop`).

        Raises:
            ModelError: the series has no times, the model is a classifier, which forecasts no price; or as in `touch`.
        """
        check_forecasts_prices(self.probabilities)
        rows = forecast_rows(
            [self.issued_at], self.series.step_seconds, self.close.array[None], self.candle[None]
        )
        return (
            rows.with_columns(**self._touch.columns(touch, stop)) if np.size(touch) or np.size(stop) else rows
        )

    def to_pandas(self, touch: Numbers = (), stop: Numbers = ()) -> pd.DataFrame:
        """The rows of `to_frame` for pandas, without pyarrow (which polars' own `to_pandas` needs)."""
        return to_pandas(self.to_frame(touch, stop))

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
        low, middle, high = (self.close[q][-1] for q in (0.05, 0.5, 0.95))
        return (
            f"<Forecast {name}, {when}: {len(self.candle)} candles, close {self.last_close:.6g} -> {middle:.6g} "
            f"(90 %: {low:.6g} to {high:.6g})>"
        )


def predict(
    members: Sequence[Member],
    series: Sequence[Series],
    origins: Sequence[np.ndarray],
    device: str = "cpu",
) -> list[Prediction]:
    """Forecasts of member i on series i from origins i (int64 [N_i]), all together; of an average its parts' mean.

    Raises:
        ModelError: a member's forecast is not finite or moves the price absurdly far (`MAX_UNITS`); or members, series
            and origins do not match.
    """
    forecasts = []
    for forecast in predict_each(members, series, origins, device):
        if isinstance(forecast, ModelError):
            raise forecast
        forecasts.append(forecast)
    return forecasts


def predict_each(
    members: Sequence[Member],
    series: Sequence[Series],
    origins: Sequence[np.ndarray],
    device: str = "cpu",
) -> list[Prediction | ModelError]:
    """`predict` for callers that do without some members: the error of a member whose forecasts are none, in place."""
    if not len(members) == len(series) == len(origins):
        raise ModelError("predict needs one series and one array of origins per member.")
    parts = [
        (part, index, places)
        for index, (member, places) in enumerate(zip(members, origins, strict=True))
        for part in member.parts or (member,)
    ]
    models, owners, rows = zip(*parts, strict=True) if parts else ((), (), ())
    forecasts = _predict(models, [series[i] for i in owners], rows, torch.device(device))
    by_member: dict[int, list[Prediction]] = defaultdict(list)
    for owner, forecast in zip(owners, forecasts, strict=True):
        by_member[owner].append(forecast)
    return [_checked(_mean(by_member[i]), members[i], series[i]) for i in range(len(members))]


def _checked(forecast: Prediction, member: Member, series: Series) -> Prediction | ModelError:
    """The forecast, or the error that it is none: no later step could tell it from a valid forecast."""
    for part in (forecast.quantiles, forecast.candle, forecast.probabilities):
        if part is not None and not ((size := np.abs(part)) <= SURE_MOVE).all():
            steps = np.sqrt(np.arange(1, part.shape[1] + 1))
            units = np.nan_to_num(series.volatility[forecast.origins])[:, None] * steps
            most = np.clip(MAX_UNITS * units, SURE_MOVE, MAX_MOVE).reshape(
                *units.shape, *[1] * (part.ndim - 2)
            )
            if not (size <= most).all():
                return ModelError(
                    f"{series.label}: a forecast is not finite or moves the price further than {MAX_UNITS:g} times its "
                    f"volatility: the candles before its origin lack columns, or {member!r} is damaged: take origins "
                    "of Series.usable, or train the model again."
                )
    return forecast if member.touch is None else replace(forecast, touch=member.touch.double().numpy())


def _mean(forecasts: Sequence[Prediction]) -> Prediction:
    """The mean of several models' forecasts from the same origins; of a single model its own."""
    first = forecasts[0]
    if len(forecasts) == 1:
        return first
    quantiles = np.mean([forecast.quantiles for forecast in forecasts], axis=0)
    return Prediction(first.origins, quantiles, np.mean([forecast.candle for forecast in forecasts], axis=0))


def _predict(
    members: Sequence[Member],
    series: Sequence[Series],
    origins: Sequence[np.ndarray],
    device: torch.device,
) -> list[Prediction]:
    """`predict` for models that are not averages."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, member in enumerate(members):
        groups[member.stacking_key].append(index)
    chunks = []
    for indices in groups.values():
        # On a CPU cut to MAX_STACK_BYTES: a decoder reads its weights once per forecast step.
        most = MAX_STACK_BYTES // members[indices[0]].rows.nbytes if device.type == "cpu" else len(indices)
        size = max(most, 1)
        chunks += [indices[first : first + size] for first in range(0, len(indices), size)]
    cores, on_cpu = torch.get_num_threads(), device.type == "cpu"
    side_by_side = on_cpu and len(chunks) > 1 and cores > 1
    few = on_cpu and sum(map(len, origins)) <= MAX_ONE_THREAD_WINDOWS

    def predict_chunk(indices: list[int]) -> list[Prediction]:
        torch.set_num_threads(1 if side_by_side or few else cores)  # of this thread
        return _predict_group(
            [members[i] for i in indices],
            [series[i] for i in indices],
            [np.asarray(origins[i], dtype=np.int64) for i in indices],
            device,
        )

    try:
        with ThreadPoolExecutor(cores) as pool:
            made = list((pool.map if side_by_side else map)(predict_chunk, chunks))
    finally:
        torch.set_num_threads(cores)
    places = [index for indices in chunks for index in indices]
    forecasts = [forecast for chunk in made for forecast in chunk]
    return [forecast for _, forecast in sorted(zip(places, forecasts, strict=True), key=lambda pair: pair[0])]


@torch.no_grad()
def _predict_group(
    members: list[Member], series: list[Series], origins: list[np.ndarray], device: torch.device
) -> list[Prediction]:
    """Models of one stacking key. E rows per model are E members of the fleet that see the same windows."""
    first, E = members[0], len(members[0].rows)
    for candles, places in zip(series, origins, strict=True):
        _check_origins(candles, places, first.context)
    net = first.net(device)
    options = differing([member.options for member in members for _ in range(E)], device)
    net = net.with_rows(options) if options else net
    bank = Bank.build(series, first.options, device, first.dtype)
    # int64 [K, longest >= 1], filled up with a valid origin whose forecasts are cut off again
    longest = max(1, *map(len, origins))
    padded = np.stack(
        [np.pad(rows, (0, longest - len(rows)), constant_values=first.context - 1) for rows in origins]
    )
    index = torch.as_tensor(padded + np.array(bank.starts)[:, None], device=device).repeat_interleave(E, 0)
    batch = max(windows_in_flight(first.context, device) // len(index), 1)
    sigma = np.stack([candles.volatility[rows] for candles, rows in zip(series, padded, strict=True)])
    names = ("rows", "mean", "inverse", "table")  # [K x E, ...] each
    stacks = [torch.cat([getattr(member, name) for member in members]).to(device) for name in names]
    whole: list[np.ndarray] = []
    for start in range(0, longest, batch):
        now = slice(start, start + batch)
        parts = _run(net, stacks, bank, index[:, now], sigma[:, now])
        whole = whole or [np.empty((len(members), longest, *part.shape[2:])) for part in parts]
        for array, part in zip(whole, parts, strict=True):
            array[:, now] = part
    # without the padding
    return [Prediction(rows, *(array[k, : len(rows)] for array in whole)) for k, rows in enumerate(origins)]


def _run(net: Net, stacks: list[Tensor], bank: Bank, index: Tensor, sigma: np.ndarray) -> list[np.ndarray]:
    """Quantiles, candles and (classifier) probabilities of one batch of windows [K x E, B], means of the E rows.

    `stacks`: rows, mean, inverse and table of the K x E members. `sigma` [K, B] is the volatility at the origins; the
    results are in log-return.
    """
    rows, mean, inverse, table = stacks
    window = net.gather(bank, index, Scaling(mean, inverse), future=False)
    raw = net.raw(window, net.layout.views(rows), None)
    outputs = list(net.head.forecast(raw, table))
    if isinstance(net.head, Classes):
        outputs.append(net.head.probabilities(raw))
    arrays = [output.double().cpu().numpy() for output in outputs]
    arrays = [a.reshape(len(sigma), len(a) // len(sigma), *a.shape[1:]).mean(1) for a in arrays]
    unit = sigma[:, :, None, None] * np.sqrt(np.arange(1, arrays[0].shape[2] + 1))[:, None]
    return [array * unit if k < 2 else array for k, array in enumerate(arrays)]


def _check_origins(series: Series, origins: np.ndarray, context: int) -> None:
    if len(series) < context:
        raise ModelError(
            f"{series.label}: {len(series)} rows are less than one context of {context}: give it more history."
        )
    if len(origins) and (origins.min() < context - 1 or origins.max() >= len(series)):
        raise ModelError(
            f"{series.label}: origins must lie in {context - 1} .. {len(series) - 1} (context {context})."
        )


def forecast_all(members: Sequence[Member], series: Sequence[Series]) -> list[Forecast]:
    """Live forecasts of member i after the last usable candle of series i, in prices."""
    recent = [_recent(candles, member) for member, candles in zip(members, series, strict=True)]
    newest = [np.array([s.newest_origin(m.context)]) for m, s in zip(members, recent, strict=True)]
    forecasts = []
    for prediction, cut, candles in zip(predict(members, recent, newest), recent, series, strict=True):
        row = int(prediction.origins[0]) + len(candles) - len(cut)
        last = float(candles.prices[row, 3])
        chances = prediction.probabilities[0] if prediction.probabilities is not None else None
        close = QuantilePaths(last * np.exp(prediction.quantiles[0]))
        candle = last * np.exp(prediction.candle[0])
        forecasts.append(Forecast(candles, close, candle, last, row, chances, prediction.touch))
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
    member: Member,
    series: Series,
    since: datetime | str | None = None,
    touch: Numbers = (),
    stop: Numbers = (),
) -> pl.DataFrame:
    """The forecasts of every origin from `since` on (UTC close of the last candle used) as rows, in prices.

    Raises:
        ModelError: see `Forecast.to_frame`; also when `since` is not an aware time.
    """
    origins = np.flatnonzero(series.usable(member.context)).astype(np.int64)
    if since is not None:
        first = microseconds(since) - series.step_seconds * 1_000_000
        assert series.times is not None or series.end_of(0)  # which raises
        origins = origins[series.times[origins] >= first]  # type: ignore[index]
    forecasts = predict([member], [series], [origins])[0]
    check_forecasts_prices(forecasts.probabilities)
    last = series.prices[origins, 3]
    issued = [series.end_of(int(row)) for row in origins]
    close, candle = (last[:, None, None] * np.exp(moves) for moves in (forecasts.quantiles, forecasts.candle))
    rows = forecast_rows(issued, series.step_seconds, close, candle)
    if not (np.size(touch) or np.size(stop)):
        return rows
    columns = Touch(forecasts.touch, close, last).columns(touch, stop)
    return rows.with_columns(**{name: values.ravel() for name, values in columns.items()})


def check_forecasts_prices(probabilities: np.ndarray | None) -> None:
    """Raise ModelError for a classifier: it forecasts up, flat or down and no price."""
    if probabilities is not None:
        raise ModelError(
            "A classifier forecasts up, flat or down and no price: read `forecast.probabilities`, or use "
            "`cpbmodels.predict`."
        )


def _recent(series: Series, member: Member) -> Series:
    """The series' last rows if a forecast can be made from them: years of history need not be copied."""
    reach = (
        LOOKBACK_DAYS * 86_400 // series.step_seconds if {*member.config["features"]} & {*WIDE_COLUMNS} else 0
    )
    cut = series.tail(member.context + 256 + max(reach, reach and LONG[-1]))
    return cut if cut.usable(member.context).any() else series
