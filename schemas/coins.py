"""Coins, symbols and intervals, as people and Binance write them."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from cpbmodels.data import COIN_CURRENCIES, INTERVAL_SECONDS
from schemas.base import names_in
from schemas.errors import UsageError

COINS = (
    "BTC",
    "ETH",
    "BNB",
    "XRP",
    "LTC",
    "ADA",
    "SOL",
    "DOGE",
    "AVAX",
    "LINK",
    "UNI",
    "ATOM",
    "NEAR",
    "DYDX",
    "ARB",
    "OP",
    "PEPE",
    "INJ",
    "SHIB",
    "LUNA",
)
"""The default universe, each against USDT."""

EXCHANGE = "exchange"
"""Value of `--coins` for all pairs against USDT in a source's listing, without leveraged tokens and stablecoins."""

CHAMPIONS = "champions"
"""Value of `coins` and `timeframes` of a forecast that selects all series with a champion."""

MONTH = "1mo"
"""Binance's calendar month, the only interval whose candles differ in length."""

INTERVALS = (*INTERVAL_SECONDS, MONTH)
"""Binance's intervals, shortest first; models need candles of equal length, so none learns from the last."""

_MAX_NAMED, _MAX_LISTED = 3, 12
_QUOTES = ("USDT", "USDC", "FDUSD", "TUSD", "BUSD", "EUR", "TRY", "BRL", "JPY", "DAI", "USD")
SYMBOL = re.compile(r"[^\W_a-z]{2,30}(_PERP|_[0-9]{6})?")
"""Pattern of Binance symbols, and therefore of folders in the store. Some coins have Chinese names."""

_LEVERAGED = {
    *(
        f"{coin}{side}"
        for side in ("UP", "DOWN")
        for coin in (
            "1INCH",
            "AAVE",
            "ADA",
            "BCH",
            "BNB",
            "BTC",
            "DOT",
            "EOS",
            "ETH",
            "FIL",
            "LINK",
            "LTC",
            "SUSHI",
            "SXP",
            "TRX",
            "UNI",
            "XLM",
            "XRP",
            "XTZ",
            "YFI",
        )
    ),
    *(f"{coin}{side}" for side in ("BULL", "BEAR") for coin in ("", "BNB", "EOS", "ETH", "XRP")),
}
"""Leveraged tokens that Binance listed (BULL and BEAR until 2020, UP and DOWN until 2024; no longer offered).

A closed list, not a pattern: JUP and SYRUP are coins.
"""

_STABLE = {
    "AEUR",
    "AUD",
    "BFUSD",
    "BKRW",
    "BUSD",
    "DAI",
    "EUR",
    "EURI",
    "FDUSD",
    "GBP",
    "PAX",
    "PYUSD",
    "RLUSD",
    "SUSD",
    "TUSD",
    "USD1",
    "USDC",
    "USDD",
    "USDE",
    "USDP",
    "USDS",
    "USDSB",
    "UST",
    "XUSD",
}
"""Currencies, and coins pegged to a currency: their pairs against USDT are not coin markets."""


def is_coin_pair(symbol: str) -> bool:
    """Whether a listed symbol is a coin against USDT: no leveraged token, stablecoin or currency."""
    return symbol.endswith("USDT") and symbol.removesuffix("USDT") not in {"", *_LEVERAGED, *_STABLE}


def symbol_of(coin: str, *, quoted: bool = False) -> str:
    """Return the Binance symbol of a coin; the default quote currency is USDT.

    `BTC` -> `BTCUSDT`, `ethbtc` -> `ETHBTC`, `BTCUSD_PERP` is unchanged. `quoted`: every name is a complete symbol, as
    in custom tables.

    Raises:
        UsageError: the text cannot be a symbol.
    """
    # BTC/USDT, as ccxt and freqtrade write pairs
    name = coin.strip().upper().replace("/", "")
    if not SYMBOL.fullmatch(name):
        raise UsageError(
            f"coins {coin!r} is not a symbol: use letters and digits, as in BTC or BTCUSDT", code="coins"
        )
    # a currency at its end, unless the coin is that currency: USDC means USDCUSDT
    if quoted or "_" in name or any(name.endswith(q) and name != q for q in _QUOTES):
        return name
    # ETHBTC is a pair, WBTC a coin: BTC at the end counts as currency only behind a known coin
    if any(name.endswith(q) and name[: -len(q)] in COINS for q in COIN_CURRENCIES):
        return name
    return f"{name}USDT"


