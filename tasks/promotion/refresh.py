"""First champions, and refreshes of existing champions: all series with a champion are compared together."""

from collections.abc import Iterable
from functools import cached_property

from schemas.errors import DamagedError
from schemas.identity import Recipe, SeriesId
from tasks.judging import gate
from tasks.judging.gate import Contender, Ruling
from tasks.promotion import recipe_pairs
from tasks.promotion.contenders import Candidate
from tasks.promotion.losses import Comparisons
from tasks.promotion.recipe_pairs import Pair
from tasks.promotion.standings import Place, Standings


class Refresh:
    """Rules on every series, using tonight's model of its champion's recipe. `followed`: coins that follow a switch."""

    def __init__(self, tonight: Standings, comparisons: Comparisons) -> None:
        self._tonight, self._comparisons = tonight, comparisons
        self.followed: list[tuple[Place, Pair]] = []

    def rule(self) -> None:
        """Rule on every place: the first champion of a series, or its refresh."""
        for place in self._tonight.places.values():
            if not place.incumbent:
                self._first(place, *self._missing(place.series))
        self._refresh(place for place in self._tonight.places.values() if place.incumbent)

    def _missing(self, series: SeriesId) -> tuple[str, str]:
        """Return the rule and the reason for a series without a champion."""
        before = self._tonight.newest.get(series)
        if before is None:
            return "first", "it has no champion yet"
        if before.outcome == "retired":
            return "returned", "it is traded again"
        return "missing", f"its champion, version {before.version_number}, was deleted"

    def _first(self, place: Place, rule: str, why: str) -> None:
        """Choose tonight's best model for a series without a usable champion."""
        serving = [one.recipe for one in self._tonight.registered.values() if not one.damage]
        best = gate.choose_first(place.models, self._tonight.order, serving)
        if best is None:  # only classifiers, which do not forecast prices
            return
        order = self._tonight.order
        figures = f"pooled validation CRPS ratio {order[best.recipe]:.4f}, of {len(order)} recipes"
        provisional = (
            "; it is provisional: a model of a different preset replaces it unless worse"
            if best.provisional
            else ""
        )
        place.taken = place.fielded[best.recipe]
        place.ruling = Ruling("first", rule, f"{why}: {best.recipe} ({figures}){provisional}")

    def _refresh(self, places: Iterable[Place]) -> None:
        """Rule on the series with a champion; all are compared together."""
        waiting: list[tuple[Place, Candidate, Contender]] = []
        for place in places:
            assert place.incumbent is not None
            if place.incumbent.damage:
                self._replace_damaged(place, place.incumbent.damage)
                continue
            if self._follow(place, place.incumbent):
                continue
            best = gate.choose_successor(place.incumbent, place.models, self._tonight.order)
            if best is None:
                place.ruling = self._no_candidate(place)
            elif early := gate.unchanged(best, place.incumbent):
                place.ruling = early
            elif stop := gate.refused(best, place.incumbent, self._tonight.force):
                place.ruling = stop
            elif gate.is_older(best, place.incumbent):
                place.taken = place.fielded[best.recipe]
                place.ruling = Ruling(
                    "forced", "older", f"{best.recipe} of older candles, forced: {self._tonight.force}"
                )
            else:
                waiting.append((place, place.fielded[best.recipe], place.incumbent))
        self._comparisons.predict([(candidate, incumbent) for _, candidate, incumbent in waiting])
        for place, candidate, incumbent in waiting:
            if isinstance(lost := self._comparisons.losses_of(candidate), DamagedError):
                reason = f"{candidate.model.recipe} was not considered: its scores cannot be read ({lost})"
                place.ruling = Ruling("kept", "damaged", reason)
                continue
            found = self._comparisons.compared(candidate, incumbent)
            if isinstance(found, DamagedError):
                self._replace_damaged(place, str(found))
                continue
            place.ruling = gate.refresh(candidate.model, incumbent, found)
            if place.ruling.outcome == "refreshed":
                place.taken = candidate

    def _follow(self, place: Place, incumbent: Contender) -> bool:
        """Let a coin that did not take part in a switch follow with tonight's model; return whether it does."""
        pair = self._lost.get(incumbent.recipe)
        if pair is None or place.series.symbol not in pair.behind:
            return False
        last = pair
        while after := self._lost.get(last.recipes[0]):  # the winner has since lost to another recipe
            last = after
        recipe = last.recipes[0]
        if recipe not in place.fielded or gate.refused(place.models[recipe], incumbent):
            return False
        place.taken, place.backtest = place.fielded[recipe], last.backtest
        if last.backtest:
            place.ruling = Ruling("switched", "backtest", f"the gate is passed: {last.backtest}")
        else:
            reason = f"its timeframe was switched to {recipe} by evidence on {last.ended_at:%Y-%m-%d}, and it follows"
            place.ruling = Ruling("switched", "follows", reason)
        self.followed.append((place, pair))
        return True

    @cached_property
    def _lost(self) -> dict[Recipe, Pair]:
        return recipe_pairs.followed(
            recipe_pairs.pairs(self._tonight.home, self._tonight.market, self._tonight.timeframe)
        )

    def _no_candidate(self, place: Place) -> Ruling:
        """Rule on a champion without a candidate, with the reason that excludes tonight's best model, if any."""
        assert place.incumbent is not None
        if place.notes and not place.fielded:
            return place.notes[0]
        best = next((place.models[recipe] for recipe in self._tonight.order if recipe in place.fielded), None)
        if best and (stop := gate.refused(best, place.incumbent)):
            return stop
        reason = f"this run has no model of the champion's recipe {place.incumbent.recipe}"
        return Ruling("kept", "no-candidate", reason)

    def _replace_damaged(self, place: Place, damage: str) -> None:
        """Let any eligible model replace a damaged champion, which cannot forecast."""
        incumbent = place.incumbent
        assert incumbent is not None
        own = [r for r in place.fielded if r == incumbent.recipe or (
            not incumbent.recipe.digest
            and (r.architecture, r.preset) == (incumbent.recipe.architecture, incumbent.recipe.preset)
        )]  # fmt: skip
        if not own:
            self._first(place, "damaged-incumbent", f"the champion is damaged ({damage})")
        else:
            place.taken = place.fielded[own[0]]
            reason = f"the champion is damaged ({damage}); {own[0]} takes its place uncompared"
            place.ruling = Ruling("refreshed", "damaged-incumbent", reason)
        if place.taken and (stop := gate.refused(place.taken.model, incumbent, self._tonight.force)):
            place.taken, place.ruling = None, stop
        if place.ruling is None:
            reason = f"the champion is damaged ({damage}), and this run has no model to take its place"
            place.ruling = Ruling("kept", "damaged-incumbent", reason)
