"""Tables of candles as a source: `--source candles.csv`, or a folder of `SYMBOL-INTERVAL.csv` (parquet, feather).

The series of a table is given by its columns `symbol` and `timeframe`, otherwise by the command for a single file, or
by a file name that is understood as a whole (`schemas.file_names`); as a last resort the timeframe is the interval
between candles. `cpbmodels.data.candles` reads the candles, as it does for the library.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from cpbmodels.data import INTERVAL_SECONDS, TABLE_SUFFIXES
from cpbmodels.errors import ModelError
from schemas.base import names_in
from schemas.coins import SYMBOL, symbol_of
from schemas.errors import UsageError
from schemas.file_names import BINANCE_NAME, FileName, base_of_pair, read_name, timeframe_of
from schemas.reading import Reading

if TYPE_CHECKING:
    import polars as pl  # imported when a table is read: most commands read no table

    from cpbmodels.data.candles import Candles
    from cpbmodels.data.raw_tables import ReadTable

_OTHER_KINDS = (
    ".tsv",
    ".txt",
    ".xls",
    ".xlsx",
    ".ods",
    ".json",
    ".jsonl",
    ".h5",
    ".hdf",
    ".pkl",
    ".zip",
    ".tar",
    ".bz2",
    ".xz",
    ".zst",
    ".arrow",
    ".orc",
    ".avro",
    ".db",
    ".sqlite",
)

_HELP = "as in BTCUSDT-1h.csv, or add a column symbol"


def is_table(source: str | None) -> bool:
    """Whether a source is a table file or a folder of tables, and not a mirror of Binance Vision.

    Raises:
        UsageError: a folder holds tables beside Binance's own files.
    """
    if not source or "://" in source:
        return False
    path = Path(source)
    if os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises for a name that is too long)
        # Binance's own layout: whatever else lies in the folder, it is a mirror
        if any((path / "data" / folder).is_dir() for folder in ("spot", "futures")):
            return False
        files = _files(path)
        if files and (binances := sorted(p.name for p in path.iterdir() if BINANCE_NAME.fullmatch(p.name))):
            raise UsageError(
                f"source: {path} holds the table {files[0].name} beside Binance's own {binances[0]}: put one of the "
                "two kinds into another folder",
                code="table",
                field="source",
            )
        return bool(files)
    return path.name.lower().endswith(TABLE_SUFFIXES)


def tables_of(
    source: str, coins: str = "all", timeframes: str = "", reading: Reading | None = None
) -> "Tables":
    """Return the tables of a file or folder, cached while the files are unchanged.

    coins, timeframes: those of the command. A single one names the series of a single file whose name does not.

    Raises:
        UsageError: a file does not exist, cannot be read, or names no series; says what to do.
    """
    path = Path(source)
    files = _files(path) if os.path.isdir(path) else [path]  # noqa: PTH112
    try:
        # the cache's key: a file that was written anew is read anew
        versions = tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    except OSError as error:
        raise _wrong(path, f"cannot be read ({error.strerror}); check its name") from error
    asked = ("", "")
    # of several files one name would be right for one of them at most
    if len(files) == 1:
        coin = "" if coins.strip().lower() in ("", "all", "champions") or "," in coins else _clean(coins)
        asked = coin, timeframes if timeframes in INTERVAL_SECONDS else ""
    return _opened(path, versions, asked, reading or Reading())


@dataclass(frozen=True)
class SeriesTable:
    """The candles of a series in a file."""

    path: Path
    symbol: str
    timeframe: str | None
    table: "ReadTable" = field(repr=False)

    @cached_property
    def read(self) -> "Candles":
        """The validated, closed candles; see `cpbmodels.data.candles.check_candles`.

        Raises:
            UsageError: names the file, the row and what to do.
        """
        from cpbmodels.data.candles import check_candles

        try:
            candles = check_candles(self.table, self.timeframe, partial="drop")
        except ModelError as error:
            raise _unread(error) from error
        if candles.frame.is_empty():
            raise _wrong(
                self.path,
                "has no candle that closes before now: its times may be shifted, they must be those at "
                "which candles open, in UTC",
            )
        return candles


@dataclass(frozen=True)
class Tables:
    """The tables of a source by symbol and timeframe."""

    path: Path
    series: Mapping[tuple[str, str], SeriesTable]

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols, in order."""
        return tuple(dict.fromkeys(symbol for symbol, _ in self.series))

    @property
    def timeframes(self) -> tuple[str, ...]:
        """The timeframes, shortest first."""
        return tuple(sorted({timeframe for _, timeframe in self.series}, key=list(INTERVAL_SECONDS).index))

    def coins(self, text: str) -> str:
        """Return the symbols that a `--coins` text selects.

        `BTC` is BTC where a table has this name, else BTCUSDT, else its pair with another currency if there is one.

        Raises:
            UsageError: a symbol is in no table, or a coin in several.
        """
        if text.strip().lower() == "all":
            return ",".join(self.symbols)
        names = names_in(text)
        symbols = [self._selected(name) for name in names]
        missing = [name for name, symbol in zip(names, symbols, strict=True) if not symbol]
        if missing or not names:
            raise UsageError(
                f"coins {text!r}: {self.path} holds {', '.join(self.symbols)} and no "
                f"{', '.join(missing) or 'other'}; name one of these, or all",
                code="coins",
            )
        return ",".join(symbols)

    def _selected(self, name: str) -> str:
        """Return the symbol that a name means, "" for none."""
        coin = _clean(name)
        # BTC is a symbol of its own in a table of shares, before it is BTCUSDT
        if exact := [symbol for symbol in _meant(coin) if symbol in self.symbols]:
            return exact[0]
        pairs = [symbol for symbol in self.symbols if base_of_pair(symbol) == coin]
        if len(pairs) > 1:
            raise UsageError(
                f"coins {name!r}: {self.path} holds {', '.join(pairs)}; name one of these", code="coins"
            )
        return pairs[0] if pairs else ""


