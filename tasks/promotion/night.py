"""The decisions of a run: first champions, refreshes of champions, and coins that follow a switch by a backtest.

All decisions of a timeframe are made before any alias moves. The aliases are then moved series by series, each with the
record of its decision: repeating a run that was killed in between finds its own models and moves the remaining aliases.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from schemas.decision import BacktestEvidence, Decision
from schemas.errors import DamagedError, counted
from schemas.handover import FleetJudgement, SeriesRecord
from schemas.identity import Recipe, SeriesId
from tasks.judging import gate
from tasks.judging.gate import GateDecision, GateModel
from tasks.promotion.losses import LossTable, TrainedCandidate, registered_model, trained_candidate
from tasks.promotion.moves import decided, promote_candidate, promotion_lock, record_fleet, retire
from tasks.promotion.switches import Switch, replaced_recipes, save_switch, switch_to_follow
from tasks.signals.feature_files import read_features
from tasks.tracking.champions import Champion, champions
from tasks.tracking.decisions import keep_decision
from tasks.tracking.experiment import Store
from tasks.tracking.store import open_store


@dataclass
class SeriesState:
    """A series of a run: its champion before, the run's eligible models by recipe, and the ruling.

    `chosen`: the model that becomes champion, if any. `notes`: why the run's other models were not considered.
    """

    series: SeriesId
    champion: Champion | None
    incumbent: GateModel | None
    candidates: dict[Recipe, TrainedCandidate] = field(default_factory=dict)
    notes: list[GateDecision] = field(default_factory=list)
    ruling: GateDecision | None = None
    chosen: TrainedCandidate | None = None
    backtest: BacktestEvidence | None = None

    @property
    def models(self) -> dict[Recipe, GateModel]:
        """The run's eligible models."""
        return {recipe: candidate.model for recipe, candidate in self.candidates.items()}

    def choose(self, recipe: Recipe, ruling: GateDecision) -> None:
        """Let the run's model of a recipe become champion."""
        self.chosen, self.ruling = self.candidates[recipe], ruling


def decide_night(
    home: Path,
    fleets: Sequence[FleetJudgement],
    stopped: Sequence[SeriesRecord] = (),
    force: str = "",
) -> tuple[Decision, ...]:
    """Decide on every series that a run has trained, and move its aliases with the record of the decision.

    Series that have stopped trading lose their champion, unless it was trained on more candles than this run has.

    Args:
        fleets, stopped: of one market.
        force: why a model of older candles may replace a champion, or "".
    """
    by_timeframe: dict[str, list[TrainedCandidate]] = defaultdict(list)
    for fleet in fleets:
        for judgement in fleet.judgements:
            by_timeframe[judgement.model.series.timeframe].append(trained_candidate(judgement, force))
    losses = LossTable(partial(read_features, home))
    series = [judgement.model.series for fleet in fleets for judgement in fleet.judgements]
    # One market a run: its lock, its ledger and its registry's names are the market's own.
    markets = {series.market for series in [*series, *(record.series for record in stopped)]}
    if not markets:
        return ()
    (market,) = markets
    store = open_store()
    decisions: list[Decision] = []
    with promotion_lock(home, market):
        # All champions, also of coins that this run has not trained: the recipe that serves most of them is
        # what a new coin gets.
        served = champions(store, market=market) if by_timeframe else []
        for timeframe, candidates in by_timeframe.items():
            serving = {
                champion.series: champion for champion in served if champion.series.timeframe == timeframe
            }
            switched = replaced_recipes(home, market, timeframe)
            ruled = decide_timeframe(store, candidates, serving, switched, losses)
            # Last: a run killed before this lets the remaining series follow when repeated.
            have_followed = {decision.series.symbol for decision in ruled if decision.backtest}
            for switch in switched.values():
                if have_followed.intersection(switch.coins_to_follow):
                    waiting = tuple(
                        symbol for symbol in switch.coins_to_follow if symbol not in have_followed
                    )
                    save_switch(home, switch.model_copy(update={"coins_to_follow": waiting}))
            decisions += ruled
        decisions += _retired(store, stopped)
    return tuple(decisions)


