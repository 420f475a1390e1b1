"""A forecast as a fan of characters: the last closes, then the bands of each step."""

import sys
from collections.abc import Sequence
from typing import Any

from flows.tables import price
from schemas.errors import MemberError
from schemas.identity import SeriesId
from schemas.scope import Scope

_HEIGHT, _STEP_WIDTH = 13, 3
_HISTORY = 30
"""Closes drawn before the forecast."""

_UNICODE, _ASCII = "•━▓▒░", "o-#+."
"""Characters of a close, the median, and the 50, 80 and 90 % bands."""


def closes_before(scope: Scope, symbol: str, timeframe: str, rows: Sequence[dict[str, Any]]) -> list[float]:
    """Return the last closes up to a forecast's origin, oldest first; empty if the candles cannot be read."""
    from tasks.market.klines import read_klines

    series = SeriesId(scope.market, symbol, timeframe)
    try:
        candles = read_klines(
            scope.home, series, as_of=rows[0]["issued_at"], columns=["close"], provisional=True
        )
    except MemberError:
        return []
    return candles["close"].tail(_HISTORY).to_list()


def fan(closes: Sequence[float], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the picture, highest price first, with prices at the left.

    Args:
        closes: up to the origin, oldest first.
        rows: the forecast's steps, in order.
    """
    try:
        _UNICODE.encode(sys.stdout.encoding or "ascii")
        close, median, *shades = list(_UNICODE)
    except UnicodeEncodeError:
        close, median, *shades = list(_ASCII)
    bounds = [*closes, *(row[name] for row in rows for name in ("q05", "q95"))]
    low, high = min(bounds), max(bounds)
    cell = (high - low) / (_HEIGHT - 1) or 1.0

    def line_of(value: float) -> int:
        return round((high - value) / cell)

    columns = [{line_of(value): close} for value in closes]
    for row in rows:
        drawn: dict[int, str] = {}
        for (below, above), shade in zip(
            (("q05", "q95"), ("q10", "q90"), ("q25", "q75")), reversed(shades), strict=True
        ):
            drawn |= dict.fromkeys(range(line_of(row[above]), line_of(row[below]) + 1), shade)
        columns += [drawn | {line_of(row["q50"]): median}] * _STEP_WIDTH
    labels = {line: price(high - line * cell) for line in range(0, _HEIGHT, 3)}
    width = max(map(len, labels.values()))
    return [
        f"{labels.get(line, ''):>{width}} {''.join(column.get(line, ' ') for column in columns).rstrip()}"
        for line in range(_HEIGHT)
    ]