@lru_cache(maxsize=4)
def _opened(
    path: Path, versions: tuple[tuple[Path, int, int], ...], asked: tuple[str, str], reading: Reading
) -> Tables:
    series: dict[tuple[str, str], SeriesTable] = {}
    for file, _, _ in versions:
        for table in _tables_in(file, asked, reading):
            # only now are the candles checked: the interval between them tells the timeframe that nothing else does
            name = table.symbol, table.timeframe or table.read.timeframe
            if name in series:
                raise _wrong(
                    file, f"holds {' '.join(name)} like {series[name].path.name}: keep one of the two here"
                )
            series[name] = table
    return Tables(path, series)


def _tables_in(file: Path, asked: tuple[str, str], reading: Reading) -> list[SeriesTable]:
    """Return the tables of a file; the series is taken from the columns, missing parts from command and file name.

    asked: coin and timeframe that the command asks for of this file alone; "" without one.
    """
    from cpbmodels.data.candles import read_table
    from cpbmodels.data.raw_tables import ROW

    try:
        whole = read_table(file, str(file), columns=reading.roles, decimal=reading.decimal)  # type: ignore[arg-type]
    except ModelError as error:
        raise _unread(error) from error
    rows, name = whole.frame, read_name(_stem(file))
    keys = [role for role in ("symbol", "timeframe") if role in rows.columns]
    for key in keys:
        # a row without its series would silently go to none
        if (missing := rows[key].is_null() | (rows[key] == "")).any():
            place = whole.place(int(rows[ROW].filter(missing)[0]))
            raise _wrong(
                file, f"has rows without a {whole.called[key]}, first {place}: fill it in or remove them"
            )
    # the file's name counts against its column only if every letter of it was understood
    told = _clean(name.symbol) if name.is_pair and not name.unknown else ""
    rows = _with_timeframes(_with_symbols(rows, file, told, asked[0]), name)
    tables = []
    for (symbol, timeframe), part in rows.partition_by(
        "symbol", "timeframe", as_dict=True, maintain_order=True
    ).items():
        if timeframe is not None and timeframe not in INTERVAL_SECONDS:
            raise _wrong(
                file,
                f"has candles of {timeframe!r}, which is not a timeframe: write {', '.join(INTERVAL_SECONDS)}",
            )
        label = f"{file}, {symbol}" if "symbol" in keys else str(file)
        table = SeriesTable(file, str(symbol), timeframe, replace(whole, frame=part, label=label))
        # the command's word is the last: a wrong --timeframes must not rename what the candles tell
        if timeframe is None and asked[1] and not _tells_timeframe(table):
            table = replace(table, timeframe=asked[1])
        tables.append(table)
    # a file's name and its only symbol disagree: one is wrong, and candles of the wrong coin train without a sign
    found = {table.symbol for table in tables}
    if (
        "symbol" in keys
        and told
        and len(found) == 1
        and told not in found
        and not found & {*_meant(asked[0])}
    ):
        raise _wrong(
            file,
            f"is called {told}, and its column {whole.called['symbol']} says {', '.join(found)}: rename it, or "
            f"name the right one with --coins {', '.join(found)}",
        )
    return tables


