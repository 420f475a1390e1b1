"""Tables of candles as a source: `--source candles.csv`, or a folder of `SYMBOL-INTERVAL.csv` (parquet, feather).

The series of a table is given by its columns `symbol` and `timeframe`, otherwise by its file name; as a last resort the
timeframe is the interval between candles. `cpbmodels.data.candles` reads the candles, as it does for the library.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from cpbmodels.data import INTERVAL_SECONDS
from cpbmodels.errors import ModelError
from schemas.errors import UsageError
from schemas.identity import COINS, SYMBOL, symbol_of

if TYPE_CHECKING:
    import polars as pl  # imported when a table is read: most commands read no table

    from cpbmodels.data.candles import Candles

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".feather")
SYMBOL_NAMES, TIMEFRAME_NAMES = ("symbol", "pair"), ("timeframe", "interval")
"""Columns that may name the series of a row; the first existing column is used."""

_NAMED = re.compile(rf"(?P<symbol>.+?)[-_ ](?P<timeframe>{'|'.join(INTERVAL_SECONDS)})")
_TRADINGVIEW = re.compile(r"[A-Z0-9]+_(?P<symbol>[A-Z0-9.]+), (?P<length>\d*[A-Z]?)\b.*")
"""`BINANCE_BTCUSDT, 60`: the name of TradingView's exports."""
_LENGTHS = {str(seconds // 60): name for name, seconds in INTERVAL_SECONDS.items() if seconds >= 60}
_LENGTHS |= {"D": "1d", "1D": "1d", "3D": "3d", "W": "1w", "1W": "1w"}
_HELP = "as in BTCUSDT-1h.csv, add a column symbol, or name the coin of a single file with --coins"


def is_table(source: str | None) -> bool:
    """Whether a source is a table file or a folder of tables, and not a mirror of Binance Vision."""
    if not source or "://" in source:
        return False
    path = Path(source)
    if os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises for a name that is too long)
        return not (path / "data").is_dir() and bool(_files(path))
    return path.name.lower().endswith(SUFFIXES)


def tables_of(source: str, coins: str = "all") -> "Tables":
    """Return the tables of a file or folder, cached while the files are unchanged.

    coins: those of the command. A single one names the series of a single file whose name does not.

    Raises:
        UsageError: a file does not exist, cannot be read, or names no series; says what to do.
    """
    path = Path(source)
    files = _files(path) if os.path.isdir(path) else [path]  # noqa: PTH112
    try:
        versions = tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files)
        asked = "" if coins.strip().lower() in ("", "all", "champions") or "," in coins else _clean(coins)
        return _opened(path, versions, asked)
    except OSError as error:
        raise _wrong(path, f"cannot be read ({error.strerror}); check its name") from error


@dataclass(frozen=True)
class Table:
    """The candles of a series in a file. `label`: its name in messages."""

    path: Path
    label: str
    symbol: str
    timeframe: str | None
    table: "pl.DataFrame" = field(repr=False)
    notes: list[str] = field(default_factory=list)

    @cached_property
    def read(self) -> "Candles":
        """The validated, closed candles; see `cpbmodels.data.candles.read_candles`.

        Raises:
            UsageError: names the file, the row and what to do.
        """
        from cpbmodels.data.candles import read_candles

        try:
            candles = read_candles(self.table, self.label, self.timeframe, partial="drop", naive_is_utc=True)
        except ModelError as error:
            raise _unread(error) from error
        if candles.frame.is_empty():
            raise _wrong(
                self.path, "has no candle that closes before now: its times may be shifted, they must be those at "
                "which candles open, in UTC",
            )  # fmt: skip
        return candles._replace(notes=[*self.notes, *candles.notes])


