"""Folds of a backtest: the series with the train, validation and test span of every test period."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cpbmodels.data.series import Series
from schemas.errors import CpbError, MemberError
from schemas.handover import Failure, SeriesRecord, SplitBounds
from schemas.identity import SeriesId
from tasks.signals.feature_files import market_key, markets, read_features, with_bounds
from tasks.signals.splits import folds as fold_bounds

log = logging.getLogger("cpb")


@dataclass(frozen=True)
class FoldSeries:
    """A series in a fold. Folds are numbered from 1, oldest first; the folds of a series share its candles."""

    fold: int
    record: SeriesRecord
    bounds: SplitBounds
    series: Series

    @property
    def id(self) -> SeriesId:
        """The id of the series."""
        return self.record.series


@dataclass(frozen=True)
class Folds:
    """All series in all their folds, fold by fold; a failure for each series without any fold.

    `incomplete`: a message for every fold and timeframe for which some series have too little history.
    """

    loaded: tuple[FoldSeries, ...]
    failures: tuple[Failure, ...] = ()
    incomplete: tuple[str, ...] = ()


def plan_bounds(records: Sequence[SeriesRecord], count: int) -> dict[str, list[SplitBounds]]:
    """Return the spans of each timeframe's folds, oldest first.

    Raises:
        UsageError: a timeframe's history is too short for this number of folds.
    """
    timeframes = dict.fromkeys(r.series.timeframe for r in records)
    return {t: fold_bounds([r for r in records if r.series.timeframe == t], count) for t in timeframes}


def load_folds(
    home: Path, records: Sequence[SeriesRecord], bounds: Mapping[str, Sequence[SplitBounds]]
) -> Folds:
    """Load every series once and return it with the spans of each fold for which it has enough candles.

    A series without some of the folds is judged on the others; only a series without any fold is a failure.
    """
    loaded: list[FoldSeries] = []
    failures: list[Failure] = []
    for record in records:
        found, error = _load(home, record, bounds[record.series.timeframe])
        loaded += found
        if error and not found:
            failures.append(Failure.of(record.series, "plan", error))
    of_market = markets({one.id: one.series for one in loaded})
    loaded = [
        replace(one, series=replace(one.series, market=of_market[market_key(one.id)])) for one in loaded
    ]
    loaded.sort(key=lambda one: one.fold)
    return Folds(tuple(loaded), tuple(failures), tuple(_incomplete(records, loaded, bounds)))


def _load(
    home: Path, record: SeriesRecord, bounds: Sequence[SplitBounds]
) -> tuple[list[FoldSeries], CpbError | None]:
    """Return a series in its folds, and the reason for the last missing fold, if any."""
    try:
        series = read_features(home, record)
    except CpbError as error:
        return [], error
    found, last = [], None
    for fold, spans in enumerate(bounds, start=1):
        try:
            found.append(FoldSeries(fold, record, spans, with_bounds(series, record.series, spans)))
        except MemberError as error:
            log.info("fold %d lacks %s", fold, error)
            last = error
    return found, last


def _incomplete(
    records: Sequence[SeriesRecord], loaded: Sequence[FoldSeries], bounds: Mapping[str, Sequence[SplitBounds]]
) -> list[str]:
    present = {(one.fold, one.id) for one in loaded}
    sentences = []
    for timeframe, spans in bounds.items():
        wanted = [r.series for r in records if r.series.timeframe == timeframe]
        for fold in range(1, len(spans) + 1):
            absent = [series.label for series in wanted if (fold, series) not in present]
            if absent:
                sentences.append(
                    f"Fold {fold} of {len(spans)} at {timeframe} is without {len(absent)} of {len(wanted)} coins, "
                    f"which in one of its spans have too few candles or a price that never moves: {', '.join(absent)}"
                )
    return sentences