def decide_timeframe(
    store: Store,
    candidates: Iterable[TrainedCandidate],
    serving: Mapping[SeriesId, Champion],
    switched: Mapping[Recipe, Switch],
    losses: LossTable,
) -> list[Decision]:
    """Rule on every series of a timeframe, move the aliases, and return the decisions.

    Args:
        candidates: the timeframe's models of this run.
        serving: its champions before.
        switched: by recipe that has lost a backtest, the switch to the recipe that won.
    """
    states = _states(candidates, serving)
    validation: dict[Recipe, dict[SeriesId, float]] = defaultdict(dict)
    for state in states.values():
        for recipe, model in state.models.items():
            validation[recipe][state.series] = model.validation
    # Ranked over all coins together: one coin's validation span is too short to tell recipes apart.
    order = gate.rank(validation) if validation else {}
    incumbents = {s: states[s].incumbent if s in states else registered_model(c) for s, c in serving.items()}
    # Damaged champions do not count: a recipe is not followed for models that cannot be read.
    sound = [model.recipe for model in incumbents.values() if model and not model.damage]

    # First everything that needs no forecast of the incumbent: the comparisons that are left are predicted
    # in one batch, in which the device works for all coins at once.
    to_compare: list[tuple[SeriesState, TrainedCandidate, GateModel]] = []
    for state in states.values():
        incumbent = state.incumbent
        if incumbent is None:
            _choose_first(state, order, sound, "first", "it had no champion")
        elif incumbent.damage:
            _replace_damaged(state, order, sound, incumbent, incumbent.damage)
        # A switch goes before a refresh: the backtest has judged the recipes on years, a refresh looks at
        # one test span.
        elif not _follow(state, incumbent, switched):
            best = gate.choose_successor(incumbent, state.models, order)
            if best is None:
                state.ruling = _no_candidate(state, incumbent, order)
            # The same candles or run again, or a rule that needs no figures: nothing is to be compared.
            elif early := gate.unchanged(best, incumbent) or gate.refused(best, incumbent):
                state.ruling = early
            # Older candles are refused above unless they were forced; their span says nothing
            # about the incumbent's.
            elif gate.is_older(best, incumbent):
                reason = f"{best.recipe} of older candles, forced: {best.forced}"
                state.choose(best.recipe, GateDecision("forced", "older", reason))
            else:
                to_compare.append((state, state.candidates[best.recipe], incumbent))

    losses.predict([(candidate, incumbent) for _, candidate, incumbent in to_compare])
    for state, candidate, incumbent in to_compare:
        recipe = candidate.model.recipe
        # The candidate's scores first: where they are damaged, the incumbent must not be replaced
        # uncompared, as a damaged incumbent is.
        if isinstance(unread := losses.losses_of(candidate), DamagedError):
            reason = f"{recipe} was not considered: its scores cannot be read ({unread})"
            state.ruling = GateDecision("kept", "damaged", reason)
            continue
        compared = losses.compared(candidate, incumbent)
        if isinstance(compared, DamagedError):
            _replace_damaged(state, order, sound, incumbent, str(compared))
            continue
        state.ruling = gate.refresh(candidate.model, incumbent, compared)
        if state.ruling.outcome == "refreshed":
            state.chosen = candidate

    for state in states.values():
        _explain(state, order)
    return [_move(store, state) for state in states.values() if state.ruling]


def _states(
    candidates: Iterable[TrainedCandidate], serving: Mapping[SeriesId, Champion]
) -> dict[SeriesId, SeriesState]:
    states: dict[SeriesId, SeriesState] = {}
    for candidate in candidates:
        series = candidate.model.series
        if series not in states:
            champion = serving.get(series)
            states[series] = SeriesState(series, champion, registered_model(champion) if champion else None)
        # Kept as a note: the decision says why the run's other models were not considered.
        if stop := gate.ineligible(candidate.model):
            states[series].notes.append(stop)
        else:
            states[series].candidates[candidate.model.recipe] = candidate
    return states


def _choose_first(
    state: SeriesState, order: Mapping[Recipe, float], sound: Iterable[Recipe], rule: str, why: str
) -> None:
    """Choose the run's best model for a series without a usable champion; `sound`: the recipes that serve others."""
    # The recipe that serves most other coins, if this run has trained it: champions of one recipe can be
    # trained and judged together.
    best = gate.choose_first(state.models, order, sound)
    if best is None:  # only classifiers, which do not forecast prices
        return
    figures = f"CRPS ratio {order[best.recipe]:.4f} on the validation span, pooled over coins"
    provisional = (
        "; it is provisional: a model of a different preset replaces it unless worse"
        if best.provisional
        else ""
    )
    reason = f"{why}; {best.recipe} was chosen from {counted(len(order), 'recipe')} ({figures}){provisional}"
    state.choose(best.recipe, GateDecision("first", rule, reason))


