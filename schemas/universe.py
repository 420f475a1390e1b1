"""Names of the market: coins, symbols and Binance's kline intervals."""

import re
from collections.abc import Collection, Iterable
from typing import Literal

from cpbmodels.data.figures import INTERVAL_SECONDS
from schemas.errors import UsageError

COINS = (
    "BTC", "ETH", "BNB", "XRP", "LTC", "ADA", "SOL", "DOGE", "AVAX", "LINK",
    "UNI", "ATOM", "NEAR", "DYDX", "ARB", "OP", "PEPE", "INJ", "SHIB", "LUNA",
)  # fmt: skip
"""The default universe, each against USDT."""

EXCHANGE = "exchange"
"""Value of `--coins` for every pair that a source lists against USDT, as `ScopeSpec` filters them."""

MONTH = "1mo"
"""Binance's calendar month: the one interval whose candles differ in length."""

MARKET_FOLDERS = {"spot": "spot", "um": "futures/um", "cm": "futures/cm", "sim": "spot", "own": "own"}
"""Markets and their folders under `data/` in Binance Vision's layout, in which simulator and tables are read too."""

_MAX_NAMED, _MAX_LISTED = 3, 12
_QUOTES = ("USDT", "USDC", "FDUSD", "TUSD", "BUSD", "EUR", "TRY", "BRL", "JPY", "DAI", "USD")
_COIN_QUOTES = ("BTC", "ETH", "BNB")
SYMBOL = re.compile(r"[^\W_a-z]{2,30}(_PERP|_[0-9]{6})?")
"""What a symbol of Binance looks like, and hence a folder of the store. Some coins have Chinese names."""

_LEVERAGED = {
    *(f"{coin}{side}" for side in ("UP", "DOWN") for coin in (
        "1INCH", "AAVE", "ADA", "BCH", "BNB", "BTC", "DOT", "EOS", "ETH", "FIL", "LINK", "LTC", "SUSHI", "SXP", "TRX",
        "UNI", "XLM", "XRP", "XTZ", "YFI",
    )),
    *(f"{coin}{side}" for side in ("BULL", "BEAR") for coin in ("", "BNB", "EOS", "ETH", "XRP")),
}  # fmt: skip
"""Leveraged tokens that Binance had (BULL and BEAR until 2020, UP and DOWN until 2024; there are no new ones).

A closed list, not a pattern: JUP and SYRUP are coins.
"""

_STABLE = {
    "AEUR", "AUD", "BFUSD", "BKRW", "BUSD", "DAI", "EUR", "EURI", "FDUSD", "GBP", "PAX", "PYUSD", "RLUSD", "SUSD",
    "TUSD", "USD1", "USDC", "USDD", "USDE", "USDP", "USDS", "USDSB", "UST", "XUSD",
}  # fmt: skip
"""Currencies, and coins that are held at the price of one: against USDT their candles hold no market."""

PairKind = Literal["coin", "leveraged", "stablecoin", "other quote"]


def pair_kind(symbol: str, quote: str = "USDT") -> PairKind:
    """Return what a listed symbol is: only pairs of the kind `coin` belong to the scope `exchange`."""
    base = symbol.removesuffix(quote)
    if not base or base == symbol:
        return "other quote"
    return "leveraged" if base in _LEVERAGED else "stablecoin" if base in _STABLE else "coin"


def symbol_of(coin: str, quoted: bool = False) -> str:
    """Return the Binance symbol of a coin; one without a quote currency means USDT.

    `BTC` -> `BTCUSDT`, `ethbtc` -> `ETHBTC`, `BTCUSD_PERP` stays. `quoted`: every name is a whole symbol, as in a
    table of one's own.

    Raises:
        UsageError: the text cannot be a symbol.
    """
    name = coin.strip().upper().replace("/", "")
    if not SYMBOL.fullmatch(name):
        raise UsageError(f"coins {coin!r} is not a symbol: use letters and digits, as in BTC or BTCUSDT",
                         code="coins", field="coins")  # fmt: skip
    if quoted or "_" in name or any(name.endswith(q) and name != q for q in _QUOTES):
        return name
    if any(name.endswith(q) and name[: -len(q)] in COINS for q in _COIN_QUOTES):
        return name
    return f"{name}USDT"


def check_known(symbols: Iterable[str] | None, known: Collection[str], place: str) -> None:
    """Refuse a misspelt coin: one that is neither among those `known` nor in the default universe.

    Args:
        place: where the known ones are, at the beginning of the sentence: `the MLflow store`.

    Raises:
        UsageError: naming the coins, and some of those that there are.
    """
    universe = {symbol_of(coin) for coin in COINS}
    if unknown := sorted(one for one in symbols or () if one not in known and one not in universe):
        there = sorted(known)
        held = ", ".join(there[:_MAX_LISTED]) + (", …" if len(there) > _MAX_LISTED else "")
        raise UsageError(
            f"coins: {place} has nothing of {', '.join(unknown)}"
            f"{f', only of {held}' if held else ''}; check the name",
            code="coins", field="coins",
        )  # fmt: skip


def coins_label(symbols: Iterable[str]) -> str:
    """Return up to three coins by name, from four on their number: `BTC`, `BTC, ETH`, `20 coins`.

    The quote currency is left out where it is USDT.
    """
    names = [name.removesuffix("USDT") or name for name in dict.fromkeys(symbols)]
    return ", ".join(names) if len(names) <= _MAX_NAMED else f"{len(names)} coins"


def parse_coins(text: str, quoted: bool = False) -> list[str]:
    """Return the symbols of a `--coins` value: `all`, or names separated by commas; order kept, unique.

    `quoted`: see `symbol_of`.
    """
    if text.strip().lower() == "all":
        return [symbol_of(c) for c in COINS]
    names = [part for part in text.split(",") if part.strip()]
    if not names:
        raise UsageError(
            f"coins {text!r} is empty: name coins as in BTC,ETH or use all", code="coins", field="coins"
        )
    return list(dict.fromkeys(symbol_of(n, quoted) for n in names))


def parse_timeframes(text: str, months: bool = False) -> list[str]:
    """Return the intervals of a `--timeframes` value, order kept, unique.

    `months` also lets the calendar month pass: it can be stored, but models need candles of one length.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    if MONTH in names and not months:
        raise UsageError(
            f"timeframes {text!r}: months differ in length, and models need candles of one length; "
            f"leave {MONTH} out (1w is the longest that can be used), only `cpb ingest` takes it",
            code="timeframes", field="timeframes",
        )  # fmt: skip
    known = [*INTERVAL_SECONDS, MONTH] if months else [*INTERVAL_SECONDS]
    unknown = [n for n in names if n not in known]
    if unknown or not names:
        raise UsageError(
            f"timeframes {text!r}: unknown interval {', '.join(unknown) or '(empty)'}; "
            f"choose from {', '.join(known)}",
            code="timeframes", field="timeframes",
        )  # fmt: skip
    return list(dict.fromkeys(names))
