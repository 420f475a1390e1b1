"""State of a timeframe tonight: the place of each series, its champion, and tonight's ranked recipes."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

import numpy as np

from schemas.handover import BacktestEvidence, Decision, PairEvidence
from schemas.identity import Recipe, SeriesId
from schemas.run import RunSpec
from tasks.judging import gate
from tasks.judging.gate import Contender, Ruling
from tasks.promotion import recipe_pairs
from tasks.promotion.contenders import Candidate, standing
from tasks.tracking.connection import Store
from tasks.tracking.decisions import newest_decisions
from tasks.tracking.registry import Champion


@dataclass
class Place:
    """State and ruling of a series: its champion before, tonight's eligible models, and the ruling.

    `taken`: the candidate that becomes champion, if any. `notes`: why tonight's other models were not considered.
    """

    series: SeriesId
    champion: Champion | None
    incumbent: Contender | None
    fielded: dict[Recipe, Candidate] = field(default_factory=dict)
    notes: list[Ruling] = field(default_factory=list)
    ruling: Ruling | None = None
    taken: Candidate | None = None
    evidence: PairEvidence | None = None
    backtest: BacktestEvidence | None = None

    @property
    def models(self) -> dict[Recipe, Contender]:
        """Tonight's eligible models."""
        return {recipe: one.model for recipe, one in self.fielded.items()}

    @property
    def serving(self) -> Contender | None:
        """The champion after tonight's refresh."""
        return self.taken.model if self.taken else self.incumbent


class Standings:
    """Data for the rules of refresh and trial."""

    def __init__(
        self,
        spec: RunSpec,
        store: Store,
        timeframe: str,
        candidates: Sequence[Candidate],
        served: Sequence[Champion],
        now: datetime,
    ) -> None:
        self.home, self.market, self.force = spec.scope.home, spec.scope.market, spec.force or ""
        self.store, self.timeframe, self.now = store, timeframe, now
        self.champions = {c.series: c for c in served if c.series.timeframe == timeframe}
        self.places: dict[SeriesId, Place] = {}
        for candidate in candidates:
            self._field(candidate)

    def _field(self, candidate: Candidate) -> None:
        series = candidate.model.series
        if series not in self.places:
            champion = self.champions.get(series)
            incumbent = standing(champion) if champion else None
            self.places[series] = Place(series, champion, incumbent)
        place = self.places[series]
        if stop := gate.ineligible(candidate.model):
            place.notes.append(stop)
        else:
            place.fielded[candidate.model.recipe] = candidate

    @cached_property
    def newest(self) -> dict[SeriesId, Decision]:
        """The newest decision on each series."""
        return newest_decisions(self.store)

    @cached_property
    def order(self) -> dict[Recipe, float]:
        """Tonight's recipes by pooled validation ratio, best first."""
        found: dict[Recipe, dict[SeriesId, float]] = defaultdict(dict)
        for place in self.places.values():
            for recipe, one in place.models.items():
                found[recipe][place.series] = one.validation
        return gate.rank(found) if found else {}

    @cached_property
    def registered(self) -> dict[SeriesId, Contender]:
        """Every champion of the timeframe before this run, including coins that this run has not trained."""
        here = {s: p.incumbent for s, p in self.places.items() if p.incumbent}
        return {s: here.get(s) or standing(c) for s, c in self.champions.items()}

    def after(self) -> dict[SeriesId, Contender | None]:
        """Return the champion of each coin after tonight's refresh."""
        return {s: self.places[s].serving if s in self.places else one for s, one in self.registered.items()}

    def incumbents(self) -> dict[Recipe, float]:
        """Return the champions' recipes after tonight's refresh, and their validation ratios."""
        found: dict[Recipe, list[float]] = defaultdict(list)
        for one in self.after().values():
            if one and not one.damage:
                found[one.recipe].append(one.validation)
        return {
            recipe: self.order.get(recipe, float(np.mean([v if math.isfinite(v) else 1.0 for v in values])))
            for recipe, values in found.items()
        }

    def tried(self) -> set[tuple[Recipe, Recipe]]:
        """Return the pairs (challenger, champion) that were tried or are on trial."""
        return recipe_pairs.tried(self.home, self.market, self.timeframe)

    def rivals(self, recipe: Recipe) -> dict[SeriesId, Candidate]:
        """Return tonight's models of a recipe, for the coins whose champion they may challenge."""
        return {
            place.series: place.fielded[recipe]
            for place in self.places.values()
            if recipe in place.fielded
            and place.incumbent
            and place.serving
            and place.serving.recipe != recipe
            and not place.incumbent.damage
            and not gate.refused(place.fielded[recipe].model, place.incumbent)
        }

    def covers(self, recipe: Recipe, incumbent: Recipe) -> bool:
        """Whether this run has trained a recipe on enough of the coins that the incumbent recipe serves."""
        coins = [s for s, one in self.after().items() if one and one.recipe == incumbent]
        here = self.rivals(recipe)
        return bool(coins) and sum(s in here for s in coins) >= gate.MIN_COVER * len(coins)
