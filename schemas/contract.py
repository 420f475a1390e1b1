"""What a stored frame must meet: its columns and types, and rules that hold in every row.

`Contract` states faults, for candles and features, of which there is a handful of files a run. `check_rows` states
rules, for forecasts, their closes and backtests: `cpb verify` checks a thousand of their files.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from schemas.errors import MemberError

if TYPE_CHECKING:
    import pandera.polars as pa

Rule = tuple[str, pl.Expr]
"""A sentence, and whether it is true of a row."""


@dataclass(frozen=True)
class Contract:
    """The columns and types of a frame, in order, and the faults that no row may have.

    `faults`: an expression per row by the sentence that names it; a null, which makes it unknown, counts as a fault.
    """

    kinds: Mapping[str, Any]
    faults: Mapping[str, pl.Expr]

    def check(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return `frame` if it meets the contract.

        One polars pass decides; pandera, which takes a second to import and a millisecond per check, names the fault.

        Raises:
            pandera.errors.SchemaError: naming the column or the check that failed.
        """
        # the slow way only where something is wrong: it names the column
        return frame if self.holds(frame) else self.schema().validate(frame)

    def holds(self, frame: pl.DataFrame) -> bool:
        """Whether a frame meets the contract."""
        if list(frame.schema.items()) != list(self.kinds.items()):
            return False
        return not any(frame.select(fault.any().alias(name) for name, fault in self._all.items()).row(0))

    def schema(self) -> "pa.DataFrameSchema":
        """Return the same contract for pandera, for eager frames: it skips the values of lazy frames."""
        import pandera.polars as pa

        def check(name: str, fault: pl.Expr) -> pa.Check:
            return pa.Check(lambda data: data.lazyframe.select(~fault), name=name, error=name)

        columns = {name: pa.Column(kind, nullable=True) for name, kind in self.kinds.items()}
        checks = [check(name, fault) for name, fault in self._all.items()]
        return pa.DataFrameSchema(columns, checks=checks, strict=True, ordered=True)

    @property
    def _all(self) -> dict[str, pl.Expr]:
        # first, so that a null is told as a null, and not as a price that is not positive
        missing = {f"{name} is missing": pl.col(name).is_null() for name in self.kinds}
        return missing | {name: fault.fill_null(value=True) for name, fault in self.faults.items()}


def check_columns(frame: pl.DataFrame, schema: Mapping[str, Any]) -> pl.DataFrame:
    """Return a frame that has exactly a contract's columns and types, a check cheap enough for every read.

    Raises:
        MemberError: (code `rows`) naming the first column at fault.
    """
    if dict(frame.schema) != dict(schema) or frame.columns != list(schema):
        wrong = [n for n in schema if frame.schema.get(n) != schema[n]] or frame.columns
        raise MemberError(f"column {wrong[0]} is not what the contract says", code="rows", field=wrong[0])
    return frame


def check_rows(
    what: str,
    frame: pl.DataFrame,
    schema: Mapping[str, Any],
    key: Iterable[str],
    rules: Iterable[Rule],
    nullable: Iterable[str] = (),
) -> pl.DataFrame:
    """Return rows that meet a contract: columns and types, no gaps but in `nullable`, prices, unique keys, rules.

    `what` begins the message. Every Float64 column is a price.

    Raises:
        MemberError: (code `rows`) naming the broken rule, and the column if it is of one.
    """
    # Plain polars in a single pass: pandera takes 100 ms for each of the thousand files that `cpb verify` checks.
    if frame.is_empty():
        raise MemberError(f"{what}: there are none", code="rows")
    check_columns(frame, schema)
    names = [(name, f"column {name} has no gaps", pl.col(name).is_not_null()) for name in schema]
    names = [rule for rule in names if rule[0] not in set(nullable)]
    prices = [
        (name, f"column {name} is positive and finite everywhere", _is_price(name))
        for name, kind in schema.items()
        if kind == pl.Float64
    ]
    # last, as it is the only one that compares rows
    unique = ("", "no row is stored twice", ~pl.struct(*key).is_duplicated())
    every = [*names, *prices, *(("", text, holds) for text, holds in rules), unique]
    # all rules in one pass; an expression whose inputs are null is unknown, and so not held
    held = frame.select(
        holds.fill_null(value=False).all().alias(str(i)) for i, (_, _, holds) in enumerate(every)
    )
    for (column, text, _), good in zip(every, held.row(0), strict=True):
        if not good:
            raise MemberError(f"{what} break their contract: not true is {text!r}", code="rows", field=column)
    return frame


def _is_price(name: str) -> pl.Expr:
    """Whether a price is positive and finite; a null passes here, the rule on gaps checks nulls."""
    return pl.col(name).is_null() | (pl.col(name).is_finite() & (pl.col(name) > 0))
