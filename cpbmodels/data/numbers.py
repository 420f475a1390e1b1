"""Numbers in texts, read by the one convention that all cells of a table allow: decimal point or comma, grouped or not.

`94401.14`, `94,401.14`, `94.401,14`, `94 401,14` and `94'401.14` are one number, and `3,364` may be two: 3.364 or 3364.
A table is written by one convention, so other cells may tell which: `0,364` and `94,401.14` can be read in one way
only. Where no cell tells, the table is refused instead of read a thousand times too large or too small.
"""

import re
import unicodedata
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

Decimal = Literal["point", "comma"]
MARKS: dict[Decimal, str] = {"point": ".", "comma": ","}

CURRENCIES = (
    "USDT", "USDC", "FDUSD", "TUSD", "BUSD", "DAI", "USD", "EUR", "GBP", "JPY", "CHF", "CNY", "KRW", "INR", "BRL",
    "TRY", "RUB", "AUD", "CAD", "NZD", "SGD", "HKD", "MXN", "ZAR", "PLN", "UAH", "IDR", "THB", "VND", "SEK", "NOK",
    "DKK", "CZK", "BTC", "XBT", "ETH", "BNB",
)  # fmt: skip
"""Codes that may stand beside a number."""

MISSING = ("", "nan", "null", "none", "na", "n/a", "-", "--")
"""Texts, in small letters, of a cell without a number."""

