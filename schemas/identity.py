"""Coins, symbols and intervals; identifiers of series (market, symbol, timeframe) and models.

A model is (architecture, recipe, series, seed).

A `Recipe` describes how a model is made, independent of the candles it learns. Only this module formats and parses
these identifiers: names of folders, registered models and runs, and the folder of a series in the store. Names omit the
market spot: `BTCUSDT-1h`, but `um-BTCUSDT-1h`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from cpbmodels.data import COIN_CURRENCIES, INTERVAL_SECONDS
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

MONTH = "1mo"
"""Binance's calendar month, the only interval whose candles differ in length."""

INTERVALS = (*INTERVAL_SECONDS, MONTH)
"""Binance's intervals, shortest first; models need candles of equal length, so none learns from the last."""

MARKET_FOLDERS = {"spot": "spot", "um": "futures/um", "cm": "futures/cm", "sim": "spot", "own": "own"}
"""Markets and their folders under `data/` in Binance Vision's layout, also used for the simulator and tables."""

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

SPOT: Final = "spot"
OWN: Final = "own"
SIM: Final = "sim"
APART = (OWN, SIM)
"""Markets other than Binance's: each has a separate folder in `HOME`, with its own manifest, lock and fleets."""

_REGISTERED = "cpb-"


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
    name = coin.strip().upper().replace("/", "")
    if not SYMBOL.fullmatch(name):
        raise UsageError(
            f"coins {coin!r} is not a symbol: use letters and digits, as in BTC or BTCUSDT", code="coins"
        )
    if quoted or "_" in name or any(name.endswith(q) and name != q for q in _QUOTES):
        return name
    if any(name.endswith(q) and name[: -len(q)] in COINS for q in COIN_CURRENCIES):
        return name
    return f"{name}USDT"


def check_known(symbols: Iterable[str] | None, stored: Collection[str], place: str) -> None:
    """Reject misspelt coins, which are neither in `stored` nor in the default universe.

    Args:
        place: where the stored symbols are, to start the message with: `the MLflow store`.

    Raises:
        UsageError: names the unknown coins and some of the stored symbols.
    """
    universe = {symbol_of(coin) for coin in COINS}
    if unknown := sorted(
        symbol for symbol in symbols or () if symbol not in stored and symbol not in universe
    ):
        there = sorted(stored)
        held = ", ".join(there[:_MAX_LISTED]) + (", …" if len(there) > _MAX_LISTED else "")
        raise UsageError(
            f"coins: {place} has nothing of {', '.join(unknown)}"
            f"{f', only of {held}' if held else ''}; check the name",
            code="coins",
        )


def coins_label(symbols: Iterable[str]) -> str:
    """Return the names of up to three coins, or the number of more coins: `BTC`, `BTC, ETH`, `20 coins`.

    The quote currency USDT is omitted.
    """
    names = [name.removesuffix("USDT") or name for name in dict.fromkeys(symbols)]
    return ", ".join(names) if len(names) <= _MAX_NAMED else f"{len(names)} coins"


def parse_coins(text: str, *, quoted: bool = False) -> list[str]:
    """Return the symbols of a `--coins` value, `all` or comma-separated names, in order and without duplicates.

    `quoted`: see `symbol_of`.
    """
    if text.strip().lower() == "all":
        return [symbol_of(c) for c in COINS]
    names = [part for part in text.split(",") if part.strip()]
    if not names:
        raise UsageError(f"coins {text!r} is empty: name coins as in BTC,ETH or use all", code="coins")
    return list(dict.fromkeys(symbol_of(n, quoted=quoted) for n in names))


