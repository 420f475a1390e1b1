"""Figures that models and pipeline must agree on, each defined once."""

import math

HORIZON = 10
"""Candles that every model forecasts, unless its preset says otherwise."""

ROLLING = (1, 3, 6, 12, 24, 72, 168)
"""Windows of the rolling means, in candles."""

FEATURE_WARMUP = ROLLING[-1]
"""Candles after a listing or a hole until all features exist: the longest rolling window, a week of hours."""

EMBARGO = FEATURE_WARMUP + HORIZON
"""Candles between two spans, so that no candle is an input in one span and a target in the other."""

SEGMENT_JUMP = math.log(1.5)
"""|ln(open / close before)| above which the price level leaps: another unit or another coin, and a segment ends.

A crash moves within its candles: over 1.9 million pairs of adjacent candles of 20 coins (1h from 2017 on, 15m; LUNA's
crash included) the largest is .066 (DOGE, 2020-03-13). This is six times as much, and less than a 2:1 split.
"""

RETURNS = ("r_open", "r_high", "r_low", "r_close")
"""Columns of a candle's four prices, as ln of the price over the close before."""

CANDLE_COLUMNS = (*RETURNS, "abs_return", "log_sigma")
"""Columns of candles that a model reads unless its preset says otherwise."""

MAX_STILL_SHARE = 0.2
"""Share of a training span's candles that may stand still: above it a table was filled with the last close, and a model
would learn the filling. On Binance the largest share of 20 coins at 1h and 15m is .00007."""

FLOOR = 0.05
"""A mean |return| or range below this share of σ counts as this share: flat candles have no logarithm."""

CEILING = 100.0
"""A mean |return| or range beyond this many σ counts as this many: volatility that decays after a spike."""

INTERVAL_SECONDS = {
    "1s": 1,
    "1m": 60,
    "3m": 180,
    "5m": 300,
    "15m": 900,
    "30m": 1800,
    "1h": 3600,
    "2h": 7200,
    "4h": 14400,
    "6h": 21600,
    "8h": 28800,
    "12h": 43200,
    "1d": 86400,
    "3d": 259200,
    "1w": 604800,
}
"""Binance's kline intervals of constant length, in seconds."""

MONEY = (
    "USDT",
    "USDC",
    "FDUSD",
    "TUSD",
    "BUSD",
    "DAI",
    "USD",
    "EUR",
    "GBP",
    "JPY",
    "CHF",
    "CNY",
    "KRW",
    "INR",
    "BRL",
    "TRY",
    "RUB",
    "AUD",
    "CAD",
    "NZD",
    "SGD",
    "HKD",
    "MXN",
    "ZAR",
    "PLN",
    "UAH",
    "IDR",
    "THB",
    "VND",
    "SEK",
    "NOK",
    "DKK",
    "CZK",
)
"""Codes of states' currencies and of the coins that follow them."""
COIN_CURRENCIES = ("BTC", "XBT", "ETH", "BNB")
"""Coins that other coins are priced in."""
CURRENCIES = (*MONEY, *COIN_CURRENCIES)
"""Codes of currencies that prices are in, and that may stand beside a number."""

TABLE_SUFFIXES = (".csv", ".csv.gz", ".parquet", ".feather")
"""Kinds of files that hold tables of candles."""