def coin_of(symbol: str) -> str:
    """Return the coin of a symbol against USDT, else the symbol: `BTC`, `ETHBTC`."""
    return symbol.removesuffix("USDT") or symbol


def similar_coins(symbol: str, symbols: Iterable[str]) -> str:
    """Return the coins whose names are most like a misspelt one, as ` (did you mean BTC?)`; "" if none is."""
    # Without USDT, by which all symbols are alike.
    similar = get_close_matches(coin_of(symbol), [*map(coin_of, symbols)])
    return f" (did you mean {' or '.join(similar)}?)" if similar else ""


def check_known(symbols: Iterable[str] | None, stored: Iterable[str], place: str) -> None:
    """Reject misspelt coins, which are neither in `stored` nor in the default universe.

    Args:
        place: where the stored symbols are, to start the message with: `the MLflow store`.

    Raises:
        UsageError: names the unknown coins, those they may stand for, and some of the stored.
    """
    there = sorted({*map(coin_of, stored)})
    # a coin of the universe is no typo where the store has none of it yet
    known = dict.fromkeys((*there, *COINS))
    if unknown := sorted(symbol for symbol in symbols or () if coin_of(symbol) not in known):
        held = ", ".join(there[:_MAX_LISTED]) + (", …" if len(there) > _MAX_LISTED else "")
        raise UsageError(
            f"coins: {place} has nothing of "
            f"{', '.join(coin_of(symbol) + similar_coins(symbol, known) for symbol in unknown)}"
            f"{f', only of {held}' if held else ''}; check the name",
            code="coins",
        )


def coins_label(symbols: Iterable[str]) -> str:
    """Return the names of up to three coins, or the number of more coins: `BTC`, `BTC, ETH`, `20 coins`.

    The quote currency USDT is omitted.
    """
    names = [*map(coin_of, dict.fromkeys(symbols))]
    return ", ".join(names) if len(names) <= _MAX_NAMED else f"{len(names)} coins"


def parse_coins(text: str, *, quoted: bool = False) -> list[str]:
    """Return the symbols of a `--coins` value, `all` or comma-separated names, in order and without duplicates.

    `quoted`: see `symbol_of`.
    """
    if text.strip().lower() == "all":
        return [symbol_of(c) for c in COINS]
    names = names_in(text)
    if not names:
        raise UsageError(f"coins {text!r} is empty: name coins as in BTC,ETH or use all", code="coins")
    return list(dict.fromkeys(symbol_of(n, quoted=quoted) for n in names))


def parse_timeframes(text: str, *, months: bool = False) -> list[str]:
    """Return the intervals of a `--timeframes` value, in order and without duplicates.

    `months` also accepts the calendar month: it can be stored, but models need candles of equal length.
    """
    names = names_in(text)
    if MONTH in names and not months:
        raise UsageError(
            f"timeframes {text!r}: months differ in length, and models need candles of one length; "
            f"leave {MONTH} out (1w is the longest that can be used), only `cpb ingest` takes it",
            code="timeframes",
        )
    # the message lists what this command takes
    intervals = INTERVALS if months else [*INTERVAL_SECONDS]
    unknown = [n for n in names if n not in intervals]
    if unknown or not names:
        raise UsageError(
            f"timeframes {text!r}: unknown interval {', '.join(unknown) or '(empty)'}; "
            f"choose from {', '.join(intervals)}",
            code="timeframes",
        )
    return [*names]