def parse_timeframes(text: str, *, months: bool = False) -> list[str]:
    """Return the intervals of a `--timeframes` value, in order and without duplicates.

    `months` also accepts the calendar month: it can be stored, but models need candles of equal length.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    if MONTH in names and not months:
        raise UsageError(
            f"timeframes {text!r}: months differ in length, and models need candles of one length; "
            f"leave {MONTH} out (1w is the longest that can be used), only `cpb ingest` takes it",
            code="timeframes",
        )
    intervals = INTERVALS if months else [*INTERVAL_SECONDS]
    unknown = [n for n in names if n not in intervals]
    if unknown or not names:
        raise UsageError(
            f"timeframes {text!r}: unknown interval {', '.join(unknown) or '(empty)'}; "
            f"choose from {', '.join(intervals)}",
            code="timeframes",
        )
    return list(dict.fromkeys(names))


Market = Literal["spot", "um", "cm", "own", "sim"]
"""Binance's spot, USDT-margined and coin-margined futures markets, a user's own tables, and the built-in simulator."""


MARKETS: tuple[Market, ...] = get_args(Market)


def check_symbol(text: str) -> str:
    """Return the text if it is a valid Binance symbol, and therefore a valid folder name in the store.

    Raises:
        UsageError: the text is not a valid symbol.
    """
    if not SYMBOL.fullmatch(text):
        raise UsageError(
            f"symbol {text!r} is not one of Binance's: use letters and digits, as in BTCUSDT", code="symbol"
        )
    return text


def check_timeframe(text: str) -> str:
    """Return the text if it is an interval of Binance; raises `UsageError` otherwise."""
    if text not in INTERVALS:
        raise UsageError(
            f"timeframe {text!r} is unknown: choose from {', '.join(INTERVALS)}", code="timeframe"
        )
    return text


@dataclass(frozen=True, order=True)
class SeriesId:
    """A series of candles: a market, a symbol and an interval."""

    market: Market
    symbol: Annotated[str, AfterValidator(check_symbol)]
    timeframe: Annotated[str, AfterValidator(check_timeframe)]

    def __str__(self) -> str:
        """Return the name used in messages: `BTCUSDT 1h`, `um BTCUSDT 1h`."""
        return (
            f"{self.symbol} {self.timeframe}"
            if self.market == SPOT
            else f"{self.market} {self.symbol} {self.timeframe}"
        )

    @property
    def label(self) -> str:
        """The symbol, with the market unless it is spot: `BTCUSDT`, `um-BTCUSDT`."""
        return self.symbol if self.market == SPOT else f"{self.market}-{self.symbol}"

    @property
    def name(self) -> str:
        """The name of folders and members: `BTCUSDT-1h`, `um-BTCUSDT-1h`."""
        return f"{self.label}-{self.timeframe}"

    @property
    def registered(self) -> str:
        """The registered model's name: `cpb-BTCUSDT-1h`, `cpb-um-BTCUSDT-1h`."""
        return f"{_REGISTERED}{self.name}"

    @property
    def options(self) -> str:
        """The command-line options that select this series: `--coins BTCUSDT --timeframes 1h --market um`."""
        return options_of([self])

    @property
    def seconds(self) -> int:
        """Length of a candle in seconds; undefined for the calendar month."""
        return INTERVAL_SECONDS[self.timeframe]

    @classmethod
    def parse(cls, name: str) -> "SeriesId":
        """Return the series with a given `name` or registered model name.

        Raises:
            UsageError: the text is neither.
        """
        parts = name.removeprefix(_REGISTERED).split("-")
        market = parts.pop(0) if len(parts) == 3 and parts[0] in MARKETS else SPOT
        if len(parts) != 2:
            raise UsageError(f"{name!r} names no series: write BTCUSDT-1h, or um-BTCUSDT-1h", code="series")
        return cls(market, *parts)  # type: ignore[arg-type]

    def folder(self, home: Path, tree: str) -> Path:
        """Return the folder of this series in a tree of the store, as in `HOME/klines/interval=1h/symbol=BTCUSDT`.

        Trees of futures are named after their market (`klines-um`); trees of `APART` are in `HOME/sim`, `HOME/own`.
        """
        return tree_of(home, tree, self.market).joinpath(f"interval={self.timeframe}/symbol={self.symbol}")

    def packaged(self, home: Path) -> Path:
        """Return the folder of the series' packaged model, as in `HOME/hub/BTCUSDT/1h`."""
        return tree_of(home, "hub", self.market) / self.label / self.timeframe


