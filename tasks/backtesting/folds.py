"""Folds of a backtest: the series with the train, validation and test span of every test period.

Its trained models are a fleet per architecture, preset and options, whose members are series × folds. The fleet is
planned here and trained by the same step as in `train-all` (slots, checkpoints, time limit, resume). Its forecasts are
read member by member, so that only a single member's forecasts are in memory at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cpbmodels.data.series import Series
from schemas.errors import CpbError, MemberError, log
from schemas.failure import Failure
from schemas.fleets import FleetSpec
from schemas.handover import FleetPlan, SeriesRecord, SplitBounds
from schemas.identity import SeriesId
from schemas.run import RunSpec
from tasks.signals.feature_files import cross_sections, market_key, read_features, with_bounds
from tasks.signals.splits import fold_bounds, shortened
from tasks.training.plan import plan_fleet, plan_member


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

    `incomplete`: a message for every timeframe whose test spans some series shorten, and for every fold and timeframe
    for which some series have too little history.
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
        in_folds, error = _load(home, record, bounds[record.series.timeframe])
        loaded += in_folds
        if error and not in_folds:
            failures.append(Failure.of(record.series, "plan", error))
    # Over all coins that were loaded: for the look-ahead check and for trials, which train in this process. Trained
    # fleets read the coins of their own shard.
    shared = cross_sections({fold.id: fold.series for fold in loaded})
    loaded = [
        replace(fold, series=replace(fold.series, cross_section=shared[market_key(fold.id)]))
        for fold in loaded
    ]
    # Fold by fold: a universal model is trained per fold, and shards of one fold load the same spans.
    loaded.sort(key=lambda fold: fold.fold)
    shorter = [shortened([r for r in records if r.series.timeframe == t], len(b)) for t, b in bounds.items()]
    incomplete = (*filter(None, shorter), *_incomplete(records, loaded, bounds))
    return Folds(tuple(loaded), tuple(failures), incomplete)


def _load(
    home: Path, record: SeriesRecord, bounds: Sequence[SplitBounds]
) -> tuple[list[FoldSeries], CpbError | None]:
    """Return a series in its folds, and the reason for the last missing fold, if any."""
    try:
        series = read_features(home, record)
    except CpbError as error:
        return [], error
    # The first folds end years ago: a coin listed later lacks them and is judged on the rest.
    in_folds, last = [], None
    for fold, spans in enumerate(bounds, start=1):
        try:
            in_folds.append(FoldSeries(fold, record, spans, with_bounds(series, record.series, spans)))
        except MemberError as error:
            log.info("fold %d lacks %s", fold, error)
            last = error
    return in_folds, last


def _incomplete(
    records: Sequence[SeriesRecord], loaded: Sequence[FoldSeries], bounds: Mapping[str, Sequence[SplitBounds]]
) -> list[str]:
    present = {(loaded_fold.fold, loaded_fold.id) for loaded_fold in loaded}
    sentences = []
    for timeframe, spans in bounds.items():
        wanted = [r.series for r in records if r.series.timeframe == timeframe]
        for fold in range(1, len(spans) + 1):
            absent = [series.label for series in wanted if (fold, series) not in present]
            if absent:
                sentences.append(
                    f"Fold {fold} of {len(spans)} at {timeframe} is without {len(absent)} of {len(wanted)} coins, "
                    f"which in one of its spans have too few candles, or candles that do not move: {', '.join(absent)}"
                )
    return sentences


def plan_folds(
    spec: RunSpec, fleet: FleetSpec, folds: Sequence[FoldSeries], *, name: str = "", gpus: bool = False
) -> FleetPlan:
    """Return the plan that trains a fleet on every given series and fold; `name`, `gpus` as in `plan_fleet`."""
    members = [plan_member(spec, fleet, fold.record, fold.bounds, fold.fold) for fold in folds]
    return plan_fleet(spec, fleet, members, name=name, gpu=gpus)
