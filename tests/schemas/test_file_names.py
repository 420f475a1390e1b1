"""Names of files: understood to the last letter, or the part that is not is named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpbmodels.data import INTERVAL_SECONDS
from schemas.coins import COINS
from schemas.file_names import base_of_pair, read_name

UNDERSTOOD = {
    "BTCUSDT-1h": ("BTCUSDT", "1h"),
    "ETH_EUR-15m": ("ETHEUR", "15m"),
    "ETH-GBP-1h": ("ETHGBP", "1h"),
    "btc_usdt-1h": ("BTCUSDT", "1h"),
    "AAPL-1d": ("AAPL", "1d"),
    "AAPL": ("AAPL", None),
    "Binance_ETHUSDT_1h": ("ETHUSDT", "1h"),
    "Binance_BTCUSDT_d": ("BTCUSDT", "1d"),
    "Gemini_BTCUSD_2023_1min": ("BTCUSD", "1m"),
    "Bitstamp_BTC_USDT_1h": ("BTCUSDT", "1h"),
    "XBTUSD_60": ("XBTUSD", "1h"),
    "XBTUSD_1440": ("XBTUSD", "1d"),
    "ETHUSDT-1H": ("ETHUSDT", "1h"),
    "BTCUSDT_60_2024-01-01_2024-01-31": ("BTCUSDT", "1h"),
    "BTCUSD_H1_202401010000_202412312300": ("BTCUSD", "1h"),
    "EURUSD_M15": ("EURUSD", "15m"),
    "BTCUSD60": ("BTCUSD", "1h"),
    "BINANCE_BTCUSDT, 60": ("BTCUSDT", "1h"),
    "BINANCE_BTCUSDT, 1D": ("BTCUSDT", "1d"),
    "BITSTAMP_BTCUSD, 240_1a2b3 (1)": ("BTCUSD", "4h"),
    "BTC-USD": ("BTCUSD", None),
    "BTC-USD (1)": ("BTCUSD", None),
    "coinbase_eth-usd_hourly": ("ETHUSD", "1h"),
    "BTCUSDT-1h-2025-01": ("BTCUSDT", "1h"),
    "BTCUSDT_ohlcv_5m": ("BTCUSDT", "5m"),
    "WBTC-1h": ("WBTC", "1h"),
    "ETHBTC-1h": ("ETHBTC", "1h"),
    "BTCUSDH1": ("BTCUSD", "1h"),
    "EURUSDM15": ("EURUSD", "15m"),
    "BTCUSDT1HOUR": ("BTCUSDT", "1h"),
    "btcusd_1-min_data": ("BTCUSD", "1m"),
    "BTCUSD 4 hours 2012-01-01 to 2021-03-31": ("BTCUSD", "4h"),
}


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_names_of_tools_are_understood(name):
    read = read_name(name)
    assert (read.symbol, read.timeframe, read.unknown) == (*UNDERSTOOD[name], "")


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("BTCUSDT_1M", "1M"),  # a month or a minute
        ("BINANCE_BTCUSDT.P, 60", "BTCUSDT.P"),  # a perpetual
        ("BTC_USDT_USDT-1h-futures", "futures USDT"),
        ("BTCUSDT-ETHUSDT-1h", "ETHUSDT"),
        ("BTCUSDT-1h-4h", "4h"),
        ("Foo_ETHUSDT_1h", "Foo"),
        ("BTCUSDT-1h copy", "copy"),
        ("BTC-USD_1h_2y", "2y"),
        ("ETHUSDT-7h", "7h"),
        ("candles_NEW", "NEW"),
        ("EXPORT_V2", "V2"),
        ("EXPORT 17", "17"),
        ("BTCUSDTNEW", "BTCUSDTNEW"),
        ("XBTUSDTM", "XBTUSDTM"),  # a future
        ("BTCUSDTPERP-1h", "BTCUSDTPERP"),
        ("BTCUSDMN1", "BTCUSDMN1"),  # months, which are no interval
        ("BINANCEETHUSDT-1h", "BINANCEETHUSDT"),
        ("bitstampusd_1h", "BITSTAMPUSD"),
        ("UPBIT-KRW-BTC", "KRW-BTC"),  # Upbit writes the currency first
    ],
)
def test_what_is_not_understood_is_named(name, unknown):
    assert read_name(name).unknown == unknown


@pytest.mark.parametrize(
    "name", ["candles", "candles (1)", "prices", "EXPORT, 2025", "DATA-1h", "2024-01", "okx_1h", "OUTPUT"]
)
def test_words_are_no_symbols(name):
    assert (read_name(name).symbol, read_name(name).unknown) == ("", "")


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(COINS),
    st.sampled_from(["USDT", "USD", "EUR", "BTC"]),
    st.sampled_from(["", "-", "_"]),
    st.sampled_from(list(INTERVAL_SECONDS)),
    st.sampled_from("-_ "),
    st.sampled_from(["", "Binance_", "KRAKEN "]),
    st.sampled_from(["", "_2024-01-31", "-2024", " (3)"]),
    st.booleans(),
)
def test_pairs_come_back_from_each_form(coin, quote, inner, interval, outer, before, behind, lower):
    pair = f"{coin}{inner}{quote}"
    read = read_name(f"{before}{pair.lower() if lower else pair}{outer}{interval}{behind}")
    if coin == quote:
        return
    assert (read.symbol, read.timeframe, read.unknown) == (f"{coin}{quote}", interval, "")
    assert base_of_pair(read.symbol) == coin


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(UNDERSTOOD)), st.text("ABCxyz", min_size=3, max_size=8), st.booleans())
def test_a_word_more_is_never_passed_over(name, word, before):
    """It becomes a part that is not understood, or of the symbol that the user sees."""
    read = read_name(f"{word}_{name}" if before else f"{name}_{word}")
    assert read.unknown or word.upper() in read.symbol


def test_coins_that_end_like_a_currency_are_no_pairs():
    assert [base_of_pair(name) for name in ("WBTC", "STETH", "BUSD", "USDT", "ETHBTC", "BTCUSD")] == [
        "",
        "",
        "",
        "",
        "ETH",
        "BTC",
    ]
