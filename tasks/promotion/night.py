"""The decisions of a run: per timeframe first champions, refreshes, then the challenger and its evidence.

All decisions are made before any alias moves. The aliases are then moved series by series, each with the record of its
decision: repeating a run that was killed in between finds its own models and moves the remaining aliases.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from schemas.handover import Decision, Failure, FleetJudgement, SeriesRecord
from schemas.identity import Recipe
from schemas.run import RunSpec
from tasks.forecasting.watch import drifted_first
from tasks.judging import gate
from tasks.judging.gate import Contender, Ruling
from tasks.promotion import recipe_pairs
from tasks.promotion.challenge import Challenge
from tasks.promotion.contenders import Candidate, standing, tonights
from tasks.promotion.losses import Comparisons
from tasks.promotion.moves import decided, promote_candidate, promotion_lock, retire
from tasks.promotion.refresh import Refresh
from tasks.promotion.standings import Place, Standings
from tasks.tracking.connection import Store
from tasks.tracking.decisions import keep_decision
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.registry import champions


def decide_night(
    spec: RunSpec,
    fleets: Sequence[FleetJudgement],
    stopped: Sequence[SeriesRecord] = (),
    failures: Sequence[Failure] = (),
) -> tuple[Decision, ...]:
    """Decide on every series that a run has trained, and move its aliases with the record of the decision.

    Series that have stopped trading lose their champion, unless it was trained on more candles than this run has.

    Args:
        failures: of the run so far; each decision names the models of its series that it could not consider.
    """
    store, now = open_store(), datetime.now(UTC)
    groups: dict[str, list[Candidate]] = defaultdict(list)
    with promotion_lock(store, spec.scope.home, spec.scope.market):
        for candidate in tonights(spec.scope.root, fleets):
            groups[candidate.model.series.timeframe].append(candidate)
        served = champions(market=spec.scope.market, store=store) if groups else []
        decisions = [
            decision
            for timeframe, found in groups.items()
            for decision in _Night(Standings(spec, store, timeframe, found, served, now)).decide(failures)
        ]
        decisions += _retired(store, stopped)
    return tuple(decisions)


class _Night:
    """The decisions of a timeframe."""

    def __init__(self, tonight: Standings) -> None:
        self._tonight = tonight
        comparisons = Comparisons(tonight.home)
        self._refresh = Refresh(tonight, comparisons)
        self._challenge = Challenge(tonight, comparisons)

    def decide(self, failures: Sequence[Failure]) -> list[Decision]:
        """Rule on every series, move the aliases, and return the decisions."""
        tonight = self._tonight
        self._refresh.rule()
        self._challenge.rule()
        for place in tonight.places.values():
            self._explain(place, failures)
        # Drifted champions first, in case the run is killed here.
        order = [tonight.places[series] for series in drifted_first(tonight.home, list(tonight.places))]
        decisions = [self._move(place) for place in order if place.ruling]
        self._keep_followed()  # last: a run killed before this lets the remaining series follow when repeated
        return decisions

    def _keep_followed(self) -> None:
        """Store the coins that have not followed a switch yet."""
        followed = self._refresh.followed
        moved = {place.series.symbol for place, _ in followed}
        for pair in {pair.recipes: pair for _, pair in followed}.values():
            left = tuple(symbol for symbol in pair.behind if symbol not in moved)
            recipe_pairs.save(self._tonight.home, pair.model_copy(update={"behind": left}))

    def _explain(self, place: Place, failures: Sequence[Failure]) -> None:
        """Add to a ruling the outcome of tonight's other recipes, and the models that failed, as on a full disk."""
        ruling, serving = place.ruling, place.serving
        if ruling is None:
            return
        notes: list[str] = []
        if place.incumbent and serving:
            order, beside = self._tonight.order, ("smoke", "older", "fewer-candles", "horizon")
            others = [recipe for recipe in order if recipe in place.fielded and recipe != serving.recipe]
            if place.evidence:
                notes = [str(place.evidence)]
            elif others and ruling.rule not in beside:
                notes = [self._no_challenger(others[0], serving)]
            # Rejected models are named too, unless the rejection is the ruling itself.
            notes += [note.reason for note in place.notes if note.reason != ruling.reason]
        models = [f.model for f in failures if f.model and f.model.series == place.series]
        if failed := sorted({f"{model.architecture}/{model.recipe}" for model in models}):
            notes.append(f"not considered, as they failed in this run: {', '.join(failed)}")
        place.ruling = replace(ruling, reason="; ".join([ruling.reason, *notes]))

    def _no_challenger(self, recipe: Recipe, serving: Contender) -> str:
        theirs = self._tonight.incumbents().get(serving.recipe, serving.validation)
        mine = self._tonight.order[recipe]
        figures = f"pooled validation CRPS ratio {mine:.4f} against {theirs:.4f}"
        if not mine < theirs:
            return f"{recipe} is not a challenger: {figures}"
        if serving.provisional and recipe.preset != gate.PROVISIONAL:
            return f"{recipe} can replace a provisional champion by that comparison alone ({figures})"
        if (recipe, serving.recipe) in self._tonight.tried():
            return f"{recipe} has had its trial and is not tried again ({figures})"
        if not self._tonight.covers(recipe, serving.recipe):
            return f"{recipe} is not a challenger: this run trained it on too few of the timeframe's coins ({figures})"
        return f"{recipe} is not a challenger while another is on trial ({figures})"

    def _move(self, place: Place) -> Decision:
        """Move a series' aliases as ruled, and return the decision."""
        ruling, incumbent = place.ruling, place.incumbent
        assert ruling is not None
        own = place.fielded.get(incumbent.recipe) if incumbent else None
        best = place.taken or own or next(iter(place.fielded.values()), None)
        candidate = best.model.ref if best else None
        decision = decided(place.series, ruling, incumbent, candidate, place.evidence, place.backtest)
        store = self._tonight.store
        if place.taken:
            return promote_candidate(store, place.taken, decision, place.champion)
        keep_decision(store, decision)
        return decision


def _retired(store: Store, stopped: Sequence[SeriesRecord]) -> Iterator[Decision]:
    records = {r.series: r for r in stopped}
    for champion in champions(list(records), store=store) if records else []:
        record, incumbent = records[champion.series], standing(champion)
        if incumbent.candles > record.rows:  # an older as_of must not retire a traded coin's champion
            continue
        last = datetime.fromtimestamp(record.last_us / 1e6, UTC)
        reason = f"{champion.series} has not been traded since {last:%Y-%m-%d}"
        decision = decided(champion.series, Ruling("retired", "stopped", reason), incumbent)
        retire(store, champion, decision)
        yield decision
