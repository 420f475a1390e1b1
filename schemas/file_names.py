"""Which series a file's name tells: understood to its last letter, or the part that is not is named.

`BTCUSDT-1h`, `ETH_EUR-15m`, `Binance_ETHUSDT_1h` (CryptoDataDownload), `XBTUSD_60` (Kraken), `BINANCE_BTCUSDT, 60`
(TradingView), `BTCUSD_H1_202401010000_202412312300`, `BTCUSD60` (MetaTrader), `BTC-USD` (yfinance), `BTC_USDT-1h`
(freqtrade), `BTCUSDT_60_2024-01-01_2024-01-31` (Bybit), `BTCUSDT-1h-2024-01` (Binance).
"""

import re
from typing import NamedTuple

from cpbmodels.data import COIN_CURRENCIES, CURRENCIES, INTERVAL_SECONDS, MONEY
from schemas.coins import COINS, SYMBOL

BINANCE_NAME = re.compile(
    rf"(?P<symbol>{SYMBOL.pattern})-(?P<interval>[0-9]+(s|m|h|d|w|mo))-(?P<period>[0-9]{{4}}-[0-9]{{2}}(-[0-9]{{2}})?)"
    r"\.(zip|csv)"
)
"""Binance's own names of files: BTCUSDT-1h-2024-01.zip, and unzipped."""

_EXCHANGES = {
    "BACKPACK",
    "BINANCE",
    "BINANCEUS",
    "BINGX",
    "BITFINEX",
    "BITFLYER",
    "BITGET",
    "BITHUMB",
    "BITMEX",
    "BITPANDA",
    "BITSO",
    "BITSTAMP",
    "BITTREX",
    "BITVAVO",
    "BTCTURK",
    "BYBIT",
    "CEXIO",
    "COINBASE",
    "COINBASEPRO",
    "COINEX",
    "COINONE",
    "CRYPTOCOM",
    "CRYPTODATADOWNLOAD",
    "DERIBIT",
    "DUKASCOPY",
    "EXMO",
    "FTX",
    "GATEIO",
    "GDAX",
    "GEMINI",
    "HITBTC",
    "HTX",
    "HUOBI",
    "ITBIT",
    "KRAKEN",
    "KUCOIN",
    "LBANK",
    "MEXC",
    "NASDAQ",
    "NYSE",
    "OKCOIN",
    "OKEX",
    "OKX",
    "PHEMEX",
    "POLONIEX",
    "UPBIT",
    "WHITEBIT",
    "YAHOO",
    "YFINANCE",
}
_WORDS = {
    "BARS",
    "CANDLE",
    "CANDLES",
    "CHART",
    "DATA",
    "DATASET",
    "DF",
    "DOWNLOAD",
    "EXPORT",
    "FILE",
    "HISTORICAL",
    "HISTORY",
    "KLINE",
    "KLINES",
    "LATEST",
    "OHLC",
    "OHLCV",
    "OUTPUT",
    "PRICE",
    "PRICES",
    "QUOTES",
    "RATES",
    "RAW",
    "RESULT",
    "RESULTS",
    "SAMPLE",
    "TABLE",
    "TEMP",
    "TEST",
    "TMP",
    "TO",
}
"""Words that say what a file holds, and nothing of its series."""

_UNITS = {
    "S": 1,
    "SEC": 1,
    "M": 60,
    "MIN": 60,
    "MINS": 60,
    "MINUTE": 60,
    "MINUTES": 60,
    "H": 3600,
    "HR": 3600,
    "HOUR": 3600,
    "HOURS": 3600,
    "D": 86_400,
    "DAY": 86_400,
    "DAYS": 86_400,
    "W": 604_800,
    "WEEK": 604_800,
    "WEEKS": 604_800,
}
_ALONE = {"HOURLY": 3600, "DAILY": 86_400, "WEEKLY": 604_800} | {
    name: _UNITS[name] for name in ("MINUTE", "HOUR", "H", "D", "DAY", "W", "WEEK")
}
"""Words that name a timeframe without a number."""
_OF_SECONDS = {seconds: name for name, seconds in INTERVAL_SECONDS.items()}
_MONTHS_OR_MINUTES = re.compile(r"(1|3|12)?M")
"""`1M`: a month for exchanges, a minute for some programs."""

_TRADINGVIEW = re.compile(r"[A-Z0-9]+_(?P<symbol>[A-Z0-9]+), (?P<length>\d*[SDW]?)(_[0-9a-f]{5})?( \(\d+\))?")
_PART = re.compile(r"[^-_ ,]+")
_DATE = re.compile(r"(19|20)\d\d([.]?\d\d([.]?\d\d([T.]?\d{4,6})?)?)?")
_DATE_PARTS = re.compile(r"(?<![0-9A-Za-z])(19|20)\d\d-\d\d(-\d\d)?(?![0-9A-Za-z])")
_COPY = re.compile(r"\(\d+\)")
_GLUED = re.compile(r"(?P<symbol>[A-Z0-9]+?)(?P<length>\d+[A-Za-z]*|M1|M5|M15|M30|H1|H4|D1|W1)")


class FileName(NamedTuple):
    """What a file's name tells. `unknown`: the part that is not understood, "" if there is none.

    symbol: "" if none is told. is_pair: it is a coin and the currency it is priced in, as in BTCUSD.
    """

    symbol: str
    timeframe: str | None
    unknown: str
    is_pair: bool