_PLAIN = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_LONE_POINT = r"^[+-]?[1-9][0-9]{0,2}\.[0-9]{3}([eE][+-]?[0-9]+)?$"
"""`1.234`: where the comma is the decimal mark, this is 1234."""
_LOOKALIKES = str.maketrans({"\u2212": "-", "\u2019": "'", "\uff0c": ",", "\uff0e": "."})
_CODE = f"(?i:{'|'.join(CURRENCIES)})"
_CODE_BEFORE = re.compile(rf"(?P<unit>{_CODE})\s*(?P<rest>[\d.+-].*)", re.ASCII)
_CODE_BEHIND = re.compile(rf"(?P<rest>.*[\d.])\s*(?P<unit>{_CODE})", re.ASCII)
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<digits>[\d.,' ]*\d[\d.,' ]*)(?P<exponent>[eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[0-9]*|[1-9][0-9]{0,2}(?P<group>[.,' ])[0-9]{3}((?P=group)[0-9]{3})*")
"""Digits before the decimal mark, together or in groups of three by one separator."""
Readings = dict[Decimal, float]


class Cell(NamedTuple):
    """A cell of a table: its column, its row in the column and its text."""

    column: str
    row: int
    text: str


class NumbersError(ValueError):
    """Texts that are no numbers, or that may be two.

    kind: "no-number", "two-readings" (no cell tells which) or "two-conventions" (`cells` contradict each other).
    """

    def __init__(self, kind: str, *cells: Cell, readings: tuple[float, ...] = ()) -> None:
        self.kind, self.cells, self.readings = kind, cells, readings
        super().__init__(f"{kind}: {', '.join(f'{c.column} {c.text!r} in row {c.row}' for c in cells)}")


def read_numbers(
    columns: Mapping[str, pl.Series], decimal: Decimal | None = None, *, point_is_decimal: bool = False
) -> dict[str, np.ndarray]:
    """Return the numbers, float64, of columns of texts that one table holds; NaN for a missing one.

    Args:
        columns: texts (String) by name.
        decimal: the decimal mark; by default the one that all cells allow.
        point_is_decimal: a lone point with three digits behind it, as in `1.234`, separates no thousands: the table's
            form excludes it.

    Raises:
        NumbersError: a text is no number, or the table may be read in two ways.
    """
    if decimal != "comma" and (
        plain := _plain(columns, may_be_grouped=decimal is None and not point_is_decimal)
    ):
        return plain
    point_is_decimal = point_is_decimal and decimal is None
    marks: tuple[Decimal, ...] = ("point", "comma") if decimal is None else (decimal,)
    values = {mark: {name: np.full(len(texts), np.nan) for name, texts in columns.items()} for mark in marks}
    proofs: dict[Decimal, Cell] = {}  # for each mark the first cell that excludes the other
    units: dict[bool, tuple[str, Cell]] = {}  # of the prices, and of the volume
    unproved: Cell | None = None
    read_before: dict[str, tuple[Readings, str]] = {}
    for name, texts in columns.items():
        for row, text in enumerate(texts.to_list()):
            if text is None or _is_missing(text):
                continue
            if text not in read_before:
                read_before[text] = _readings(text, marks, point_is_decimal=point_is_decimal)
            (readings, unit), cell = read_before[text], Cell(name, row, text)
            if not readings:
                raise NumbersError("no-number", cell)
            if unit and (other := units.setdefault(name == "volume", (unit, cell)))[0] != unit:
                raise NumbersError("two-conventions", other[1], cell)
            for mark, number in readings.items():
                values[mark][name][row] = number
            if len(readings) < len(marks):
                proofs.setdefault(next(iter(readings)), cell)
            elif unproved is None and len(set(readings.values())) > 1:
                unproved = cell
    if len(proofs) > 1:
        raise NumbersError("two-conventions", *proofs.values())
    if unproved and not proofs:
        both, _ = _readings(unproved.text, marks, point_is_decimal=point_is_decimal)
        raise NumbersError("two-readings", unproved, readings=tuple(sorted(both.values())))
    return values[next(iter(proofs), marks[0])]


def _plain(columns: Mapping[str, pl.Series], *, may_be_grouped: bool) -> dict[str, np.ndarray] | None:
    """The numbers of texts that are all as programs write them; None if a text is not, or may have thousands."""
    stripped = {name: column.str.strip_chars() for name, column in columns.items()}
    given = [texts.filter(texts.is_not_null() & (texts != "")) for texts in stripped.values()]
    if not all(texts.str.contains(_PLAIN).all() for texts in given):
        return None
    if may_be_grouped:
        lone = [texts.str.contains(_LONE_POINT) for texts in given]
        has_proof = any(
            (texts.str.contains(".", literal=True) & ~is_lone).any()
            for texts, is_lone in zip(given, lone, strict=True)
        )
        if not has_proof and any(is_lone.any() for is_lone in lone):
            return None
    return {
        name: texts.replace("", None)
        .str.strip_prefix("+")
        .cast(pl.Float64)
        .fill_null(float("nan"))
        .to_numpy()
        for name, texts in stripped.items()
    }


def _is_missing(text: str) -> bool:
    return text.strip().lower() in MISSING


def _readings(text: str, marks: tuple[Decimal, ...], *, point_is_decimal: bool) -> tuple[Readings, str]:
    """The numbers that a text is with each decimal mark, none where it is not one; and the currency beside it."""
    visible = (" " if c.isspace() else c for c in text if unicodedata.category(c) != "Cf")
    rest, unit = _without_unit("".join(visible).translate(_LOOKALIKES).strip())
    match = _NUMBER.fullmatch(rest)
    if not match:
        return {}, unit
    sign, digits, exponent = match["sign"], match["digits"].strip(), match["exponent"] or ""
    readings: Readings = {}
    for mark in marks:
        number = _with_mark(digits, MARKS[mark])
        if number and not (point_is_decimal and mark == "comma" and re.fullmatch(r"\d+\.\d{3}", digits)):
            readings[mark] = float(f"{sign}{number}{exponent}")
    return readings, unit


def _without_unit(text: str) -> tuple[str, str]:
    """`$-1.5`, `1.5 USD`, `-EUR 1.5` -> `-1.5`, `1.5`, `-1.5` and the currency; a text with two stays whole."""
    sign, rest = (text[:1], text[1:].strip()) if text[:1] in ("+", "-") else ("", text)
    units = []
    if rest and unicodedata.category(rest[0]) == "Sc":
        units.append(rest[0])
        rest = rest[1:].strip()
    if rest and unicodedata.category(rest[-1]) == "Sc":
        units.append(rest[-1])
        rest = rest[:-1].strip()
    for pattern in (_CODE_BEFORE, _CODE_BEHIND):
        if code := pattern.fullmatch(rest):
            units.append(code["unit"].upper())
            rest = code["rest"].strip()
    if len(units) > 1:
        return text, ""
    return f"{sign}{rest}", "".join(units)


def _with_mark(digits: str, mark: str) -> str:
    """The number as Python writes it, if `digits` is one with this decimal mark, else ""."""
    whole, found, fraction = digits.partition(mark)
    is_ended = not found or fraction.isdecimal() or (mark == "." and whole and not fraction)  # `3000.`
    if not is_ended or not _WHOLE.fullmatch(whole) or not (whole or fraction):
        return ""
    return f"{re.sub('[^0-9]', '', whole) or '0'}.{fraction or '0'}"
