"""The drift watch after a scoring: new scores of each champion, its input, the age of its data."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from schemas.forecasts import CHAMPION
from schemas.handover import Failure, Watching
from schemas.identity import SeriesId
from schemas.reference import Reference
from schemas.scope import Scope
from tasks.forecasting.issue import ANY_ERROR, Champion, failure, reference_of
from tasks.forecasting.losses import evidence_rows
from tasks.forecasting.staleness import find_stale
from tasks.forecasting.watch import SeriesWatch, alarm_of, follow, judge, keep, read_watch, take
from tasks.judging.baselines import population_stability
from tasks.signals.feature_files import newest_series
from tasks.storage.model_folder import read_config, recipe_of

STABILITY_DAYS = 30
"""Number of newest days whose columns are compared with the training span."""


def check_drift(scope: Scope, champions: Sequence[Champion], provisional: bool = False) -> Watching:
    """Process new scores since the last check and return an alarm per champion; a failure does not stop the others.

    Args:
        provisional: include the newest candles, which no archive has confirmed yet.
    """
    now = scope.as_of or datetime.now(UTC)
    late = {
        stale.series: str(stale)
        for stale in find_stale(scope.home, [c.series for c in champions], scope.as_of)
    }
    known = read_watch(scope.home, scope.market).series
    found: list[SeriesWatch] = []
    failures: list[Failure] = []
    for champion in champions:
        try:
            before = known.get(champion.series.name)
            found.append(_check(scope, champion, before, now, late, provisional))
        except ANY_ERROR as error:
            failures.append(failure(champion.series, "watch", error))
    if found:
        keep(scope.home, scope.market, found)
    return Watching(alarms=tuple(map(alarm_of, found)), failures=tuple(failures))


def _check(
    scope: Scope,
    champion: Champion,
    before: SeriesWatch | None,
    now: datetime,
    late: Mapping[SeriesId, str],
    provisional: bool,
) -> SeriesWatch:
    series = champion.series
    reference = reference_of(series, champion.folder)
    recipe = str(recipe_of(read_config(champion.folder)))
    state = follow(before, series, champion.model_version, recipe, reference)
    state = take(state, evidence_rows(scope.home, [series], state.taken_to, scope.as_of, roles=(CHAMPION,)))
    day = f"{now:%Y-%m-%d}"
    if state.stability_day != day or state.model_version != (before.model_version if before else ""):
        stability = _stability(scope, series, reference, provisional)
        state = state.model_copy(update={"stability": stability, "stability_day": day})
    return judge(state, now, late.get(series, ""))


def _stability(scope: Scope, series: SeriesId, reference: Reference, provisional: bool) -> dict[str, float]:
    """Return the population stability index of each column of the model over the newest days."""
    rows = STABILITY_DAYS * 86_400 // series.seconds
    newest = newest_series(scope.home, series, as_of=scope.as_of, provisional=provisional, rows=rows)
    known = tuple(name for name in reference.deciles if name in newest.names)
    values = newest.columns(known)
    values = values[np.isfinite(values).all(axis=1)]
    return population_stability(reference, dict(zip(known, values.T, strict=True)))
