"""Which column of a table holds the open times, the prices, the volume, and the names of the series.

An exact name (`close`, or `c` as in exchanges' messages) is taken before one that differs in its capitals or marks
(`Close`, `<CLOSE>`). Names of one letter count in small letters alone: in Binance's websocket klines `l` is the low and
`L` the last trade's id, `v` the volume and `V` the takers', `t` the open time and `T` the close time.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cpbmodels.data import CURRENCIES, INTERVAL_SECONDS, MONEY
from cpbmodels.data.columns import PRICES
from cpbmodels.errors import ModelError, unknown_choice

TIME_NAMES = ("open_time", "timestamp", "unix", "ts", "t", "datetime", "date", "time")
"""Columns that may hold the open times: the first that needs no zone, else the first; without one a time index."""
SYMBOL_NAMES = ("symbol", "pair", "ticker", "instrument", "instrument_name", "inst_id", "product_id", "coin")
TIMEFRAME_NAMES = ("timeframe", "interval")
"""Columns that may name the series of a row; the first existing column is used."""
NUMBERS = (*PRICES, "volume")
ROLES = ("time", *NUMBERS, "symbol", "timeframe")
"""What `columns` may name."""

_SHORT = {"open": "o", "high": "h", "low": "l", "close": "c", "volume": "v"}
_UNNAMED = ("__index_level_0__", "", "Unnamed: 0")
"""Names that pandas gives to an index without a name, in parquet and CSV files and when it reads the latter."""
_REPEATED = re.compile(r"^(.+?)(_duplicated_\d+|\.\d+)$")
_PRICED_IN = {*MONEY, "CURRENCY", "QUOTE"}
"""Units of the amount in money: `Volume BTC` is the volume where `Volume USDT` is beside it."""
_UNIT = re.compile(r"[A-Z0-9]{2,10}|[a-z0-9]{2,10}")
_NO_COINS = {
    "24H",
    "AVG",
    "CHANGE",
    "DELTA",
    "DIFF",
    "EMA",
    "LOG",
    "MA",
    "MEAN",
    "NORM",
    "OSC",
    "PCT",
    "RATIO",
    "ROC",
    "SMA",
    "STD",
    "VWAP",
    "WMA",
    "ZSCORE",
}
"""What programs compute from volumes: `Volume MA` is none."""


class Chosen(NamedTuple):
    """Columns of a table. `times`: candidates by their names in `TIME_NAMES`; `numbers`: by `NUMBERS`."""

    times: dict[str, str]
    numbers: dict[str, str]
    symbol: str | None
    timeframe: str | None


def folded(column: object) -> str:
    """`<OPEN>`, `"Open"`, `Open Time`, `openTime` -> `open`, `open`, `open_time`, `open_time`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(column).strip(" <>\"'"))
    return words.lower().replace(" ", "_")


def is_known(column: object) -> bool:
    """Whether a column is one of those that are read, by its name alone."""
    exact = {*TIME_NAMES, *NUMBERS, *_SHORT.values()}
    return str(column) in exact or (len(folded(column)) > 1 and folded(column) in exact)


def is_read(column: object) -> bool:
    """Whether a column may be read, or say something of the form of its table."""
    name = folded(column)
    others = {*SYMBOL_NAMES, *TIMEFRAME_NAMES, "s", "i", "price"}
    if is_known(_without_number(str(column))) or name in others or str(column) in _UNNAMED:
        return True
    return re.match(r"volume[_ (]", name) is not None


def may_be_volume(column: object) -> bool:
    """Whether a column's name speaks of a volume, as `vol`, `Volume USDT` and `<TICKVOL>` do."""
    return re.search("vol(?!atil)", folded(column)) is not None