def options_of(series: Sequence[SeriesId]) -> str:
    """Return the command-line options that select several series of one market: `--coins BTCUSDT,ETHUSDT …`."""
    coins, timeframes = (
        ",".join(dict.fromkeys(names))
        for names in zip(*((s.symbol, s.timeframe) for s in series), strict=True)
    )
    return f"--coins {coins} --timeframes {timeframes}{market_option(series[0].market)}"


def market_option(market: str) -> str:
    """Return the command-line option that selects a market, after a space; "" for spot, the default."""
    return {SPOT: "", SIM: " --source sim", OWN: " --source TABLE"}.get(market, f" --market {market}")


def market_home(home: Path, market: str) -> Path:
    """Return the folder that holds a market's manifest, fleets and packages: `HOME`, `HOME/sim` or `HOME/own`."""
    return home / market if market in APART else home


def tree_of(home: Path, tree: str, market: str) -> Path:
    """Return the folder of a market's tree: `HOME/klines`, `HOME/klines-um`, `HOME/sim/klines`."""
    return market_home(home, market) / (tree if market in (SPOT, *APART) else f"{tree}-{market}")


def stored_series(home: Path, tree: str) -> list[SeriesId]:
    """Return every series that has a folder in a tree of the store, sorted; other folders are ignored."""
    return sorted(
        SeriesId(market, symbol, timeframe)
        for market in MARKETS
        for _, symbol, timeframe in series_folders(tree_of(home, tree, market))
    )


def series_folders(tree: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield the folders of series in a tree of one market, sorted, each with its symbol and timeframe."""
    for folder in sorted(tree.glob("interval=*/symbol=*")):
        symbol, timeframe = folder.name.removeprefix("symbol="), folder.parent.name.removeprefix("interval=")
        if SYMBOL.fullmatch(symbol) and timeframe in INTERVALS and folder.is_dir():
            yield folder, symbol, timeframe


@dataclass(frozen=True, order=True)
class ModelId:
    """A model. `recipe`: the preset's name, with a digest of the overrides if any (`default+1f0c9a2b`)."""

    architecture: str
    recipe: str
    series: SeriesId
    seed: int

    def __str__(self) -> str:
        """Return the name used in messages and for the MLflow run: `har/BTCUSDT/1h`."""
        return f"{self.architecture}/{self.series.label}/{self.series.timeframe}"

    @property
    def name(self) -> str:
        """All fields as a text: `har/default/BTCUSDT-1h/123`."""
        return f"{self.architecture}/{self.recipe}/{self.series.name}/{self.seed}"


@dataclass(frozen=True, order=True)
class Recipe:
    """How a model is made, independent of the candles it learns.

    `architecture` may end in `-universal`. `digest`: of the resolved columns and options, so that a preset whose
    definition has changed is a different recipe.
    """

    architecture: str
    preset: str
    digest: str

    def __str__(self) -> str:
        """Return the recipe as a text: `har-universal/default/3f9a12c0d4e5`."""
        return f"{self.architecture}/{self.preset}/{self.digest}"

    @classmethod
    def parse(cls, text: str) -> "Recipe":
        """Return the recipe that a text describes; raises `UsageError` for any other text."""
        parts = text.split("/")
        if len(parts) != 3:
            raise UsageError(f"{text!r} names no recipe: write har/default/3f9a12c0d4e5", code="recipe")
        return cls(*parts)


def is_series_name(text: str) -> bool:
    """Whether a text, such as the name of a folder, is a series name that `SeriesId.parse` accepts."""
    try:
        SeriesId.parse(text)
    except UsageError:
        return False
    return True
