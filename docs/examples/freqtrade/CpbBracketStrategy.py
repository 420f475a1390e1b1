"""A freqtrade strategy with a stop by cpb's forecast and a target at 3 R. Copy it to `user_data/strategies/`.

R is the distance from the close to the stop. Each trade's tag says how often such a target comes before the stop. Put
the models into `user_data/cpb/SYMBOL/TIMEFRAME/`, such as `user_data/cpb/BTCUSDT/1h/`.
"""

from freqtrade.strategy import IStrategy
from pandas import DataFrame

from cpbmodels.freqtrade import STARTUP_CANDLES, RiskFromForecast


class CpbBracketStrategy(RiskFromForecast, IStrategy):
    """YOUR entries; cpb decides how much is at stake, and where stop and target lie."""

    INTERFACE_VERSION = 3
    timeframe = "1h"
    startup_candle_count = STARTUP_CANDLES
    process_only_new_candles = True
    can_short = False
    minimal_roi = {"0": 10.0}  # noqa: RUF012  (freqtrade's own way; 1000 %: a trade ends at its target or stop)
    stoploss = -0.20  # the hard limit; the forecast's stop lies above it

    cpb_horizon = 10  # candles ahead, within which target or stop is reached, or neither
    cpb_stop_chance = 0.75  # the chance that a low touches the stop within these candles
    cpb_reward = 3.0  # the target's distance from the close, in distances of the stop
    cpb_target_risk = 0.005  # share of the wallet that a move of one forecast sigma gains or loses
    min_target_first = 0.1  # no trade where the target comes first less often

    def populate_indicators(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        """All forecasts in one call, and what your own signals need."""
        dataframe = self.add_forecasts(dataframe, metadata)
        dataframe["fast"] = dataframe["close"].rolling(12).mean()
        dataframe["slow"] = dataframe["close"].rolling(48).mean()
        return dataframe

    def populate_entry_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        """PLACEHOLDER: your own signal goes here. This crossing of two averages has no edge, and cpb claims none."""
        crossed = (dataframe["fast"] > dataframe["slow"]) & (
            dataframe["fast"].shift(1) <= dataframe["slow"].shift(1)
        )
        chance = self.target_first(dataframe)
        enter = crossed & (dataframe["volume"] > 0) & (chance >= self.min_target_first)
        says = f"{self.cpb_reward:g} R with this stop comes first in {{:.0f}} %"
        dataframe.loc[enter, "enter_long"] = 1
        dataframe.loc[enter, "enter_tag"] = (100 * chance[enter]).map(says.format)
        return dataframe

    def populate_exit_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        """No exit but target and stop; what comes after `cpb_horizon` candles is yours to say."""
        return dataframe
