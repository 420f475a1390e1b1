"""The timeframe's challenger: its appointment, its evidence from tonight's test rows, and the switch."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np

from schemas.errors import DamagedError
from schemas.identity import Recipe, SeriesId
from tasks.judging import gate
from tasks.judging.gate import Contender, Ruling
from tasks.promotion import pairs
from tasks.promotion.contenders import Candidate, standing
from tasks.promotion.losses import Comparisons, instant, widths
from tasks.promotion.moves import appoint, dismiss
from tasks.promotion.pairs import Pair
from tasks.promotion.standings import Place, Standings
from tasks.tracking.registry import Champion, challengers


class Challenge:
    """A night of the challenger's trial.

    `won`: pairs whose evidence has reached the threshold. `dismissed`: challengers that did not replace their champion.
    """

    def __init__(self, tonight: Standings, comparisons: Comparisons) -> None:
        self._tonight, self._comparisons = tonight, comparisons
        self.won: list[Pair] = []
        self.dismissed: list[Champion] = []

    def rule(self) -> None:
        """Refresh or appoint the timeframe's challenger, update its evidence by tonight's test rows, and apply it."""
        stored = pairs.pairs(self._tonight.home, self._tonight.market, self._tonight.timeframe)
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
            self._judge_pair(pair, rivals, known)

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
        return pairs.save(
            self._tonight.home, pairs.end(pair, "switched" if served else "dropped", self._tonight.now)
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
                pair = pairs.open_pair(home, market, timeframe, recipe, other, horizon, self._tonight.now)
                yield pairs.save(home, pair)

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

    def _judge_pair(
        self, pair: Pair, rivals: Mapping[SeriesId, Candidate], known: Mapping[SeriesId, Champion]
    ) -> None:
        challenger, incumbent = pair.recipes
        here = [p for p in self._tonight.places.values() if p.serving and p.serving.recipe == incumbent]
        if self._tonight.covers(challenger, incumbent):
            rows = self._differences([p for p in here if p.series in rivals], rivals, pair.watermark)
            pair = pairs.save(self._tonight.home, pairs.take(pair, rows, "test"))
        evidence = pair.evidence(self._tonight.now)
        for place in here:
            place.evidence = evidence
        if evidence.e >= pair.threshold:
            self.won.append(pair)
            for place in [*here, *self._tonight.absent(incumbent)]:
                place.evidence = evidence
                self._switch(place, pair, known.get(place.series))
        elif pair.is_over(self._tonight.now):
            pairs.save(self._tonight.home, pairs.end(pair, "dropped", self._tonight.now))
            coins = {s for s, one in self._tonight.registered.items() if one.recipe == incumbent}
            dismiss(self._tonight.store, (one for series, one in known.items() if series in coins))

    def _switch(self, place: Place, pair: Pair, winner: Champion | None) -> None:
        """Rule that a coin's challenger replaces its champion, or record why it does not."""
        if place.incumbent is None:  # the series receives its first champion tonight
            return
        stop = gate.stays(standing(winner) if winner else None, place.incumbent, pair.recipes[0])
        if stop is None:
            place.won, place.selected_on = winner, pair.tested_on()
            place.ruling = Ruling("switched", "evidence", f"the evidence is in: {place.evidence}")
            return
        if winner:
            self.dismissed.append(winner)
        if place.taken:
            place.notes.append(stop)
        else:
            place.ruling = stop

    def _differences(
        self, places: Sequence[Place], rivals: Mapping[SeriesId, Candidate], after: datetime | None
    ) -> dict[datetime, dict[str, float]]:
        """Return, per origin (UTC close), each coin's difference in CRPS divided by the reference's width."""
        kept = [(rivals[p.series], p.incumbent) for p in places if not p.taken and p.incumbent]
        self._comparisons.predict(kept)
        rows: dict[datetime, dict[str, float]] = defaultdict(dict)
        for place in places:
            challenger, serving = rivals[place.series], place.taken or place.incumbent
            assert serving is not None
            mine, theirs = self._comparisons.losses_of(challenger), self._comparisons.losses_of(serving)
            if isinstance(mine, DamagedError) or isinstance(theirs, DamagedError):
                lost = mine if isinstance(mine, DamagedError) else theirs
                place.notes.append(Ruling("kept", "damaged", f"no evidence from this coin tonight: {lost}"))
                continue
            model = serving.model if isinstance(serving, Candidate) else serving
            step = timedelta(seconds=place.series.seconds)
            start = max(
                filter(None, (model.tested_from, after and after - step + _MICROSECOND)), default=None
            )
            mine = mine.since(start)
            times, i, j = np.intersect1d(mine.times, theirs.times, return_indices=True)
            if not len(times):
                continue
            width = widths(self._tonight.home, challenger.model, challenger.features, times)
            for at, value in zip(times, (mine.crps[i] - theirs.crps[j]) / width, strict=True):
                rows[instant(int(at)) + step][place.series.symbol] = float(value)
        return rows


_MICROSECOND = timedelta(microseconds=1)
