"""The timeframe's challenger at night: its appointment and refresh. The trial itself is of live rows (`trial`)."""

from collections.abc import Iterator, Mapping, Sequence

from schemas.errors import DamagedError
from schemas.identity import Recipe, SeriesId
from tasks.judging import gate
from tasks.judging.gate import Contender
from tasks.promotion import recipe_pairs
from tasks.promotion.contenders import Candidate, standing
from tasks.promotion.losses import Comparisons
from tasks.promotion.moves import appoint, dismiss
from tasks.promotion.recipe_pairs import Pair
from tasks.promotion.standings import Standings
from tasks.tracking.registry import Champion, challengers


class Challenge:
    """A night of the challenger's trial."""

    def __init__(self, tonight: Standings, comparisons: Comparisons) -> None:
        self._tonight, self._comparisons = tonight, comparisons

    def rule(self) -> None:
        """Appoint or refresh the timeframe's challenger, and show each place the evidence of its trial."""
        stored = recipe_pairs.pairs(self._tonight.home, self._tonight.market, self._tonight.timeframe)
        trials = [self._settled(pair) for pair in stored if pair.state == "open"]
        trials = [pair for pair in trials if pair.state == "open"]
        recipe = trials[0].recipes[0] if trials else None
        known = self._challengers(recipe)
        recipe = recipe or self._new_challenger()
        if recipe is None:
            return
        rivals = self._tonight.rivals(recipe)
        trials += self._new_pairs(recipe, rivals, trials)
        if not trials:
            return
        self._refresh_challengers(recipe, rivals, known)
        for pair in trials:
            evidence = pair.evidence(self._tonight.now)
            for place in self._tonight.places.values():
                if place.serving and place.serving.recipe == pair.recipes[1]:
                    place.evidence = evidence

    def _challengers(self, recipe: Recipe | None) -> dict[SeriesId, Champion]:
        """Return the challengers of the recipe on trial; dismiss all others, which are left from an ended trial."""
        found = [
            one
            for one in challengers(market=self._tonight.market, store=self._tonight.store)
            if one.series.timeframe == self._tonight.timeframe
        ]
        known = {one.series: one for one in found if standing(one).recipe == recipe}
        dismiss(self._tonight.store, (one for one in found if one.series not in known))
        return known

    def _settled(self, pair: Pair) -> Pair:
        """Return a pair; end it if its recipe has no champions left."""
        _, incumbent = pair.recipes
        if any(one.recipe == incumbent for one in self._tonight.registered.values()):
            return pair
        served = any(one.recipe == pair.recipes[0] for one in self._tonight.registered.values())
        return recipe_pairs.save(
            self._tonight.home, recipe_pairs.end(pair, "switched" if served else "dropped", self._tonight.now)
        )

    def _new_challenger(self) -> Recipe | None:
        incumbents = self._tonight.incumbents()
        fit = {
            r: v
            for r, v in self._tonight.order.items()
            if any(self._tonight.covers(r, other) for other in incumbents)
        }
        return gate.choose_challenger(fit, incumbents, self._tonight.tried())

    def _new_pairs(
        self, recipe: Recipe, rivals: Mapping[SeriesId, Candidate], trials: Sequence[Pair]
    ) -> Iterator[Pair]:
        """Yield a new pair for each recipe of champions against which the challenger has not been tried."""
        if not rivals or recipe not in self._tonight.order:
            return
        home, market, timeframe = self._tonight.home, self._tonight.market, self._tonight.timeframe
        horizon = next(iter(rivals.values())).model.horizon
        known = self._tonight.tried() | {pair.recipes for pair in trials}
        for other in gate.opponents(recipe, self._tonight.order[recipe], self._tonight.incumbents(), known):
            if self._tonight.covers(recipe, other):
                pair = recipe_pairs.open_pair(
                    home, market, timeframe, recipe, other, horizon, self._tonight.now
                )
                yield recipe_pairs.save(home, pair)

    def _refresh_challengers(
        self, recipe: Recipe, rivals: Mapping[SeriesId, Candidate], known: dict[SeriesId, Champion]
    ) -> None:
        """Point the alias `challenger` at tonight's models, unless they are worse than the current challengers."""
        waiting: list[tuple[Candidate, Contender]] = []
        for series, candidate in rivals.items():
            current = standing(known[series]) if series in known else None
            if current is None or current.damage or current.recipe != recipe:
                known[series] = appoint(self._tonight.store, candidate)
            elif not gate.unchanged(candidate.model, current) and not gate.refused(candidate.model, current):
                waiting.append((candidate, current))
        self._comparisons.predict(waiting)
        for candidate, current in waiting:
            found = self._comparisons.compared(candidate, current)
            if (
                isinstance(found, DamagedError)
                or gate.refresh(candidate.model, current, found).outcome != "kept"
            ):
                known[candidate.model.series] = appoint(self._tonight.store, candidate)