@dataclass(frozen=True)
class Tables:
    """The tables of a source by symbol and timeframe."""

    path: Path
    series: Mapping[tuple[str, str], Table]

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols, in order."""
        return tuple(dict.fromkeys(symbol for symbol, _ in self.series))

    @property
    def timeframes(self) -> tuple[str, ...]:
        """The timeframes, shortest first."""
        return tuple(sorted({timeframe for _, timeframe in self.series}, key=list(INTERVAL_SECONDS).index))

    def coins(self, text: str) -> str:
        """Return the symbols that a `--coins` text selects: `BTC` is BTCUSDT unless a table is named BTC.

        Raises:
            UsageError: a symbol is in no table.
        """
        if text.strip().lower() == "all":
            return ",".join(self.symbols)
        names = [part for part in text.split(",") if part.strip()]
        held = set(self.symbols)
        symbols = [next((n for n in _meant(_clean(name)) if n in held), "") for name in names]
        missing = [name.strip() for name, symbol in zip(names, symbols, strict=True) if not symbol]
        if missing or not names:
            raise UsageError(
                f"coins {text!r}: {self.path} holds {', '.join(self.symbols)} and no "
                f"{', '.join(missing) or 'other'}; name one of these, or all",
                code="coins",
            )  # fmt: skip
        return ",".join(symbols)


@lru_cache(maxsize=4)
def _opened(path: Path, versions: tuple[tuple[Path, int, int], ...], symbol: str) -> Tables:
    series: dict[tuple[str, str], Table] = {}
    for file, _, _ in versions:
        for table in _tables_in(file, symbol if len(versions) == 1 else ""):
            name = table.symbol, table.timeframe or table.read.timeframe
            if name in series:
                raise _wrong(
                    file, f"holds {' '.join(name)} like {series[name].path.name}: keep one of the two here"
                )
            series[name] = table
    return Tables(path, series)


def _tables_in(file: Path, asked: str) -> list[Table]:
    """Return the tables of a file; the series is taken from the columns, missing parts from the file name.

    asked: the coin that the command asks for, of a file whose name has no symbol or it as a word; "" without one.
    """
    from cpbmodels.data.candles import read_file

    symbol, timeframe = _told_by_name(file)
    meant = _meant(asked) if asked else ()
    # BTCUSDT is one of Bitstamp_BTC_USDT, not of WBTCUSDT
    word = "|".join("[-/_ ]?".join(name) for name in meant)
    if meant and _clean(symbol) not in meant and (
        not SYMBOL.fullmatch(_clean(symbol)) or re.search(rf"(?<![A-Z0-9])({word})(?![A-Z])", _stem(file).upper())
    ):  # fmt: skip
        symbol = meant[-1]
    try:
        rows, notes = read_file(file)
    except ModelError as error:
        raise _unread(error) from error
    columns = [name for names in (SYMBOL_NAMES, TIMEFRAME_NAMES) if (name := _column(rows, names))]
    if not columns:
        if not symbol:
            raise _wrong(file, f"names no symbol: call it SYMBOL-INTERVAL, {_HELP}")
        return [Table(file, str(file), _symbol(symbol, file), timeframe, rows, notes)]
    if empty := [name for name in columns if rows[name].null_count()]:
        raise _wrong(file, f"has rows without a {empty[0]}: fill it in or remove them")
    if rows.is_empty():
        raise _wrong(file, "holds no candle: there is nothing below its header")
    parts = rows.partition_by(columns, as_dict=True, maintain_order=True)
    return [
        _part(file, dict(zip(columns, key, strict=True)), (symbol, timeframe), part, notes)
        for key, part in parts.items()
    ]


def _told_by_name(file: Path) -> tuple[str, str | None]:
    """Return symbol and timeframe from a file's name; `candles-1h` gives no symbol: it is no pair, and lower case."""
    stem = _stem(file)
    if exported := _TRADINGVIEW.fullmatch(stem):
        return exported["symbol"], _LENGTHS.get(exported["length"])
    named = _NAMED.fullmatch(stem)
    symbol, timeframe = (named["symbol"], named["timeframe"]) if named else (stem, None)
    coin = _clean(symbol)
    is_symbol = (
        symbol == symbol.upper() or coin in COINS or (SYMBOL.fullmatch(coin) and symbol_of(coin) == coin)
    )
    return symbol if is_symbol else "", timeframe


def _part(
    file: Path, key: dict[str, object], named: tuple[str, str | None], rows: "pl.DataFrame", notes: list[str]
) -> Table:
    """Return a series of a file by its columns; `named`: symbol and timeframe from the file name."""
    by_kind = {name.lower(): str(value) for name, value in key.items()}
    symbol = next((by_kind[n] for n in SYMBOL_NAMES if n in by_kind), named[0] or _stem(file))
    timeframe = next((by_kind[n] for n in TIMEFRAME_NAMES if n in by_kind), named[1])
    if timeframe is not None and timeframe not in INTERVAL_SECONDS:
        raise _wrong(
            file,
            f"has candles of {timeframe!r}, which is not a timeframe: write {', '.join(INTERVAL_SECONDS)}",
        )
    return Table(file, f"{file}, {symbol}", _symbol(symbol, file), timeframe, rows, notes)


def _column(frame: "pl.DataFrame", names: tuple[str, ...]) -> str:
    return next((column for name in names for column in frame.columns if column.lower() == name), "")


def _symbol(text: str, file: Path) -> str:
    symbol = _clean(text)
    if not SYMBOL.fullmatch(symbol):
        raise _wrong(
            file, f"calls its symbol {text!r}: use letters and digits, as in BTCUSDT or BTC/USDT; {_HELP}"
        )
    return symbol


def _meant(coin: str) -> tuple[str, str]:
    """Return the symbols that a coin may mean: itself, and its pair."""
    return coin, symbol_of(coin)


def _clean(text: str) -> str:
    """`BTC/USDT`, `btc_usdt`, `BTC/USDT:USDT` -> `BTCUSDT`."""
    return re.sub(r"[-/_ ]", "", text.partition(":")[0]).upper()


def _files(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.name.lower().endswith(SUFFIXES) and path.is_file()
    )


def _stem(file: Path) -> str:
    return next(file.name[: -len(suffix)] for suffix in SUFFIXES if file.name.lower().endswith(suffix))


def _unread(error: ModelError) -> UsageError:
    return UsageError(f"source: {str(error).rstrip('.')}", code="table", field="source")


def _wrong(path: Path, what: str) -> UsageError:
    return UsageError(f"source: {path} {what}", code="table", field="source")
