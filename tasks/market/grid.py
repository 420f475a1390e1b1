"""When candles open and end. All intervals but the calendar month have candles of one length.

Times are microseconds since 1970, UTC: one integer, or an array of them.
"""

from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np

from schemas.universe import INTERVAL_SECONDS, MONTH

US = 1_000_000
DAY = 86_400 * US
Times = TypeVar("Times", int, np.ndarray)


@dataclass(frozen=True)
class Even:
    """Candles of one length. `anchor` is any instant at which one opens; by default the interval's `phase`."""

    step: int
    phase: int = 0

    def end(self, opened: Times) -> Times:
        """Return when the candle that opens at a time ends: the next one opens then."""
        return opened + self.step

    def latest(self, until: Times) -> Times:
        """Return when the last candle that ends by a time opens, or would if the time is off the grid."""
        return until - self.step

    def floor(self, time: Times, anchor: int | None = None) -> Times:
        """Return when the candle that holds a time opens."""
        anchor = self.phase if anchor is None else anchor
        return (time - anchor) // self.step * self.step + anchor

    def count(self, start: int, end: int) -> int:
        """Return how many candles lie between two instants of the grid."""
        return (end - start) // self.step

    def opens(self, start: int, end: int) -> np.ndarray:
        """Return the opens in `[start, end)`, `start` being one."""
        return np.arange(start, end, self.step)


@dataclass(frozen=True)
class Months:
    """Candles of a calendar month: each opens on the first at 00:00 UTC, whatever the `anchor`."""

    phase: int = 0

    def end(self, opened: Times) -> Times:
        """Return when the month after that of a time begins."""
        return _month(opened, 1)

    def latest(self, until: Times) -> Times:
        """Return when the last month that ends by a time begins."""
        return _month(until, -1)

    def floor(self, time: Times, anchor: int | None = None) -> Times:
        """Return when the month that holds a time begins."""
        return _month(time, 0)

    def count(self, start: int, end: int) -> int:
        """Return how many months lie between the beginnings of two."""
        return len(self.opens(start, end))

    def opens(self, start: int, end: int) -> np.ndarray:
        """Return the beginnings of months in `[start, end)`."""
        first, last = (_month(t - 1, 1) for t in (start, end))
        return (
            np.arange(*np.array([first, last]).view("M8[us]").astype("M8[M]")).astype("M8[us]").view(np.int64)
        )


Grid = Even | Months


def _month(time: Times, later: int) -> Times:
    months = np.asarray(time, dtype=np.int64).view("M8[us]").astype("M8[M]") + later
    found = months.astype("M8[us]").view(np.int64)
    return found if isinstance(time, np.ndarray) else int(found)


@cache
def grid_of(interval: str) -> Grid:
    """Return the grid of an interval. Weeks open on Mondays (1970-01-01 was a Thursday)."""
    if interval == MONTH:
        return Months()
    return Even(INTERVAL_SECONDS[interval] * US, 4 * DAY if interval == "1w" else 0)


def whole_candles(grid: Grid, start: int, end: int, anchor: int) -> tuple[int, int]:
    """Round a stretch inwards to whole candles of the grid that goes through `anchor`."""
    first = grid.floor(start, anchor)
    first = first if first == start else grid.end(first)
    return first, max(first, grid.floor(end, anchor))
