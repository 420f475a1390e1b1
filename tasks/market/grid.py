"""Open and end times of candles. All intervals except the calendar month have candles of equal length.

Times are microseconds since 1970, UTC: an integer or an array.
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
    """Candles of equal length. `anchor` is the open time of any candle; default the interval's `phase`."""

    step: int
    phase: int = 0

    def end(self, opened: Times) -> Times:
        """Return the end of the candle that opens at a time: the open time of the next candle."""
        return opened + self.step

    def latest(self, until: Times) -> Times:
        """Return the open time of the last candle that ends by a time, assuming the time is on the grid."""
        return until - self.step

    def floor(self, time: Times, anchor: int | None = None) -> Times:
        """Return the open time of the candle that contains a time."""
        anchor = self.phase if anchor is None else anchor
        return (time - anchor) // self.step * self.step + anchor

    def count(self, start: int, end: int) -> int:
        """Return the number of candles between two times on the grid."""
        return (end - start) // self.step

    def opens(self, start: int, end: int) -> np.ndarray:
        """Return the open times in `[start, end)`; `start` must be an open time."""
        return np.arange(start, end, self.step)


@dataclass(frozen=True)
class Months:
    """Candles of a calendar month: each opens on the first day at 00:00 UTC; `anchor` is ignored."""

    phase: int = 0

    def end(self, opened: Times) -> Times:
        """Return the start of the month after a time's month."""
        return _month(opened, 1)

    def latest(self, until: Times) -> Times:
        """Return the start of the last month that ends by a time."""
        return _month(until, -1)

    def floor(self, time: Times, anchor: int | None = None) -> Times:
        """Return the start of the month that contains a time."""
        return _month(time, 0)

    def count(self, start: int, end: int) -> int:
        """Return the number of months between two month starts."""
        return len(self.opens(start, end))

    def opens(self, start: int, end: int) -> np.ndarray:
        """Return the month starts in `[start, end)`."""
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
    """Round a time range inwards to whole candles of the grid through `anchor`."""
    first = grid.floor(start, anchor)
    first = first if first == start else grid.end(first)
    return first, max(first, grid.floor(end, anchor))