def _with_symbols(rows: "pl.DataFrame", file: Path, told: str, asked: str) -> "pl.DataFrame":
    """Return rows with their symbol: of the column, else of the file; `told`: by the file's name."""
    if "symbol" not in rows.columns:
        return rows.with_columns(symbol=_literal(_symbol_of_file(file, asked)))
    written = rows["symbol"].unique(maintain_order=True).to_list()
    symbols = {text: _symbol(text, file) for text in written}
    if {base_of_pair(told)} == {*symbols.values()}:  # the name tells the currency, too
        symbols = dict.fromkeys(written, told)
    return rows.with_columns(symbol=rows["symbol"].replace(symbols))


def _with_timeframes(rows: "pl.DataFrame", name: FileName) -> "pl.DataFrame":
    """Return rows with their timeframe: of the column, else of the file's name; null where neither says."""
    if "timeframe" not in rows.columns:
        return rows.with_columns(timeframe=_literal(None if name.unknown else name.timeframe))
    written = rows["timeframe"].unique(maintain_order=True).to_list()
    # Bybit writes 60
    names = {text: timeframe_of(text) or text for text in written}
    return rows.with_columns(timeframe=rows["timeframe"].replace(names))


def _literal(text: str | None) -> "pl.Expr":
    import polars as pl

    return pl.lit(text, pl.String)


def _tells_timeframe(table: SeriesTable) -> bool:
    """Whether the interval between candles tells the timeframe."""
    try:
        return bool(table.read.timeframe)
    except UsageError:
        return False


def _symbol_of_file(file: Path, asked: str) -> str:
    """Return the symbol of a file of one series; see `_tables_in`.

    Raises:
        UsageError: neither its name nor the command tells; the message names the part that is not understood.
    """
    name = read_name(_stem(file))
    # name and command agree
    if asked and name.symbol in _meant(asked):
        return name.symbol
    # the name tells no pair, so the command decides
    if asked and not name.is_pair and (name.unknown or not name.symbol):
        return symbol_of(asked)
    if name.symbol and (asked or not name.unknown):
        return name.symbol  # of another coin, `Tables.coins` refuses it
    what = f"{name.unknown!r} in its name is not understood" if name.unknown else "its name tells no symbol"
    raise _wrong(
        file,
        f"names no symbol that is certain, because {what}: say which series it holds, with "
        f"--coins {name.symbol or 'BTCUSDT'} --timeframes {name.timeframe or '1h'} for this file alone, call it "
        f"SYMBOL-INTERVAL, {_HELP}",
    )


def _symbol(text: str, file: Path) -> str:
    symbol = _clean(text)
    if not SYMBOL.fullmatch(symbol):
        raise _wrong(
            file, f"calls its symbol {text!r}: use letters and digits, as in BTCUSDT or BTC/USDT; {_HELP}"
        )
    return symbol


def _meant(coin: str) -> tuple[str, ...]:
    """Return the symbols that a coin may mean: itself, and its pair; none for ""."""
    return (coin, symbol_of(coin)) if coin else ()


def _clean(text: str) -> str:
    """`BTC/USDT`, `btc_usdt`, `BTC/USDT:USDT` -> `BTCUSDT`."""
    from cpbmodels.data.column_names import clean_symbol

    return clean_symbol(text)


def _files(folder: Path) -> list[Path]:
    """Return the tables in a folder, without Binance's own files."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.name.lower().endswith(TABLE_SUFFIXES)
        and path.is_file()
        and not BINANCE_NAME.fullmatch(path.name)
    )


def unread_files(folder: Path) -> list[str]:
    """Return the files of a folder of tables that look like tables of a kind that is not read."""
    return sorted(
        path.name for path in folder.iterdir() if path.name.lower().endswith(_OTHER_KINDS) and path.is_file()
    )


def _stem(file: Path) -> str:
    return next(file.name[: -len(suffix)] for suffix in TABLE_SUFFIXES if file.name.lower().endswith(suffix))


def _unread(error: ModelError) -> UsageError:
    return UsageError(f"source: {str(error).rstrip('.')}", code="table", field="source")


def _wrong(path: Path, what: str) -> UsageError:
    return UsageError(f"source: {path} {what}", code="table", field="source")
