"""Which fleets a run trains: its own, or with `--serving` those by which the champions were made."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from schemas.errors import CpbError, UsageError
from schemas.failure import Failure
from schemas.fleets import FleetSpec
from schemas.identity import SeriesId
from schemas.run import RunSpec
from tasks.judging import gate
from tasks.promotion.remade import UNKNOWN, fleet_of
from tasks.promotion.switches import fleet_to_follow, replaced_recipes, switch_to_follow
from tasks.tracking.experiment import NO_STORE
from tasks.tracking.registry import ALIAS, versions_with_alias
from tasks.tracking.store import read_store
from tasks.tracking.tags import RECIPE
from tasks.training.plan import planned_recipe


@dataclass
class _Wanted:
    """Fleets by timeframe and recipe, and by reason the series whose recipe cannot be made again."""

    fleets: dict[str, dict[str, FleetSpec]] = field(default_factory=lambda: defaultdict(dict))
    unknown: dict[str, list[SeriesId]] = field(default_factory=lambda: defaultdict(list))

    def add(self, recipe: str, of: Sequence[SeriesId], fleet: Callable[[], FleetSpec]) -> None:
        """Add what makes a recipe for some series of a timeframe, or the reason why it cannot be made."""
        try:
            self.fleets[of[0].timeframe].setdefault(recipe, fleet())
        except UsageError as error:
            self.unknown[str(error)] += of

    @property
    def failures(self) -> tuple[Failure, ...]:
        """A failure for each reason: a recipe may serve hundreds of series, and its sentence is the same for all."""
        return tuple(
            Failure(
                step="plan",
                code=UNKNOWN,
                series=of,
                reason=reason + (f"; so it is with {len(others)} more series" if others else ""),
            )
            for reason, (of, *others) in self.unknown.items()
        )


def fleets_to_train(
    spec: RunSpec, series: Collection[SeriesId]
) -> tuple[dict[str, tuple[FleetSpec, ...]], tuple[Failure, ...]]:
    """Return, by timeframe, the fleets that a run trains on these series, and a failure for each recipe that it cannot.

    With `serving` these are, where champions serve, the fleets that made them, as their versions record it, and those
    of recipes that champions are about to follow after a backtest: one fleet of a recipe. The run's own are trained
    where nothing serves, and in place of provisional champions. A missing store counts as empty.
    """
    timeframes, series = dict.fromkeys(s.timeframe for s in series), frozenset(series)
    trained = dict.fromkeys(timeframes, spec.fleets)
    if not spec.serving:
        return trained, ()
    try:
        serving = versions_with_alias(read_store(), ALIAS)
    except CpbError as error:
        if error.code != NO_STORE:
            raise
        return trained, ()
    wanted = _Wanted()
    serving = {of: version for of, version in serving.items() if of in series}
    for of, version in serving.items():
        wanted.add(version.tags.get(RECIPE, ""), [of], partial(fleet_of, version.tags))
    for timeframe in sorted({of.timeframe for of in serving}):
        _add_followed(wanted, spec, timeframe, series)
        # Provisional champions were trained in minutes to have any: each run tries its own fleets in their place.
        if any(fleet.preset == gate.PROVISIONAL for fleet in wanted.fleets[timeframe].values()):
            for fleet in spec.fleets:
                if fleet.preset != gate.PROVISIONAL:
                    wanted.fleets[timeframe].setdefault(str(planned_recipe(fleet, timeframe)), fleet)
        # Also where no recipe can be made again: another one would replace a champion that nobody asked to replace.
        trained[timeframe] = tuple(wanted.fleets[timeframe].values())
    return trained, wanted.failures


def _add_followed(wanted: _Wanted, spec: RunSpec, timeframe: str, series: Collection[SeriesId]) -> None:
    """Add the recipes that coins of this run are about to follow."""
    switched = replaced_recipes(spec.scope.home, spec.scope.market, timeframe)
    for switch in switched.values():
        coins = [SeriesId(spec.scope.market, symbol, timeframe) for symbol in switch.coins_to_follow]
        if to_follow := [of for of in coins if of in series]:
            last = switch_to_follow(switch, switched)
            wanted.add(str(last.recipes[0]), to_follow, partial(fleet_to_follow, last))