def choose(names: Sequence[str], label: str, given: Mapping[str, str] | None = None) -> Chosen:
    """Return the columns to read.

    Args:
        names: of the table, in its order.
        label: what messages call the table.
        given: columns by their role, one of `ROLES`; those go before all names.

    Raises:
        ModelError: a column is missing, or two may be meant; the sentence names them and the option that tells.
    """
    given = {role: _named(names, role, column, label) for role, column in (given or {}).items()}
    times = {"time": given["time"]} if "time" in given else {}
    if not times:
        times = {name: column for name in TIME_NAMES if (column := _one(names, name, "time", label))}
    if not times:
        unnamed = [name for name in names if name in _UNNAMED]
        times = {"the index": unnamed[0]} if unnamed else {}
    numbers = {}
    for role in NUMBERS:
        column = given.get(role) or _one(names, role, role, label, _SHORT[role])
        if column is None and role == "volume":
            column = _named_volume(names, label)
        if column is not None:
            numbers[role] = column
    symbol, timeframe = (
        given.get(role) or next((c for name in listed if (c := _one(names, name, role, label))), None)
        for role, listed in (("symbol", SYMBOL_NAMES), ("timeframe", TIMEFRAME_NAMES))
    )
    if not symbol and {"s", "i", "t", "o"} <= set(names):  # Binance's websocket klines
        symbol, timeframe = "s", timeframe or "i"
    return Chosen(times, numbers, symbol, timeframe)


def option(role: str, column: str) -> str:
    """Return how a person says which column is meant, on the command line and in Python."""
    typed = shlex.quote(f"{role}={column}")
    return f"say which is meant with --columns {typed} (in Python columns={{{role!r}: {column!r}}})"


def check_roles(given: Mapping[str, str]) -> None:
    """Raise `ModelError` for a role that no table has."""
    for role in given:
        if role not in ROLES:
            raise ModelError(unknown_choice("columns: the name", role, ROLES))


def _named(names: Sequence[str], role: str, column: str, label: str) -> str:
    check_roles({role: column})
    matching = [name for name in names if name == column] or [
        name for name in names if folded(name) == folded(column)
    ]
    if len(matching) != 1:
        listed = ", ".join(map(str, names)) or "none"
        many = "several columns are" if matching else "there is no column"
        raise ModelError(
            f"{label}: {many} called {column!r}, given as {role} (columns: {listed}): write it as there."
        )
    return matching[0]


def _one(names: Sequence[str], wanted: str, role: str, label: str, short: str = "") -> str | None:
    """The column called `wanted`, or `short`; exactly before in other letters, which must not be two."""
    for matches in (
        [name for name in names if name and _without_number(name) in (wanted, short)],
        [name for name in names if len(wanted) > 1 and folded(_without_number(name)) == wanted],
    ):
        if len(matches) > 1:
            first, second = map(_without_number, matches[:2])
            told = f"{option(role, first)}, or remove one" if first != second else "remove one, or rename it"
            raise ModelError(f"{label}: the columns {first!r} and {second!r} may both be the {role}: {told}.")
        if matches:
            return matches[0]
    return None


def _without_number(name: str) -> str:
    """`close` of `close_duplicated_0` (polars) or `close.1` (pandas), names of a column that a table has twice."""
    return _REPEATED.sub(r"\1", name)


def _named_volume(names: Sequence[str], label: str) -> str | None:
    """`Volume BTC`, or `Volume_(BTC)`, of a coin; an amount of the currency that it is priced in is no volume."""
    units = {
        name: match[1]
        for name in names
        if (match := re.fullmatch(r"(?i:volume)[_ ]\(?(\w+?)\)?", name.strip(" <>\"'")))
    }
    coins = [
        name
        for name, unit in units.items()
        if _UNIT.fullmatch(unit) and unit.upper() not in _PRICED_IN | _NO_COINS
    ]
    if len(coins) > 1:
        raise ModelError(
            f"{label}: the columns {coins[0]!r} and {coins[1]!r} may both be the volume: "
            f"{option('volume', coins[0])}."
        )
    return coins[0] if coins else None


def clean_symbol(text: str) -> str:
    """`BTC/USDT`, `btc_usdt`, `BTC/USDT:USDT`, `BINANCE:BTCUSDT` -> `BTCUSDT`.

    Where neither what is behind a colon nor what is before it is certain to be the pair, the colon stays.
    """
    before, colon, behind = text.strip().upper().partition(":")
    if not colon or "/" in before or behind in CURRENCIES:  # the currency in which a future is settled
        pair = before
    else:  # an exchange
        pair = behind if behind.endswith(CURRENCIES) and not before.endswith(CURRENCIES) else text.upper()
    return re.sub(r"[-/_ ]", "", pair)


def are_intervals(values: Sequence[str]) -> bool:
    """Whether all values are timeframes of Binance."""
    return set(values) <= set(INTERVAL_SECONDS)
