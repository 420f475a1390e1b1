"""What a symbol, a list of coins and a list of intervals may look like."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.coins import COINS, parse_coins, parse_timeframes, symbol_of
from schemas.errors import UsageError


@pytest.mark.parametrize(
    ("coin", "symbol"),
    [
        ("BTC", "BTCUSDT"),
        ("btc", "BTCUSDT"),
        ("BTCUSDT", "BTCUSDT"),
        ("ethbtc", "ETHBTC"),
        ("SOL/ETH", "SOLETH"),
        ("BTCEUR", "BTCEUR"),
        ("DOTBTC", "DOTBTCUSDT"),  # DOT is no coin of the universe: docs/troubleshooting.md says so
        ("WBTC", "WBTCUSDT"),
        ("BTC/USDT", "BTCUSDT"),
        ("BTCUSD_PERP", "BTCUSD_PERP"),
        ("1INCH", "1INCHUSDT"),
        ("USDC", "USDCUSDT"),
        ("ETHFDUSD", "ETHFDUSD"),
    ],
)
def test_symbol_of(coin, symbol):
    assert symbol_of(coin) == symbol


@pytest.mark.parametrize("coin", ["", "A", "BTC;DROP", "../etc", "B TC", "X" * 40])
def test_symbol_of_refuses_what_cannot_be_a_symbol(coin):
    with pytest.raises(UsageError, match="is not a symbol"):
        symbol_of(coin)


@given(st.text(max_size=12))
def test_any_text_gives_a_symbol_or_a_usage_error(text):
    with contextlib.suppress(UsageError):
        assert symbol_of(symbol_of(text)) == symbol_of(text)


def test_all_coins_are_the_universe_in_order():
    assert parse_coins("all") == [f"{c}USDT" for c in COINS]
    assert len(COINS) == 20


def test_coins_are_unique_and_ordered():
    assert parse_coins("ETH,btc,ETHUSDT") == ["ETHUSDT", "BTCUSDT"]
    with pytest.raises(UsageError, match="coins"):
        parse_coins(" , ")


def test_timeframes():
    assert parse_timeframes("1h, 15m,1h") == ["1h", "15m"]
    with pytest.raises(UsageError, match="2m"):
        parse_timeframes("1h,2m")
