"""Identifiers of series (market, symbol, timeframe) and models (architecture, recipe, series, seed).

A `Recipe` describes how a model is made, independent of the candles it learns. Only this module formats and parses
these identifiers: names of folders, registered models and runs, and the folder of a series in the store. Names omit the
market spot: `BTCUSDT-1h`, but `um-BTCUSDT-1h`.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from cpbmodels.data import INTERVAL_SECONDS
from schemas.coins import INTERVALS, SYMBOL
from schemas.errors import UsageError

MARKET_FOLDERS = {"spot": "spot", "um": "futures/um", "cm": "futures/cm", "sim": "spot", "own": "own"}
"""Markets and their folders under `data/` in Binance Vision's layout, also used for the simulator and tables."""

SPOT: Final = "spot"
OWN: Final = "own"
SIM: Final = "sim"
APART = (OWN, SIM)
"""Markets other than Binance's: each has a separate folder in `HOME`, with its own manifest, lock and fleets."""

_REGISTERED = "cpb-"

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
        # only three parts can begin with a market: no symbol has a hyphen
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
    names = zip(*((s.symbol, s.timeframe) for s in series), strict=True)
    return scope_options(series[0].market, *(",".join(dict.fromkeys(each)) for each in names)).lstrip()


def scope_options(market: str, coins: str | None = None, timeframes: str | None = None) -> str:
    """Return the command-line options that select coins, timeframes and a market; "" for all of spot.

    A space goes before each.

    Args:
        coins, timeframes: as they are typed, with commas; empty for all.
    """
    given = {"coins": coins, "timeframes": timeframes}
    options = "".join(f" --{name} {shlex.quote(text)}" for name, text in given.items() if text)
    return options + market_option(market)


def market_option(market: str) -> str:
    """Return the command-line option that selects a market, after a space; "" for spot, the default."""
    return {SIM: " --source sim", OWN: " --source TABLE"}.get(market) or stored_option(market)


def stored_option(market: str) -> str:
    """Return the option that selects a market of commands that read what is stored, after a space; "" for spot."""
    return "" if market == SPOT else f" --market {market}"


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
    # other folders may lie there: only names that cpb writes are its own
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
