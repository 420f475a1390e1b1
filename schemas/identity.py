"""Who is who: a series is (market, symbol, timeframe), a model (architecture, recipe, series, seed).

A `Recipe` says how a model is made, whatever candles it learns. All are formatted and parsed here and nowhere else:
names of folders, registered models and runs, and the place of a series in the store. Spot is the market that names
leave out: `BTCUSDT-1h`, but `um-BTCUSDT-1h`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from schemas.errors import UsageError
from schemas.universe import INTERVAL_SECONDS, MONTH, SYMBOL

Market = Literal["spot", "um", "cm", "own", "sim"]
"""Binance's spot, USDT-margined and coin-margined futures markets, a user's own tables, and the built-in simulator."""

SPOT: Final = "spot"
OWN: Final = "own"
SIM: Final = "sim"
APART = (OWN, SIM)
"""Markets that are not Binance's: each has a home of its own in `HOME`, with its own manifest, lock and fleets."""

MARKETS: tuple[Market, ...] = get_args(Market)
_REGISTERED = "cpb-"


def check_symbol(text: str) -> str:
    """Return the text if it can be a Binance symbol, and hence a folder of the store.

    Raises:
        UsageError: it cannot.
    """
    if not SYMBOL.fullmatch(text):
        raise UsageError(f"symbol {text!r} is not one of Binance's: use letters and digits, as in BTCUSDT",
                         code="symbol", field="symbol")  # fmt: skip
    return text


def check_timeframe(text: str) -> str:
    """Return the text if it is an interval of Binance; raises `UsageError` otherwise."""
    if text not in INTERVAL_SECONDS and text != MONTH:
        raise UsageError(f"timeframe {text!r} is unknown: choose from {', '.join([*INTERVAL_SECONDS, MONTH])}",
                         code="timeframe", field="timeframe")  # fmt: skip
    return text


@dataclass(frozen=True, order=True)
class SeriesId:
    """One series of candles: a market's symbol at an interval."""

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
        """The symbol, with its market where that is not spot: `BTCUSDT`, `um-BTCUSDT`."""
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
        """The options of the command line that name this series: `--coins BTCUSDT --timeframes 1h --market um`."""
        market = {SPOT: "", SIM: " --source sim", OWN: " --source TABLE"}.get(
            self.market, f" --market {self.market}"
        )
        return f"--coins {self.symbol} --timeframes {self.timeframe}{market}"

    @property
    def seconds(self) -> int:
        """Length of a candle; not defined for the calendar month."""
        return INTERVAL_SECONDS[self.timeframe]

    @classmethod
    def parse(cls, name: str) -> "SeriesId":
        """Return the series behind a `name` or a registered model's name.

        Raises:
            UsageError: the text is neither.
        """
        parts = name.removeprefix(_REGISTERED).split("-")
        market = parts.pop(0) if len(parts) == 3 and parts[0] in MARKETS else SPOT
        if len(parts) != 2:
            raise UsageError(f"{name!r} names no series: write BTCUSDT-1h, or um-BTCUSDT-1h", code="series")
        return cls(market, *parts)  # type: ignore[arg-type]

    def folder(self, home: Path, tree: str) -> Path:
        """Return where a tree of the store keeps this series, as in `HOME/klines/interval=1h/symbol=BTCUSDT`.

        The trees of futures carry their market's name (`klines-um`), those of `APART` lie in `HOME/sim`, `HOME/own`.
        """
        return tree_of(home, tree, self.market).joinpath(f"interval={self.timeframe}/symbol={self.symbol}")


def market_home(home: Path, market: str) -> Path:
    """Return the folder that holds a market's manifest, fleets and packages: `HOME`, `HOME/sim` or `HOME/own`."""
    return home / market if market in APART else home


def tree_of(home: Path, tree: str, market: str) -> Path:
    """Return a tree of one market: `HOME/klines`, `HOME/klines-um`, `HOME/sim/klines`."""
    return market_home(home, market) / (tree if market in (SPOT, *APART) else f"{tree}-{market}")


def stored_series(home: Path, tree: str) -> list[SeriesId]:
    """Return every series that has a folder in a tree of the store, in order; foreign folders are left out."""
    return sorted(series for market in MARKETS for series in _in_tree(tree_of(home, tree, market), market))


def _in_tree(tree: Path, market: str) -> Iterator[SeriesId]:
    for folder in tree.glob("interval=*/symbol=*"):
        symbol, timeframe = folder.name.removeprefix("symbol="), folder.parent.name.removeprefix("interval=")
        if SYMBOL.fullmatch(symbol) and (timeframe in INTERVAL_SECONDS or timeframe == MONTH):
            yield SeriesId(market, symbol, timeframe)  # type: ignore[arg-type]


@dataclass(frozen=True, order=True)
class ModelId:
    """One model. `recipe`: the preset's name, with a digest of what differs from it (`default+1f0c9a2b`)."""

    architecture: str
    recipe: str
    series: SeriesId
    seed: int

    def __str__(self) -> str:
        """Return the name used in messages and of the run in MLflow: `har/BTCUSDT/1h`."""
        return f"{self.architecture}/{self.series.label}/{self.series.timeframe}"

    @property
    def name(self) -> str:
        """All of it, as one text: `har/default/BTCUSDT-1h/123`."""
        return f"{self.architecture}/{self.recipe}/{self.series.name}/{self.seed}"


@dataclass(frozen=True, order=True)
class Recipe:
    """How a model is made, whatever candles it learns.

    `architecture` may end in `-universal`. `digest`: of the columns and options as they were resolved, so that a preset
    whose definition has changed is another recipe.
    """

    architecture: str
    preset: str
    digest: str

    def __str__(self) -> str:
        """Return it as one text: `har-universal/default/3f9a12c0d4e5`."""
        return f"{self.architecture}/{self.preset}/{self.digest}"

    @classmethod
    def parse(cls, text: str) -> "Recipe":
        """Return the recipe behind a text; raises `UsageError` for any other text."""
        parts = text.split("/")
        if len(parts) != 3:
            raise UsageError(f"{text!r} names no recipe: write har/default/3f9a12c0d4e5", code="recipe")
        return cls(*parts)


def is_series_name(text: str) -> bool:
    """Whether a text, such as the name of a folder, is a series' name as `SeriesId.parse` reads it."""
    try:
        SeriesId.parse(text)
    except UsageError:
        return False
    return True
