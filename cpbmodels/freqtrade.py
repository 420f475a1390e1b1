"""Forecasts as columns of a candle table, and position risk from them, for freqtrade; the columns serve any backtester.

`add_forecasts` needs pandas alone; freqtrade itself is imported when its own arithmetic is called. Nothing here is an
entry signal: what cpb forecasts is the width of the coming move, not its direction.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import polars as pl

from cpbmodels.data import FEATURE_WARMUP, INTERVAL_SECONDS
from cpbmodels.data.candles import Candles, check_candles, check_series, read_table
from cpbmodels.data.chances import Chances, Direction, Numbers, numbers
from cpbmodels.data.columns import PRICES, feature_frame, is_candle
from cpbmodels.data.extremes import SIDES
from cpbmodels.data.numbers import Decimal
from cpbmodels.data.paths import SCORES
from cpbmodels.data.prediction import QUANTILE_COLUMNS
from cpbmodels.data.series import Series, microseconds
from cpbmodels.errors import ModelError
from cpbmodels.fleet.forecast import check_forecasts_prices
from cpbmodels.fleet.load import load
from cpbmodels.fleet.member import Member, doubled, other_symbol
from cpbmodels.fleet.predict import predict

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

STARTUP_CANDLES = 699
"""For `startup_candle_count`: the longest rolling window (168) and 531 candles more, after which the EWMA volatility's
memory of its first candle (0.96^531 = 4e-10) is below the digits of the columns. Kraken serves 720 and no more."""

SIGNIFICANT_DIGITS = 6
"""Of the columns. Equal candles must give equal bits regardless of the rows before and after them, or freqtrade's
analyses report a bias: so models run in float64 here, and what sums in a different order change (1e-13) is cut off.
Chances have a decimal less: near 0, a change of 1e-13 is in their significant digits."""

BRACKET_COLUMNS = ("target", "target_first", "stop_first")
"""Of each chance, reward and side."""


def add_forecasts(
    dataframe: pd.DataFrame,
    pair: str,
    timeframe: str,
    model: Member | str | Path,
    *,
    steps: Iterable[int] | None = None,
    stops: Numbers = (),
    rewards: Numbers = (),
    known_until: datetime | str | None = None,
    columns: Mapping[str, str] | None = None,
    decimal: Decimal | None = None,
) -> pd.DataFrame:
    """Return the candles with the forecast made at each candle's close, for all rows in one call.

    Args:
        dataframe: candles as freqtrade has them, oldest first: `date` (open time, UTC), `open high low close volume`;
            other columns are kept. Any pandas table that `Series.from_frame` reads will do.
        pair: such as BTC/USDT, for messages.
        timeframe: length of a candle, such as 1h; the model must have been trained on it.
        model: a model, or its folder (read once a process).
        steps: which of the candles ahead, from 1 to the model's horizon; None: all of them.
        stops: chances, such as 0.05.
        rewards: distances of targets, such as 3, in distances of each stop from the close (R).
        known_until: the end of what the model has seen, if it does not say so itself; of two times the later counts.
        columns, decimal: how a table of other names, or of texts, is read, as in `Series.from_frame`.

    Returns:
        The table with new columns for every step h, rounded to 6 digits, chances to 5 decimals:
        `cpb_sigma_h`, the forecast standard deviation of the log-return over the next h candles: half the distance
        between its 15.87 % and 84.13 % quantiles, which for a normal distribution is the same (fatter tails add to it);
        `cpb_q05_h`, `cpb_q10_h` … `cpb_q95_h`, quantiles of the close h candles ahead, in prices;
        `cpb_stop_up_0.05_h`, `cpb_stop_down_0.05_h`, the prices that a high or a low reaches within h candles with this
        chance; with rewards, `cpb_target_long_0.05_3R_h`, the price three times as far above the close as the stop
        lies below it, and `cpb_target_first_long_0.05_3R_h`, `cpb_stop_first_long_0.05_3R_h`, the chances that this
        target, and that this stop, is reached first within h candles (in the rest, neither is); `short` the other way
        round, NaN where such a target does not lie above 0.
        NaN without a forecast: before the model's `known_until`, in the first 168 candles (rolling windows) and
        as many after a hole or an impossible candle, and in a last candle that has not closed.

    Raises:
        ModelError: the model does not state where its training data ends, forecasts no price or belongs to another
            timeframe, or has no table for `stops` or `rewards`; a step, a chance, a reward or a column is invalid.
    """
    import pandas as pd

    member = doubled(_load(str(model)) if isinstance(model, (str, Path)) else model)
    if member.config.get("timeframe") not in ("", None, timeframe):
        raise ModelError(
            f"{pair}: the model was trained on {member.config['timeframe']} candles and these are {timeframe}: use a "
            "model of this timeframe."
        )
    if why := other_symbol(member, pair):  # one model for all pairs is the strategy's choice
        log.warning("%s: %s", pair, why)
    first = _first_time(member, known_until, pair)
    wanted = _steps(steps, member.horizon)
    # Each name once: pandas would keep two columns of one name.
    chances, times = (
        [*{f"{value:g}": value for value in numbers(asked).ravel().tolist()}.values()]
        for asked in (stops, rewards)
    )
    if times and not (chances and all(0 < reward < np.inf for reward in times)):
        raise ModelError(
            f"rewards {times} are impossible: give numbers above 0, and the chances of their stops."
        )
    kinds = ["sigma", *QUANTILE_COLUMNS, *(f"stop_{side}_{p:g}" for p in chances for side in SIDES)]
    for p, reward, direction in product(chances, times, get_args(Direction)):
        kinds += [f"{name}_{direction}_{p:g}_{reward:g}R" for name in BRACKET_COLUMNS]
    names = [f"cpb_{name}_{step}" for step in wanted for name in kinds]
    values = np.full((len(dataframe), len(wanted), len(kinds)), np.nan)
    candles = None
    if len(dataframe) >= member.context:
        candles = _possible_candles(dataframe, pair, timeframe, columns, decimal)
    if candles and len(candles.rows) >= member.context:
        series = Series.from_columns(feature_frame(candles.frame, timeframe), pair, timeframe)
        assert series.times is not None
        closes = series.times + series.step_seconds * 1_000_000
        origins = np.flatnonzero(series.usable(member.context) & (closes >= first)).astype(np.int64)
        if len(origins):
            prediction = predict([member], [series], [origins])[0]
            check_forecasts_prices(prediction.probabilities)
            last = series.prices[origins, 3]
            close = last[:, None, None] * np.exp(prediction.quantiles)
            asked = Chances(prediction.extremes, close, last)
            chosen = [step - 1 for step in wanted]
            prices = [
                forecast_sigma(prediction.quantiles)[:, chosen],
                *np.moveaxis(close[:, chosen], -1, 0),
                *(price[:, chosen] for price in asked.columns(stop=chances).values()),
                *_brackets(asked, chances, times, chosen),
            ]
            # By the rows of the given table: impossible candles were taken out before, and stay NaN.
            values[candles.rows[origins]] = np.stack(prices, axis=-1)
    if np.isnan(values).all():
        log.warning(
            "%s %s: no forecast in these %d candles: they end before %s, the end of the model's training data, or "
            "there are no %d candles without a gap",
            pair,
            timeframe,
            len(dataframe),
            np.datetime64(first, "us"),
            FEATURE_WARMUP + member.context,
        )
    # Significant digits, not decimals, of what is no chance: prices range from 1e-8 to 1e5.
    size = np.where(["_first_" in name for name in kinds], 1, values)
    unit = 10.0 ** (SIGNIFICANT_DIGITS - 1 - np.floor(np.log10(size)))
    rounded = (np.round(values * unit) / unit).reshape(len(dataframe), len(names))
    new = pd.DataFrame(rounded, index=dataframe.index, columns=names, copy=False)
    return pd.concat([dataframe.drop(columns=[name for name in names if name in dataframe]), new], axis=1)


class RiskFromForecast:
    """For a freqtrade strategy, before `IStrategy` in its bases: stake and stop-loss from the forecast.

    The strategy calls `add_forecasts` in `populate_indicators` and decides itself when to enter. Only candles that have
    closed by `current_time` are read.
    """

    cpb_models: str | Path = "cpb"
    """Folder, absolute or in `user_data`: one model for all pairs, or a model for each as SYMBOL/TIMEFRAME, such as
    `BTCUSDT/1h`, the layout of `cpb publish`."""
    cpb_horizon: int = 10
    """Candles ahead for which risk is measured and the stop is set."""
    cpb_stop_chance: float = 0.05
    """The chance that the stop is hit within these candles."""
    cpb_reward: float | None = None
    """The distance of a target from the close, in distances of the stop (R), such as 3. Then stop and target stay where
    they lay when the trade opened, and freqtrade (2025.5 or later) ends the trade at the target, unless the strategy
    has `use_custom_roi = False`. None: no target, and a stop that follows each candle."""
    cpb_target_risk: float = 0.005
    """Share of the wallet that a move of one `cpb_sigma` over the horizon gains or loses; two of three are smaller."""

    use_custom_stoploss = True
    use_custom_roi = True
    config: Any
    dp: Any
    timeframe: str
    wallets: Any

    def add_forecasts(self, dataframe: pd.DataFrame, metadata: dict[str, Any]) -> pd.DataFrame:
        """Return the candles with the columns that stake, stop-loss and target read; for `populate_indicators`.

        Raises:
            ModelError: as in the function `add_forecasts`; a target that this freqtrade would ignore.
        """
        # Of freqtrade's own base class: `custom_roi` below would be there, and never be called.
        if self.cpb_reward is not None and not hasattr(super(), "custom_roi"):
            raise ModelError(
                "This freqtrade would ignore the target of cpb_reward, which needs freqtrade 2025.5 or later: update "
                "it, or set cpb_reward = None."
            )
        pair = metadata["pair"]
        folder = Path(self.config["user_data_dir"]) / self.cpb_models
        # No model at the folder itself: then one for each pair below it.
        if not (folder / "config.json").is_file():
            folder = folder / pair.partition(":")[0].replace("/", "") / self.timeframe
        return add_forecasts(
            dataframe,
            pair,
            self.timeframe,
            folder,
            steps=[self.cpb_horizon],
            stops=[self.cpb_stop_chance],
            rewards=[] if self.cpb_reward is None else [self.cpb_reward],
        )

    def target_first(self, dataframe: pd.DataFrame, side: Direction = "long") -> pd.Series:
        """The chance, a row for each candle, that the target is reached before the stop within `cpb_horizon` candles.

        Both as of this candle; NaN without a forecast. For `populate_entry_trend`.

        Raises:
            ModelError: the strategy has no `cpb_reward`.
        """
        if self.cpb_reward is None:
            raise ModelError("The strategy has no target: set cpb_reward, such as 3.")
        return dataframe[f"cpb_{self._bracket('target_first', side)}_{self.cpb_horizon}"]

    def custom_stake_amount(
        self,
        pair: str,
        current_time: datetime,
        current_rate: float,
        proposed_stake: float,
        min_stake: float | None,
        max_stake: float,
        leverage: float,
        entry_tag: str | None,
        side: str,
        **kwargs: Any,
    ) -> float:
        """Target risk over forecast width, at most `max_stake`; 0, which means no trade, if there is no forecast.

        A result below `min_stake` is left to freqtrade, which raises it by at most 30 % and else does not trade: more
        stake would be more risk than was requested.
        """
        sigma = self._forecast(pair, current_time, "sigma")
        if sigma is None:
            log.debug("%s at %s: no forecast, so no trade", pair, current_time)
            return 0.0
        wallet: float = self.wallets.get_total_stake_amount()
        return min(self.cpb_target_risk * wallet / (sigma * leverage), max_stake)

    def custom_stoploss(
        self,
        pair: str,
        trade: Any,
        current_time: datetime,
        current_rate: float,
        current_profit: float,
        after_fill: bool,
        **kwargs: Any,
    ) -> float | None:
        """The price that is touched within `cpb_horizon` candles with the chance `cpb_stop_chance`, for freqtrade.

        Each new candle brings a new stop, and freqtrade moves a stop in the trade's favour only; without a forecast,
        and with `cpb_reward`, the stop stays.
        """
        from freqtrade.strategy import stoploss_from_absolute

        side = "up" if trade.is_short else "down"
        time = current_time if self.cpb_reward is None else trade.open_date_utc
        rate = self._forecast(pair, time, f"stop_{side}_{self.cpb_stop_chance:g}")
        if rate is None:
            return None
        relative: float = stoploss_from_absolute(
            rate, current_rate, is_short=trade.is_short, leverage=trade.leverage
        )
        return relative

    def custom_roi(
        self,
        pair: str,
        trade: Any,
        current_time: datetime,
        trade_duration: int,
        entry_tag: str | None,
        side: Direction,
        **kwargs: Any,
    ) -> float | None:
        """The profit at the target of the candle after which the trade opened, for freqtrade; None without a target."""
        if self.cpb_reward is None:
            return None
        rate = self._forecast(pair, trade.open_date_utc, self._bracket("target", side))
        if rate is None:
            return None
        profit: float = trade.calc_profit_ratio(rate)
        return profit

    def _bracket(self, name: str, side: Direction) -> str:
        """Which of `BRACKET_COLUMNS`, without prefix and step."""
        return f"{name}_{side}_{self.cpb_stop_chance:g}_{self.cpb_reward:g}R"

    def _forecast(self, pair: str, current_time: datetime, name: str) -> float | None:
        """The newest forecast issued by `current_time`, if it is not yet over."""
        dataframe, _ = self.dp.get_analyzed_dataframe(pair, self.timeframe)
        length = timedelta(seconds=INTERVAL_SECONDS[self.timeframe])
        # `date` is when a candle opens: it has closed if a whole candle lies between.
        row = int((dataframe["date"] <= current_time - length).sum()) - 1 if len(dataframe) else -1
        if row < 0 or dataframe["date"].iloc[row] + length * (1 + self.cpb_horizon) <= current_time:
            return None
        value = float(dataframe[f"cpb_{name}_{self.cpb_horizon}"].iloc[row])
        return value if np.isfinite(value) else None


def _brackets(
    chances: Chances, stops: Sequence[float], rewards: Sequence[float], steps: Sequence[int]
) -> Iterator[np.ndarray]:
    """`BRACKET_COLUMNS` [N, K] after K steps, counted from 0, of each stop's chance, reward and side."""
    last = chances.last_close[:, None]
    for p, reward, direction in product(stops, rewards, get_args(Direction)):
        stop = chances.stop(p, "down" if direction == "long" else "up")[:, steps]
        target = last + reward * (last - stop)
        # Of a short it may lie below 0: there is none then.
        asked = np.where(target > 0, target, last)
        first = [
            chances.first_or_nan(asked[:, place], stop[:, place])[:, step] for place, step in enumerate(steps)
        ]
        yield np.where(target > 0, target, np.nan)
        yield from np.array(first).T