def _replace_damaged(
    state: SeriesState,
    order: Mapping[Recipe, float],
    sound: Iterable[Recipe],
    incumbent: GateModel,
    damage: str,
) -> None:
    """Let any eligible model replace a damaged champion, which cannot forecast."""
    # The model's recipe is in its configuration; where that is damaged too, architecture and preset in the
    # registry must do.
    same = [
        r
        for r in state.candidates
        if r == incumbent.recipe
        or (
            not incumbent.recipe.digest
            and (r.architecture, r.preset) == (incumbent.recipe.architecture, incumbent.recipe.preset)
        )
    ]
    if same:
        best = min(same, key=lambda recipe: order[recipe])  # several if its digest is lost, too
        reason = f"the champion is damaged ({damage}); {best} takes its place uncompared"
        state.choose(best, GateDecision("refreshed", "damaged-incumbent", reason))
    else:
        _choose_first(state, order, sound, "damaged-incumbent", f"the champion is damaged ({damage})")
    # Damage lifts the comparison, but not the rules about candles and horizon: an older model would
    # forecast what it has seen.
    if state.chosen and (stop := gate.refused(state.chosen.model, incumbent)):
        state.chosen, state.ruling = None, stop
    if state.ruling is None:
        reason = f"the champion is damaged ({damage}), and this run has no model to take its place"
        state.ruling = GateDecision("kept", "damaged-incumbent", reason)


def _follow(state: SeriesState, incumbent: GateModel, switched: Mapping[Recipe, Switch]) -> bool:
    """Let a coin follow the switch of its timeframe with the run's model of the recipe; return whether it does."""
    switch = switched.get(incumbent.recipe)
    if switch is None or state.series.symbol not in switch.coins_to_follow:
        return False
    # The winner may have lost another backtest since; its successor is the one to follow.
    switch = switch_to_follow(switch, switched)
    recipe = switch.recipes[0]
    model = state.models.get(recipe)
    if model is None or gate.is_older(model, incumbent) or gate.refused(model, incumbent):
        return False
    state.backtest = switch.backtest
    state.choose(recipe, GateDecision("switched", "backtest", f"the gate is passed: {switch.backtest}"))
    return True


def _no_candidate(state: SeriesState, incumbent: GateModel, order: Iterable[Recipe]) -> GateDecision:
    """Rule on a champion without a candidate, with the reason that excludes the run's best model, if any."""
    if state.notes and not state.candidates:
        return state.notes[0]
    best = next((state.models[recipe] for recipe in order if recipe in state.candidates), None)
    if best and (stop := gate.refused(best, incumbent)):
        return stop
    reason = f"this run has no model of the champion's recipe {incumbent.recipe}"
    alike = (incumbent.recipe.architecture, incumbent.recipe.preset)
    if any((recipe.architecture, recipe.preset) == alike for recipe in state.candidates):
        reason += ", only one with other options or columns"
    return GateDecision("kept", "no-candidate", reason)


def _explain(state: SeriesState, order: Mapping[Recipe, float]) -> None:
    """Add to a ruling a recipe that validates better, and the models that were rejected."""
    if state.ruling is None:
        return
    notes = [note.reason for note in state.notes if note.reason != state.ruling.reason]
    serving = state.chosen.model if state.chosen else state.incumbent
    best = next((recipe for recipe in order if recipe in state.candidates), None)
    if state.incumbent and serving and best and best != serving.recipe:
        # A champion that this run has not trained has the validation figure of its own night.
        theirs = order.get(serving.recipe, serving.validation)
        if order[best] < theirs:
            figures = f"pooled validation CRPS ratio {order[best]:.4f} against {theirs:.4f}"
            notes.insert(
                0, f"{best} validates better ({figures}): `cpb backtest --gate` or a person may let it serve"
            )
    state.ruling = replace(state.ruling, reason="; ".join([state.ruling.reason, *notes]))


def _move(store: Store, state: SeriesState) -> Decision:
    """Move a series' aliases as ruled, and return the decision."""
    ruling, incumbent = state.ruling, state.incumbent
    assert ruling is not None
    # The model that a reader expects in the record: the new champion, else the one it was compared with,
    # else any of the run.
    same = state.candidates.get(incumbent.recipe) if incumbent else None
    best = state.chosen or same or next(iter(state.candidates.values()), None)
    decision = decided(state.series, ruling, incumbent, best.model.ref if best else None, state.backtest)
    if state.chosen:
        return promote_candidate(store, state.chosen, decision, state.champion)
    # Versions of an older cpb do not say how they were made; now that the same recipe was trained, it is
    # known.
    if state.champion and same:
        record_fleet(store, state.champion, same)
    keep_decision(store, decision)
    return decision


def _retired(store: Store, stopped: Sequence[SeriesRecord]) -> Iterator[Decision]:
    records = {r.series: r for r in stopped}
    for champion in champions(store, list(records)) if records else []:
        record, incumbent = records[champion.series], registered_model(champion)
        if incumbent.candles > record.rows:  # an older as_of must not retire a traded coin's champion
            continue
        last = datetime.fromtimestamp(record.last_us / 1e6, UTC)
        reason = f"{champion.series} has not been traded since {last:%Y-%m-%d}"
        decision = decided(champion.series, GateDecision("retired", "stopped", reason), incumbent)
        retire(store, champion, decision)
        yield decision