def read_name(stem: str) -> FileName:
    """Return what a name, without its suffix, tells of the series in the file."""
    # before all: its comma and its five characters of a hash would be unknown parts below
    if exported := _TRADINGVIEW.fullmatch(stem):
        timeframe = timeframe_of(exported["length"])
        symbol = exported["symbol"]
        return FileName(symbol, timeframe, "" if timeframe else exported["length"], is_pair(symbol))
    # spans and the ` (1)` of a second download say nothing of the series
    parts = _PART.findall(_COPY.sub("", _DATE_PARTS.sub("", stem)))
    symbols: list[str] = []
    timeframes: list[str] = []
    unknown: list[str] = []
    # AAPL is a symbol where nothing else may be: it would not be one in EXPORT_V2, or candles_NEW
    may_stand_alone = not any(part.upper() in _WORDS for part in parts)
    at = 0
    while at < len(parts):
        part, following = parts[at], parts[at + 1] if at + 1 < len(parts) else ""
        at += 1
        if part.isdecimal() and following.upper() in _UNITS and (spaced := timeframe_of(part + following)):
            timeframes.append(spaced)  # 1-min, 1_hour
            at += 1
        # before words and symbols: H1 and 1D could be symbols
        elif timeframe := timeframe_of(part):
            timeframes.append(timeframe)
        elif part.upper() in _EXCHANGES | _WORDS or _DATE.fullmatch(part):
            pass
        elif is_pair(part.upper()) and _is_of_one_case(part):
            # BTCUSDTNEW may be another coin, or a new file of BTCUSDT: not to be guessed
            (unknown if _may_be_another(part.upper()) else symbols).append(part.upper())
        elif (
            following.upper() in CURRENCIES
            and SYMBOL.fullmatch(part.upper())
            and _is_of_one_case(part + following)
        ):
            # BTC-USD, btc_usdt; Btc-Usd is prose
            pair = f"{part}{following}".upper()
            if _may_be_another(pair):
                unknown.append(f"{part}-{following}")
            else:
                symbols.append(pair)
            at += 1
        elif (
            (glued := _GLUED.fullmatch(part))
            and is_pair(glued["symbol"])
            and not _may_be_another(glued["symbol"])
            and (length := timeframe_of(glued["length"]))
        ):
            symbols.append(glued["symbol"])
            timeframes.append(length)
        elif part.upper() in COINS or (
            may_stand_alone and SYMBOL.fullmatch(part) and not part.isdecimal() and not _may_be_another(part)
        ):
            symbols.append(part.upper())  # BTC, AAPL
        else:
            unknown.append(part)
    # a second symbol or timeframe makes the first uncertain
    unknown += [name for found in (symbols, timeframes) for name in list(dict.fromkeys(found))[1:]]
    symbol = symbols[0] if symbols else ""
    return FileName(symbol, timeframes[0] if timeframes else None, " ".join(unknown), is_pair(symbol))


def _may_be_another(symbol: str) -> bool:
    """Whether a symbol holds the name of another: BTCUSDTNEW, BINANCEETHUSDT, BITSTAMPUSD, or KRWBTC of KRW-BTC."""
    base = base_of_pair(symbol)
    if not base:
        return any(is_pair(symbol[:end]) for end in range(4, len(symbol)))
    # BINANCEETHUSDT: an exchange's name in front of a coin, or of nothing
    rests = [base.removeprefix(name) for name in _EXCHANGES if base.startswith(name)]
    # KRWBTC: the currency in front, as Upbit writes it
    is_turned = base in MONEY and symbol.removeprefix(base) in COIN_CURRENCIES
    return is_turned or any(not rest or rest in COINS for rest in rests)


def _is_of_one_case(text: str) -> bool:
    return text in (text.upper(), text.lower())


def is_pair(symbol: str) -> bool:
    """Whether a symbol is a coin and a known currency: BTCUSD, 1000PEPEUSDT, XBTEUR."""
    return bool(SYMBOL.fullmatch(symbol)) and bool(base_of_pair(symbol))


def base_of_pair(symbol: str) -> str:
    """Return the coin of a pair, "" if the symbol ends with no known currency."""
    bases = [symbol.removesuffix(c) for c in CURRENCIES if symbol.endswith(c) and symbol not in CURRENCIES]
    # WBTC and STETH are coins; BNBUSD is BNB in USD, not BN in BUSD
    possible = [b for b in bases if len(b) > 2 or b in COINS or not symbol.endswith(COIN_CURRENCIES)]
    return next((b for b in possible if b in COINS), possible[0] if possible else "")


def timeframe_of(text: str) -> str | None:
    """Return the timeframe that a text names, None for other texts, and for `1M`.

    `1h`, `1H`, `H1`, `60`, `60min`, `hourly` -> `1h`.
    """
    if text in INTERVAL_SECONDS:
        return text
    if _MONTHS_OR_MINUTES.fullmatch(text):
        return None
    upper = text.upper()
    if upper in _ALONE:
        return _OF_SECONDS[_ALONE[upper]]
    if upper in ("M1", "M5", "M15", "M30", "H1", "H4", "D1", "W1"):  # MetaTrader's
        upper = upper[1:] + upper[0]
    # a bare number is of minutes, as Bybit's and Kraken's
    match = re.fullmatch(r"(\d{1,5})([A-Z]*)", upper)
    if not match or (match[2] and match[2] not in _UNITS):
        return None
    return _OF_SECONDS.get(int(match[1]) * _UNITS[match[2] or "M"])
