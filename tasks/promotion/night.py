"""The decisions of one run: per timeframe first champions, refreshes, then the challenger and its evidence.

Everything is decided before any alias moves. Aliases then move series by series, and the record of the decisions comes
last: a run that is killed in between and repeated finds its own models and moves the rest.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

import numpy as np

from schemas.errors import DamagedError
from schemas.handover import Compared, Decision, FleetJudgement, ModelRef, PairEvidence, SeriesRecord
from schemas.identity import Recipe, SeriesId
from schemas.run import RunSpec
from tasks.forecasting.watch import drifted_first
from tasks.judging import gate
from tasks.judging.gate import Contender, Ruling
from tasks.promotion import pairs
from tasks.promotion.contenders import Candidate, standing, tonights
from tasks.promotion.lock import promotion_lock
from tasks.promotion.losses import Losses, Task, compare, predicted, scored, widths
from tasks.promotion.moves import appoint, dismiss, promote_candidate, promote_challenger
from tasks.promotion.pairs import Pair
from tasks.tracking.connection import Store
from tasks.tracking.decisions import keep_decisions, newest_decisions
from tasks.tracking.registry import Champion, challengers, champions, retire_champion
from tasks.tracking.store import open_store


def decide_night(
    spec: RunSpec, run_id: str, fleets: Sequence[FleetJudgement], stopped: Sequence[SeriesRecord] = ()
) -> tuple[Decision, ...]:
    """Decide on every series that a run has trained, move the aliases, and keep the decisions with the flow's run.

    Series that have stopped trading lose their champion, unless it has seen more candles than this run has.
    """
    store, now = open_store(), datetime.now(UTC)
    groups: dict[str, list[Candidate]] = defaultdict(list)
    with promotion_lock(spec.scope.home, spec.scope.market):
        for candidate in tonights(spec.scope.root, fleets):
            groups[candidate.model.series.timeframe].append(candidate)
        served = champions(market=spec.scope.market, store=store) if groups else []
        decisions = [
            decision
            for timeframe, found in groups.items()
            for decision in _Night(spec, store, timeframe, found, served, now).decide()
        ]
        decisions += _retired(store, stopped)
        keep_decisions(store, decisions, run_id)
    return tuple(decisions)


@dataclass
class _Place:
    """What is known and decided of one series: its champion before, tonight's eligible models, and the ruling.

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
    won: Champion | None = None
    selected_on: tuple[datetime, datetime] | None = None

    @property
    def models(self) -> dict[Recipe, Contender]:
        """Tonight's eligible models."""
        return {recipe: one.model for recipe, one in self.fielded.items()}

    @property
    def serving(self) -> Contender | None:
        """The champion after tonight's refresh."""
        return self.taken.model if self.taken else self.incumbent


