import contextlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.config import ARCHITECTURES, CLOSED_FORM, PRESET_ARCHITECTURES, parse_architectures
from schemas.errors import UsageError
from schemas.scope import Scope, parse_instant
from schemas.universe import COINS, parse_coins, parse_timeframes, symbol_of


@pytest.mark.parametrize(
    ("coin", "symbol"),
    [
        ("BTC", "BTCUSDT"), ("btc", "BTCUSDT"), ("BTCUSDT", "BTCUSDT"), ("ethbtc", "ETHBTC"), ("WBTC", "WBTCUSDT"),
        ("BTC/USDT", "BTCUSDT"), ("BTCUSD_PERP", "BTCUSD_PERP"), ("1INCH", "1INCHUSDT"), ("USDC", "USDCUSDT"),
        ("ETHFDUSD", "ETHFDUSD"),
    ],
)  # fmt: skip
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
    with pytest.raises(UsageError, match="--coins"):
        parse_coins(" , ")


def test_timeframes():
    assert parse_timeframes("1h, 15m,1h") == ["1h", "15m"]
    with pytest.raises(UsageError, match="2m"):
        parse_timeframes("1h,2m")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01", datetime(2024, 1, 1, tzinfo=UTC)),
        ("2024-01-31", datetime(2024, 1, 31, tzinfo=UTC)),
        ("2024-01-31T12:30", datetime(2024, 1, 31, 12, 30, tzinfo=UTC)),
        ("2024-01-31T12:30:05Z", datetime(2024, 1, 31, 12, 30, 5, tzinfo=UTC)),
    ],
)
def test_instants_are_utc(text, expected):
    assert parse_instant(text, "--since") == expected


def test_a_bad_date_names_its_option():
    with pytest.raises(UsageError, match=r"--as-of '2024-13-01'.*2024-01-31"):
        Scope.of(as_of="2024-13-01")
    with pytest.raises(UsageError, match="at least a day after"):
        Scope.of(since="2024-02", as_of="2024-01")
    with pytest.raises(UsageError, match="--market"):
        Scope.of(market="moon")


def test_architectures_of_presets_exist():
    for preset in PRESET_ARCHITECTURES:
        assert parse_architectures(None, preset) == PRESET_ARCHITECTURES[preset]
    assert parse_architectures("gru,har-universal,gru", "smoke") == ("gru", "har-universal")
    with pytest.raises(UsageError, match="arima"):
        parse_architectures("arima", "smoke")
    with pytest.raises(UsageError, match="--preset"):
        parse_architectures(None, "huge")


def test_names_agree_with_the_library():
    import cpbmodels

    assert set(ARCHITECTURES) == set(cpbmodels.architectures())
    assert {n for n in ARCHITECTURES if cpbmodels.architecture(n).closed_form} == set(CLOSED_FORM)