@lru_cache(maxsize=256)
def _load(folder: str) -> Member:
    return load(folder)


def _first_time(member: Member, known_until: datetime | str | None, pair: str) -> int:
    """The first close, in microseconds since 1970, at which a forecast uses no candle that the model was trained on."""
    times = [microseconds(time) for time in (member.known_until, known_until) if time is not None]
    if not times:
        raise ModelError(
            f"{pair}: the model does not state where its training data ends, and a backtest on candles that it "
            "was trained on proves nothing: pass known_until, the end of its training data."
        )
    return max(times)


def _steps(steps: Iterable[int] | None, horizon: int) -> list[int]:
    wanted = list(range(1, horizon + 1)) if steps is None else list(dict.fromkeys(steps))
    wrong = [step for step in wanted if step not in range(1, horizon + 1)]
    if wrong or not wanted:
        raise ModelError(f"steps {wrong} are impossible: choose from 1 to {horizon}, the model's horizon.")
    return wanted


def _possible_candles(
    dataframe: pd.DataFrame,
    pair: str,
    timeframe: str,
    columns: Mapping[str, str] | None,
    decimal: Decimal | None,
) -> Candles | None:
    """The closed candles; None without any. Exchanges occasionally send impossible candles: they count as holes."""
    read = ["date", *PRICES, "volume"]  # where they have these names, no other column
    named = dataframe[read] if {*read} <= {*dataframe.columns} and not columns else dataframe
    table = read_table(named, pair, columns=columns, decimal=decimal)
    check_series(table, pair, timeframe)
    good = is_candle(table.frame.select(PRICES).to_numpy())
    if "volume" in table.frame.columns:
        volume = table.frame["volume"].to_numpy()
        good &= np.isfinite(volume) & (volume >= 0)
    if not good.all():
        log.warning("%s: %d invalid candles are treated as missing", pair, (~good).sum())
    if not good.any():
        return None
    return check_candles(replace(table, frame=table.frame.filter(pl.Series(good))), timeframe, "drop")


def forecast_sigma(returns: np.ndarray) -> np.ndarray:
    """[...]: half the distance between -1 and +1 on the normal scale, of quantiles [..., 19] of the log-return."""
    below = int(np.searchsorted(SCORES, -1.0)) - 1  # between the 15 % and the 20 % level
    share = (-1.0 - SCORES[below]) / (SCORES[below + 1] - SCORES[below])
    # Linear in the normal score, as paths are drawn between levels.
    low = returns[..., below] * (1 - share) + returns[..., below + 1] * share
    high = returns[..., -1 - below] * (1 - share) + returns[..., -2 - below] * share
    return (high - low) / 2
