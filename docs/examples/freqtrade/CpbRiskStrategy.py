"""A freqtrade strategy whose stakes and stops follow cpb's forecast. Copy it to `user_data/strategies/`.

Put the models into `user_data/cpb/SYMBOL/TIMEFRAME/`, such as `user_data/cpb/BTCUSDT/1h/`.
"""

from freqtrade.strategy import IStrategy
from pandas import DataFrame

from cpbmodels.freqtrade import STARTUP_CANDLES, RiskFromForecast


class CpbRiskStrategy(RiskFromForecast, IStrategy):
    """YOUR entries and exits; cpb decides how much is at stake and where the stop lies."""

    INTERFACE_VERSION = 3
    timeframe = "1h"
    startup_candle_count = STARTUP_CANDLES
    process_only_new_candles = True
    can_short = False
    minimal_roi = {"0": 10.0}  # noqa: RUF012  (freqtrade's own way; 1000 %: exits are the strategy's and the stop's)
    stoploss = -0.20  # the hard limit; the forecast's stop lies above it

    cpb_horizon = 10  # candles ahead for which risk is measured and the stop is set
    cpb_stop_chance = 0.05  # the chance that a low touches the stop within these candles
    cpb_target_risk = 0.005  # share of the wallet that a move of one forecast sigma gains or loses

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
        dataframe.loc[crossed & (dataframe["volume"] > 0), "enter_long"] = 1
        return dataframe

    def populate_exit_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        """PLACEHOLDER: your own exit."""
        dataframe.loc[dataframe["fast"] < dataframe["slow"], "exit_long"] = 1
        return dataframe
