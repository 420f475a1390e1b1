"""Months of `research.columns`: folds whose columns and steps were chosen on, and folds that judge the choice."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cpbmodels.data.figures import EMBARGO
from schemas.handover import SplitBounds
from schemas.identity import INTERVAL_SECONDS


@dataclass(frozen=True)
class Months:
    """First candle of a timeframe, and the starts and length of the test spans of its folds."""

    since: datetime
    development: Sequence[datetime]
    development_days: int
    evaluation: Sequence[datetime]
    evaluation_days: int

    def bounds(self, timeframe: str) -> tuple[list[SplitBounds], list[SplitBounds]]:
        """Development and evaluation folds."""
        return (
            [_bounds(timeframe, self.since, start, self.development_days) for start in self.development],
            [_bounds(timeframe, self.since, start, self.evaluation_days) for start in self.evaluation],
        )


def _bounds(timeframe: str, since: datetime, start: datetime, days: int) -> SplitBounds:
    """The test span, before it validation of half its length, before that training; an embargo between two spans."""
    gap = timedelta(seconds=EMBARGO * INTERVAL_SECONDS[timeframe])
    validation = (start - gap - timedelta(days=days / 2), start - gap)
    return SplitBounds(
        timeframe=timeframe,
        train=(since, validation[0] - gap),
        validation=validation,
        test=(start, start + timedelta(days=days)),
    )


def _day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _six(end: str, days: int) -> list[datetime]:
    return [_day(end) - timedelta(days=days * back) for back in range(6, 0, -1)]


MONTHS = {
    "1h": Months(
        _day("2022-01-01"),
        [_day("2023-10-01"), _day("2024-01-10"), _day("2024-04-10")],
        60,
        _six("2025-06-06", 60),
        60,
    ),
    "15m": Months(
        _day("2023-04-01"),
        [_day("2024-04-17"), _day("2024-06-01"), _day("2024-07-16")],
        45,
        _six("2025-06-06", 40),
        40,
    ),
}
"""Nothing of the evaluation's test spans was looked at until the columns and the walk stood."""