class _Night:
    """One timeframe's decisions."""

    def __init__(
        self,
        spec: RunSpec,
        store: Store,
        timeframe: str,
        candidates: Sequence[Candidate],
        served: Sequence[Champion],
        now: datetime,
    ) -> None:
        self._home, self._market, self._force = spec.scope.home, spec.scope.market, spec.force or ""
        self._store, self._timeframe, self._now = store, timeframe, now
        self._champions = {c.series: c for c in served if c.series.timeframe == timeframe}
        self._places: dict[SeriesId, _Place] = {}
        for candidate in candidates:
            self._field(candidate)
        self._losses: dict[str, Losses | DamagedError] = {}
        self._won: list[Pair] = []
        self._followed: list[tuple[_Place, Pair]] = []
        self._dismissed: list[Champion] = []

    def decide(self) -> list[Decision]:
        """Rule on every series, move the aliases, and return the decisions."""
        served = [place for place in self._places.values() if place.incumbent]
        for place in self._places.values():
            if not place.incumbent:
                self._first(place, *self._missing(place.series))
        self._refresh(served)
        self._try_challenger()
        for place in served:
            self._explain(place)
        # A run that is killed here has moved the champions that need it most.
        order = [self._places[series] for series in drifted_first(self._home, list(self._places))]
        decisions = [self._move(place) for place in order if place.ruling]
        for pair in self._won:  # last: a run that is killed before switches the others when it is repeated
            behind = [p.series for p in self._places.values() if p.serving and not p.won
                      and p.serving.recipe == pair.recipes[1]]  # fmt: skip
            pairs.save(self._home, pairs.end(pair, "switched", self._now, behind))
        moved = {place.series.symbol for place, _ in self._followed}
        for pair in {pair.k: pair for _, pair in self._followed}.values():
            left = tuple(symbol for symbol in pair.behind if symbol not in moved)
            pairs.save(self._home, pair.model_copy(update={"behind": left}))
        dismiss(self._store, self._dismissed)
        return decisions

    def _missing(self, series: SeriesId) -> tuple[str, str]:
        """Return the rule and the reason for a series without a champion."""
        before = self._newest.get(series)
        if before is None:
            return "first", "it has no champion yet"
        if before.outcome == "retired":
            return "returned", "it is traded again"
        return "missing", f"its champion, version {before.version_number}, was deleted"

    @cached_property
    def _newest(self) -> dict[SeriesId, Decision]:
        return newest_decisions(self._store)

    def _field(self, candidate: Candidate) -> None:
        series = candidate.model.series
        if series not in self._places:
            champion = self._champions.get(series)
            incumbent = standing(champion) if champion else None
            self._places[series] = _Place(series, champion, incumbent)
        place = self._places[series]
        if stop := gate.ineligible(candidate.model):
            place.notes.append(stop)
        else:
            place.fielded[candidate.model.recipe] = candidate

    @cached_property
    def _order(self) -> dict[Recipe, float]:
        """Tonight's recipes by pooled validation ratio, the best first."""
        found: dict[Recipe, dict[SeriesId, float]] = defaultdict(dict)
        for place in self._places.values():
            for recipe, one in place.models.items():
                found[recipe][place.series] = one.validation
        return gate.rank(found) if found else {}

    @cached_property
    def _registered(self) -> dict[SeriesId, Contender]:
        """Every champion of the timeframe as it stood before, also of coins that this run has not trained."""
        here = {s: p.incumbent for s, p in self._places.items() if p.incumbent}
        return {s: here.get(s) or standing(c) for s, c in self._champions.items()}

    def _first(self, place: _Place, rule: str, why: str) -> None:
        """Give a series that no champion can forecast tonight's best model."""
        serving = [one.recipe for one in self._registered.values() if not one.damage]
        best = gate.choose_first(place.models, self._order, serving)
        if best is None:  # classifiers forecast no price
            return
        figures = (
            f"pooled validation CRPS ratio {self._order[best.recipe]:.4f}, of {len(self._order)} recipes"
        )
        provisional = "; it is provisional" if best.provisional else ""
        place.taken = place.fielded[best.recipe]
        place.ruling = Ruling("first", rule, f"{why}: {best.recipe} ({figures}){provisional}")

    # --- Refresh

    def _refresh(self, places: Iterable[_Place]) -> None:
        """Rule on series that have a champion: all are compared at once."""
        waiting: list[tuple[_Place, Candidate, Contender]] = []
        for place in places:
            assert place.incumbent is not None
            if place.incumbent.damage:
                self._replace_damaged(place, place.incumbent.damage)
                continue
            if self._follow(place, place.incumbent):
                continue
            best = gate.choose_successor(place.incumbent, place.models, self._order)
            if best is None:
                place.ruling = self._no_candidate(place)
            elif early := gate.unchanged(best, place.incumbent):
                place.ruling = early
            elif stop := gate.refused(best, place.incumbent, self._force):
                place.ruling = stop
            elif gate.is_older(best, place.incumbent):
                place.taken = place.fielded[best.recipe]
                place.ruling = Ruling(
                    "forced", "older", f"{best.recipe} of older candles, forced: {self._force}"
                )
            else:
                waiting.append((place, place.fielded[best.recipe], place.incumbent))
        self._predict([(candidate, incumbent) for _, candidate, incumbent in waiting])
        for place, candidate, incumbent in waiting:
            if isinstance(lost := self._losses_of(candidate), DamagedError):
                reason = f"{candidate.model.recipe} was not considered: its scores cannot be read ({lost})"
                place.ruling = Ruling("kept", "damaged", reason)
                continue
            found = self._compared(candidate, incumbent)
            if isinstance(found, DamagedError):
                self._replace_damaged(place, str(found))
                continue
            place.ruling = gate.refresh(candidate.model, incumbent, found)
            if place.ruling.outcome == "refreshed":
                place.taken = candidate

    def _follow(self, place: _Place, incumbent: Contender) -> bool:
        """Let a coin that stayed behind at a switch follow with tonight's model; return whether it does."""
        pair = self._lost.get(incumbent.recipe)
        if pair is None or place.series.symbol not in pair.behind:
            return False
        last = pair
        while after := self._lost.get(last.recipes[0]):  # the winner has lost to another since
            last = after
        recipe = last.recipes[0]
        if recipe not in place.fielded or gate.refused(place.models[recipe], incumbent):
            return False
        place.taken, place.selected_on = place.fielded[recipe], last.tested_on()
        reason = (
            f"its timeframe was switched to {recipe} by evidence on {last.ended_at:%Y-%m-%d}, and it follows"
        )
        place.ruling = Ruling("switched", "follows", reason)
        self._followed.append((place, pair))
        return True

    @cached_property
    def _lost(self) -> dict[Recipe, Pair]:
        return pairs.followed(pairs.pairs(self._home, self._market, self._timeframe))

    def _no_candidate(self, place: _Place) -> Ruling:
        """Rule where nothing can refresh the champion: the first reason why tonight's best model could not anyway."""
        assert place.incumbent is not None
        if place.notes and not place.fielded:
            return place.notes[0]
        best = next((place.models[recipe] for recipe in self._order if recipe in place.fielded), None)
        if best and (stop := gate.refused(best, place.incumbent)):
            return stop
        reason = f"this run has no model of the champion's recipe {place.incumbent.recipe}"
        return Ruling("kept", "no-candidate", reason)

    def _replace_damaged(self, place: _Place, damage: str) -> None:
        """Let any model that may stand beside a damaged champion take its place: it can forecast nothing."""
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
        if place.taken and (stop := gate.refused(place.taken.model, incumbent, self._force)):
            place.taken, place.ruling = None, stop
        if place.ruling is None:
            reason = f"the champion is damaged ({damage}), and this run has no model to take its place"
            place.ruling = Ruling("kept", "damaged-incumbent", reason)

    def _predict(self, wanted: Iterable[tuple[Candidate, Contender]]) -> None:
        """Predict registered models on tonight's test spans, those that are not known yet, all at once."""
        todo = {
            one.run_id + str(one.series): (c, one) for c, one in wanted if self._key(one) not in self._losses
        }
        if not todo:
            return
        ends = [(c.model.tested_from, c.model.tested_until) for c, _ in todo.values()]
        start, stop = min(a for a, _ in ends if a), max(b for _, b in ends if b)
        tasks = [Task(one, candidate.features) for candidate, one in todo.values()]
        for (_, one), found in zip(todo.values(), predicted(self._home, tasks, start, stop), strict=True):
            self._losses[self._key(one)] = found

    def _losses_of(self, one: Contender | Candidate) -> Losses | DamagedError:
        key = self._key(one.model if isinstance(one, Candidate) else one)
        if key not in self._losses and isinstance(one, Candidate):
            try:
                self._losses[key] = scored(one.score)
            except FileNotFoundError:
                self._losses[key] = DamagedError(f"{one.score} is missing", field=str(one.score))
            except DamagedError as error:
                self._losses[key] = error
        return self._losses[key]

    @staticmethod
    def _key(one: Contender) -> str:
        return f"{one.series.name}/{one.run_id}"

    def _compared(self, candidate: Candidate, incumbent: Contender) -> Compared | DamagedError | None:
        """Compare on the origins of tonight's test span that lie in the incumbent's, too."""
        found, theirs = self._losses_of(candidate), self._losses_of(incumbent)
        if isinstance(found, DamagedError) or isinstance(theirs, DamagedError):
            return theirs if isinstance(theirs, DamagedError) else None
        # A folder that does not say what it has learnt may know these rows: it then looks better than it is.
        mine = found.since(incumbent.tested_from)
        step_us = candidate.model.series.seconds * 1_000_000
        return compare(mine, theirs, horizon=candidate.model.horizon, step_us=step_us)

    # --- Challenger

    def _try_challenger(self) -> None:
        """Refresh or appoint the timeframe's challenger, add tonight's test rows to its evidence, and act on it."""
        stored = pairs.pairs(self._home, self._market, self._timeframe)
        trials = [self._settled(pair) for pair in stored if pair.state == "open"]
        trials = [pair for pair in trials if pair.state == "open"]
        recipe = trials[0].recipes[0] if trials else None
        known = self._challengers(recipe)
        recipe = recipe or self._new_challenger()
        if recipe is None:
            return
        rivals = self._rivals(recipe)
        trials += self._new_pairs(recipe, rivals, trials)
        if not trials:
            return
        self._refresh_challengers(recipe, rivals, known)
        for pair in trials:
            self._judge_pair(pair, rivals, known)

    def _challengers(self, recipe: Recipe | None) -> dict[SeriesId, Champion]:
        """Return the challengers of the recipe on trial; others are left from a trial that has ended, and dismissed."""
        found = [
            one
            for one in challengers(market=self._market, store=self._store)
            if one.series.timeframe == self._timeframe
        ]
        known = {one.series: one for one in found if standing(one).recipe == recipe}
        dismiss(self._store, (one for one in found if one.series not in known))
        return known

    def _settled(self, pair: Pair) -> Pair:
        """Return a pair as it is; one whose champions are all gone has ended."""
        _, incumbent = pair.recipes
        if any(one.recipe == incumbent for one in self._registered.values()):
            return pair
        served = any(one.recipe == pair.recipes[0] for one in self._registered.values())
        return pairs.save(self._home, pairs.end(pair, "switched" if served else "dropped", self._now))

    def _after(self) -> dict[SeriesId, Contender | None]:
        """Who serves each coin after tonight's refresh."""
        return {
            s: self._places[s].serving if s in self._places else one for s, one in self._registered.items()
        }

    def _incumbents(self) -> dict[Recipe, float]:
        """Return the recipes that serve after tonight's refresh, and their validation ratios."""
        found: dict[Recipe, list[float]] = defaultdict(list)
        for one in self._after().values():
            if one and not one.damage:
                found[one.recipe].append(one.validation)
        return {
            recipe: self._order.get(recipe, float(np.mean([v if math.isfinite(v) else 1.0 for v in values])))
            for recipe, values in found.items()
        }

    def _tried(self) -> set[tuple[Recipe, Recipe]]:
        return pairs.tried(self._home, self._market, self._timeframe)

    def _new_challenger(self) -> Recipe | None:
        incumbents = self._incumbents()
        fit = {r: v for r, v in self._order.items() if any(self._covers(r, other) for other in incumbents)}
        return gate.choose_challenger(fit, incumbents, self._tried())

    def _covers(self, recipe: Recipe, incumbent: Recipe) -> bool:
        """Whether this run has trained a recipe on enough of the coins that another one serves."""
        coins = [s for s, one in self._after().items() if one and one.recipe == incumbent]
        here = self._rivals(recipe)
        return bool(coins) and sum(s in here for s in coins) >= gate.MIN_COVER * len(coins)

    def _rivals(self, recipe: Recipe) -> dict[SeriesId, Candidate]:
        """Return tonight's models of a recipe, of the coins whose champion they may challenge."""
        return {
            place.series: place.fielded[recipe]
            for place in self._places.values()
            if recipe in place.fielded
            and place.incumbent
            and place.serving
            and place.serving.recipe != recipe
            and not place.incumbent.damage
            and not gate.refused(place.fielded[recipe].model, place.incumbent)
        }

    def _new_pairs(
        self, recipe: Recipe, rivals: Mapping[SeriesId, Candidate], trials: Sequence[Pair]
    ) -> Iterator[Pair]:
        """Yield a pair for each champions' recipe that the challenger is not tried against yet."""
        if not rivals or recipe not in self._order:
            return
        horizon = next(iter(rivals.values())).model.horizon
        known = self._tried() | {pair.recipes for pair in trials}
        for other in gate.opponents(recipe, self._order[recipe], self._incumbents(), known):
            if self._covers(recipe, other):
                pair = pairs.open_pair(
                    self._home, self._market, self._timeframe, recipe, other, horizon, self._now
                )
                yield pairs.save(self._home, pair)

    def _refresh_challengers(
        self, recipe: Recipe, rivals: Mapping[SeriesId, Candidate], known: dict[SeriesId, Champion]
    ) -> None:
        """Point the alias `challenger` at tonight's models, unless they are worse than those that bear it."""
        waiting: list[tuple[Candidate, Contender]] = []
        for series, candidate in rivals.items():
            current = standing(known[series]) if series in known else None
            if current is None or current.damage or current.recipe != recipe:
                known[series] = appoint(self._store, candidate)
            elif not gate.unchanged(candidate.model, current) and not gate.refused(candidate.model, current):
                waiting.append((candidate, current))
        self._predict(waiting)
        for candidate, current in waiting:
            found = self._compared(candidate, current)
            if (
                isinstance(found, DamagedError)
                or gate.refresh(candidate.model, current, found).outcome != "kept"
            ):
                known[candidate.model.series] = appoint(self._store, candidate)

    def _judge_pair(
        self, pair: Pair, rivals: Mapping[SeriesId, Candidate], known: Mapping[SeriesId, Champion]
    ) -> None:
        challenger, incumbent = pair.recipes
        here = [p for p in self._places.values() if p.serving and p.serving.recipe == incumbent]
        if self._covers(challenger, incumbent):
            rows = self._differences([p for p in here if p.series in rivals], rivals, pair.watermark)
            pair = pairs.save(self._home, pairs.take(pair, rows, "test"))
        evidence = pair.evidence(self._now)
        for place in here:
            place.evidence = evidence
        if evidence.e >= pair.threshold:
            self._won.append(pair)
            for place in [*here, *self._absent(incumbent)]:
                place.evidence = evidence
                self._switch(place, pair, known.get(place.series))
        elif pair.is_over(self._now):
            pairs.save(self._home, pairs.end(pair, "dropped", self._now))
            coins = {s for s, one in self._registered.items() if one.recipe == incumbent}
            dismiss(self._store, (one for series, one in known.items() if series in coins))

    def _switch(self, place: _Place, pair: Pair, winner: Champion | None) -> None:
        """Let a coin's challenger win, or say why the coin stays behind."""
        if place.incumbent is None:  # its first champion goes in tonight
            return
        stop = gate.stays(standing(winner) if winner else None, place.incumbent, pair.recipes[0])
        if stop is None:
            place.won, place.selected_on = winner, pair.tested_on()
            place.ruling = Ruling("switched", "evidence", f"the evidence is in: {place.evidence}")
            return
        if winner:
            self._dismissed.append(winner)
        if place.taken:
            place.notes.append(stop)
        else:
            place.ruling = stop

    def _absent(self, recipe: Recipe) -> list[_Place]:
        """Return places for the coins that a recipe serves and this run has not trained: a switch takes them along."""
        added = [
            _Place(series, self._champions[series], one)
            for series, one in self._registered.items()
            if one.recipe == recipe and series not in self._places
        ]
        self._places |= {place.series: place for place in added}
        return added

    def _differences(
        self, places: Sequence[_Place], rivals: Mapping[SeriesId, Candidate], after: datetime | None
    ) -> dict[datetime, dict[str, float]]:
        """Return, per origin (UTC close), each coin's difference in CRPS over the reference's width there."""
        kept = [(rivals[p.series], p.incumbent) for p in places if not p.taken and p.incumbent]
        self._predict(kept)
        rows: dict[datetime, dict[str, float]] = defaultdict(dict)
        for place in places:
            challenger, serving = rivals[place.series], place.taken or place.incumbent
            assert serving is not None
            mine, theirs = self._losses_of(challenger), self._losses_of(serving)
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
            width = widths(self._home, challenger.model, challenger.features, times)
            for at, value in zip(times, (mine.crps[i] - theirs.crps[j]) / width, strict=True):
                rows[_instant(int(at)) + step][place.series.symbol] = float(value)
        return rows

    def _explain(self, place: _Place) -> None:
        """Add to a ruling what became of tonight's other recipes."""
        ruling, serving = place.ruling, place.serving
        if ruling is None or place.won or serving is None:
            return
        others = [recipe for recipe in self._order if recipe in place.fielded and recipe != serving.recipe]
        notes = [str(place.evidence)] if place.evidence else []
        if others and not notes and ruling.rule not in ("smoke", "older", "fewer-candles", "horizon"):
            notes = [self._no_challenger(others[0], serving)]
        # What was refused outright is named too, unless that is the ruling itself.
        notes += [note.reason for note in place.notes if note.reason != ruling.reason]
        place.ruling = replace(ruling, reason="; ".join([ruling.reason, *notes]))

    def _no_challenger(self, recipe: Recipe, serving: Contender) -> str:
        theirs = self._incumbents().get(serving.recipe, serving.validation)
        mine = self._order[recipe]
        figures = f"pooled validation CRPS ratio {mine:.4f} against {theirs:.4f}"
        if not mine < theirs:
            return f"{recipe} is no challenger: {figures}"
        if serving.provisional and recipe.preset != gate.PROVISIONAL:
            return f"{recipe} can replace a provisional champion by that comparison alone ({figures})"
        if (recipe, serving.recipe) in self._tried():
            return f"{recipe} has had its trial and is not tried again ({figures})"
        if not self._covers(recipe, serving.recipe):
            return f"{recipe} is no challenger: this run trained it on too few of the timeframe's coins ({figures})"
        return f"{recipe} is no challenger while another is on trial ({figures})"

    # --- Moving

    def _move(self, place: _Place) -> Decision:
        """Move a series' aliases as ruled, and return the decision."""
        ruling = place.ruling
        assert ruling is not None
        before, candidate = place.incumbent, place.taken
        decision = Decision(
            series=place.series, outcome=ruling.outcome, rule=ruling.rule,
            version_number=before.version if before else "",
            candidate=self._candidate_ref(place), incumbent=before.ref if before else None,
            compared=ruling.compared, evidence=place.evidence, reason=ruling.reason,
            decided_at=datetime.now(UTC),
        )  # fmt: skip
        if place.won:
            version = promote_challenger(self._store, place.won, decision.reason, place.selected_on)
        elif candidate:
            version = promote_candidate(
                self._store, candidate, decision.reason, place.champion, place.selected_on
            )
        else:
            return decision
        registered = {"version_number": version}
        winner = decision.candidate and decision.candidate.model_copy(update=registered)
        return decision.model_copy(update=registered | {"candidate": winner})

    @staticmethod
    def _candidate_ref(place: _Place) -> ModelRef | None:
        if place.won:
            return standing(place.won).ref
        own = place.fielded.get(place.incumbent.recipe) if place.incumbent else None
        best = place.taken or own or next(iter(place.fielded.values()), None)
        return best.model.ref if best else None


_MICROSECOND = timedelta(microseconds=1)


def _instant(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


def _retired(store: Store, stopped: Sequence[SeriesRecord]) -> Iterator[Decision]:
    records = {r.series: r for r in stopped}
    for champion in champions(list(records), store=store) if records else []:
        record, incumbent = records[champion.series], standing(champion)
        if incumbent.candles > record.rows:  # an older as_of must not retire a living coin's champion
            continue
        last = datetime.fromtimestamp(record.last_us / 1e6, UTC)
        reason = f"{champion.series} has not been traded since {last:%Y-%m-%d}"
        retire_champion(champion, reason)
        yield Decision(
            series=champion.series, outcome="retired", rule="stopped", version_number=champion.version,
            incumbent=incumbent.ref, reason=reason, decided_at=datetime.now(UTC),
        )  # fmt: skip
