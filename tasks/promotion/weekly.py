"""Models that a nightly run does not train: models that serve no series are only trained once a week.

A new recipe serves only after it has won a trial that takes weeks (docs/promotion.md), so its appointment can wait for
some days. With `weekly_challengers` a run trains, per timeframe, the architectures of champions and challengers, and
all architectures in a **full night**: if there is no full night of the same scope in the six days before it. Days count
back from `as_of`, so a replay decides as the original night did; the next night makes up for a missed full night; and
repeating a killed run on the same day gives the same decision, since nights of the same day do not count.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from schemas.errors import CpbError
from schemas.identity import SeriesId
from schemas.run import RunSpec
from tasks.tracking.connection import Store
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.records import param_texts
from tasks.tracking.run_list import finished_flows
from tasks.tracking.tags import LEFT_OUT, age_of
from tasks.tracking.versions import ALIAS, CHALLENGER, versions_with_alias
from tasks.training.plan import preset_label

EVERY = timedelta(days=7)
"""Interval between full nights."""

_SAME_SCOPE = ("market", "coins", "timeframes", "preset", "architectures")
"""Params of a flow's run that must be equal in both nights."""

Idle = Mapping[str, tuple[str, ...]]
"""Timeframe -> the architectures that are not trained on it."""


@dataclass(frozen=True)
class NightPlan:
    """The architectures that a run does not train, and the reason; "" if `weekly_challengers` is off."""

    idle: Idle
    reason: str = ""

    def trains(self, architecture: str, timeframe: str) -> bool:
        """Whether an architecture is trained on a timeframe's series."""
        return architecture not in self.idle.get(timeframe, ())


def plan_night(spec: RunSpec, series: Collection[SeriesId]) -> NightPlan:
    """Return what a run does not train, from the current registry and runs; a missing store counts as empty."""
    if not spec.weekly_challengers:
        return NightPlan({})
    timeframes = tuple(dict.fromkeys(one.timeframe for one in series))
    today = (spec.scope.as_of or datetime.now(UTC)).date()
    try:
        store = open_store(create=False)
    except CpbError as error:
        if error.code != "no-store":
            raise
        return decide(spec.names, dict.fromkeys(timeframes, ()), None, today)
    return decide(
        spec.names, _serving(spec, store, series, timeframes), _last_full(spec, store, today), today
    )


def decide(
    names: Iterable[str], serving: Mapping[str, Collection[str]], last_full: date | None, today: date
) -> NightPlan:
    """Return what is not trained on a day.

    Args:
        names: the run's architectures.
        serving: timeframe -> architectures with a champion or a challenger; if there are none, all are trained.
        last_full: day of the last full night before `today`, None if there was none.
    """
    found = {t: tuple(n for n in names if n not in known) for t, known in serving.items() if known}
    idle = {timeframe: left for timeframe, left in found.items() if left}
    if not idle:
        return NightPlan(
            {}, "all architectures are trained: each serves or is on trial, or none of them does"
        )
    if last_full is None or today - last_full >= EVERY:
        since = f"the last such night was {last_full}" if last_full else "no such night is on record"
        return NightPlan({}, f"all architectures are trained, as once a week: {since}")
    left = "; ".join(f"{', '.join(left)} at {timeframe}" for timeframe, left in idle.items())
    return NightPlan(
        idle,
        f"not trained tonight: {left} (no champion or challenger there; last on {last_full}, again on "
        f"{last_full + EVERY})",
    )


def _serving(
    spec: RunSpec, store: Store, series: Collection[SeriesId], timeframes: Iterable[str]
) -> dict[str, set[str]]:
    recipes = {(name, preset_label(spec, name)) for name in spec.names}
    found: dict[str, set[str]] = {timeframe: set() for timeframe in timeframes}
    for alias in (ALIAS, CHALLENGER):
        for one, version in versions_with_alias(store, alias).items():
            made = version.tags.get("architecture", ""), version.tags.get("recipe", "")
            if one in series and made in recipes:
                found[one.timeframe].add(made[0])
    return found


def _last_full(spec: RunSpec, store: Store, today: date) -> date | None:
    """Return the day of the newest finished full night of this scope before `today`."""
    params = param_texts({**spec.model_dump(mode="json"), "architectures": list(spec.names)})
    days = [
        date.fromisoformat(age_of(run)[0][:10])
        for run in finished_flows(store, "params.weekly_challengers = 'true'")
        if LEFT_OUT not in run.data.tags
        and all(run.data.params.get(name) == params[name] for name in _SAME_SCOPE)
    ]
    return max((day for day in days if day < today), default=None)
