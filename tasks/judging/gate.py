"""The gate: rules for the champion of a series after a run. Pure functions of plain values, without I/O.

A candidate of the champion's own recipe is a *refresh*: it replaces its predecessor unless it is worse. Another recipe
replaces the champions of a timeframe by a long paired backtest (`paired.py`) or by hand, never by a
run. Ineligible models are excluded first. docs/promotion.md explains each rule under its name here.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from schemas.decision import Compared, ModelRef, Outcome
from schemas.identity import Recipe, SeriesId
from tasks.storage.model_folder import ModelConfig
from tasks.storage.recipes import recipe_of

Name = TypeVar("Name", Recipe, str)

PROVISIONAL = "smoke"
"""The preset whose champions are provisional: they may be a series' first, and any other preset replaces them unless
worse."""

NOT_WORSE = 1.005
"""A refresh passes if the upper end of the 95 % interval of candidate/incumbent is below this."""

MIN_ROWS = 48
"""Minimum number of common rows for deciding on a refresh."""

_ENDINGS = ("", "early_stop", "max_epochs", "closed_form")
"""Values of `stopped` in `cpbmodels.Member.report` for a complete training; "" if the folder does not record it."""


@dataclass(frozen=True)
class GateModel:
    """A model as the gate sees it: tonight's candidate (`version` is "") or a registered model.

    `candles`: of the series it was trained on. `learnt_until`: end of the data used to train or select it;
    `tested_from`, `tested_until`: its test span, all UTC and None if its folder does not record them. `validation`:
    CRPS ratio to the reference on the validation span. `damage`: why its folder cannot be used, or "". `forced`: the
    user's reason for letting a candidate of an older `--as-of` replace a newer champion, or "". `knows_first`: whether
    its table of extremes says which of two prices is reached first; those of earlier releases do not.
    """

    series: SeriesId
    recipe: Recipe
    folder: Path
    run_id: str = ""
    version: str = ""
    market: str = ""
    horizon: int = 0
    candles: int = 0
    data_digest: str = ""
    learnt_until: datetime | None = None
    tested_from: datetime | None = None
    tested_until: datetime | None = None
    validation: float = math.nan
    diverged: bool = False
    stopped: str = ""
    damage: str = ""
    forced: str = ""
    knows_first: bool = False

    @property
    def provisional(self) -> bool:
        """Whether a model of any other preset replaces it unless worse."""
        return self.recipe.preset == PROVISIONAL

    @property
    def ref(self) -> ModelRef:
        """The reference to this model in decisions."""
        return ModelRef(version_number=self.version, run_id=self.run_id, recipe=str(self.recipe))


def gate_model(series: SeriesId, folder: Path, config: ModelConfig, **registered: Any) -> GateModel:
    """Return the model from a model folder's configuration; `registered`: fields that are not in the folder."""
    values = config.model_extra or {}
    report = values.get("report") or {}
    tested_from, tested_until = config.span("test")
    return GateModel(
        series=series,
        recipe=recipe_of(config),
        folder=folder,
        market=config.market,
        horizon=config.horizon or 0,
        candles=config.rows,
        data_digest=config.data_digest,
        learnt_until=config.learnt_until,
        tested_from=tested_from,
        tested_until=tested_until,
        diverged=bool(report.get("diverged")),
        stopped=str(report.get("stopped", "")),
        **registered,
    )


@dataclass(frozen=True)
class GateDecision:
    """The gate's ruling on a series: the outcome, the deciding rule, and the reason in a sentence."""

    outcome: Outcome
    rule: str
    reason: str
    compared: Compared | None = None


# --- Never: models that may not become champion, whatever their figures


def ineligible(candidate: GateModel) -> GateDecision | None:
    """Return why a candidate cannot serve any series, or None."""
    # From the most to the least telling reason: the first that applies is what a user reads.
    learnt, served, stopped = candidate.market, candidate.series.market, candidate.stopped
    rules = {
        "diverged": candidate.diverged and "its training diverged",
        "aborted": stopped not in _ENDINGS and f"its training was cut short ({stopped})",
        "market": learnt != served and f"it was trained on {learnt} candles, and the series is {served}",
        "damaged": candidate.damage and f"its folder is damaged: {candidate.damage}",
        "unscored": not math.isfinite(candidate.validation) and "it has no CRPS ratio on the validation span",
    }
    return _first_reason(candidate, rules)


def refused(candidate: GateModel, incumbent: GateModel) -> GateDecision | None:
    """Return why a candidate may not replace this incumbent, whatever its figures; None if the figures decide."""
    # An older model may be better on its own rows; but a champion that knows fewer candles is a step back in time,
    # which nobody notices, so it takes a reason given by hand.
    older, other_horizon = is_older(candidate, incumbent), candidate.horizon != incumbent.horizon
    rules = {
        "older": older
        and not candidate.forced
        and f"its candles end at {candidate.tested_until:%Y-%m-%d %H:%M}, the champion's at "
        f"{incumbent.tested_until:%Y-%m-%d %H:%M} (give --force REASON to go back)",
        "smoke": candidate.provisional
        and not incumbent.provisional
        and f"the preset {PROVISIONAL} never replaces a champion of the preset {incumbent.recipe.preset}",
        "horizon": incumbent.horizon
        and other_horizon
        and f"it forecasts {candidate.horizon} candles and the champion {incumbent.horizon}, so no rows compare them "
        "(`cpb promote` can force it)",
        # an older candidate that is forced also has fewer candles
        "fewer-candles": candidate.candles < incumbent.candles
        and not (older and candidate.forced)
        and f"it learnt from {candidate.candles} candles, the champion from {incumbent.candles}",
    }
    return _first_reason(candidate, rules)


def is_older(candidate: GateModel, incumbent: GateModel) -> bool:
    """Whether a candidate's candles end before the champion's, as with an older `--as-of`."""
    ends = candidate.tested_until, incumbent.tested_until
    return ends[0] is not None and ends[1] is not None and ends[0] < ends[1]


def _first_reason(candidate: GateModel, rules: Mapping[str, object]) -> GateDecision | None:
    """Return the ruling of the first rule with a reason; a rule that does not apply has a false value."""
    for name, reason in rules.items():
        if reason:
            return GateDecision("kept", name, f"{candidate.recipe} was not considered: {reason}")
    return None


# --- Refresh: the same recipe, or any other preset against a provisional champion


def unchanged(candidate: GateModel, incumbent: GateModel) -> GateDecision | None:
    """Return the ruling that nothing new was trained: the champion's own run, or its recipe on the same candles."""
    if candidate.run_id == incumbent.run_id:
        return GateDecision("unchanged", "same-run", "the champion is this run's own model")
    same = candidate.recipe == incumbent.recipe and candidate.data_digest == incumbent.data_digest
    # A champion that lacks what its like has now is refreshed, or "train it again" would change nothing.
    if same and candidate.knows_first <= incumbent.knows_first:
        return GateDecision(
            "unchanged", "same-data", "the champion's recipe was trained on the very same candles"
        )
    return None


def refresh(candidate: GateModel, incumbent: GateModel, compared: Compared | None) -> GateDecision:
    """Return whether a candidate that passed all other rules replaces its predecessor.

    Args:
        compared: both on the newest rows used neither to train nor to select either model; None if there are too few.
    """
    # The bar of a refresh is "not worse", not "better": the same recipe on newer candles has no reason to be better,
    # and each night's difference is far below what its rows can show.
    rule = "refresh" if candidate.recipe == incumbent.recipe else "provisional"
    if compared is None or compared.n < MIN_ROWS:
        rows = compared.n if compared else 0
        reason = f"{rows} rows compare {candidate.recipe} with the champion; at least {MIN_ROWS} are needed"
        return GateDecision("kept", "too-few-rows", reason, compared)
    against = "the champion" if rule == "refresh" else f"the provisional champion {incumbent.recipe}"
    if compared.high < NOT_WORSE:
        return GateDecision(
            "refreshed", rule, f"{candidate.recipe} is not worse than {against}: {compared}", compared
        )
    word = "is worse than" if compared.low > 1 else "is not shown to be as good as"
    reason = f"{candidate.recipe} {word} {against}: {compared}; the upper end must stay under {NOT_WORSE}"
    return GateDecision("kept", "worse", reason, compared)


def choose_successor(
    incumbent: GateModel, fielded: Mapping[Recipe, GateModel], order: Iterable[Recipe]
) -> GateModel | None:
    """Return tonight's model that may refresh a champion: of its own recipe, or for a provisional champion the best
    of another preset. None if there is neither.

    Args:
        fielded: tonight's eligible models of the series. order: tonight's recipes, best first.
    """
    # A provisional champion yields to any other preset, the best first; its own recipe refreshes it otherwise.
    better = [recipe for recipe in order if recipe in fielded and recipe.preset != PROVISIONAL]
    if incumbent.provisional and better:
        return fielded[better[0]]
    return fielded.get(incumbent.recipe)


# --- First: no champion, or a champion that cannot forecast


def rank(validation: Mapping[Name, Mapping[SeriesId, float]]) -> dict[Name, float]:
    """Return each recipe's CRPS ratio on the validation span, pooled with equal weight per coin, best first.

    A coin that a recipe lacks counts with the worst ratio of any recipe on it, so that leaving out a hard coin is no
    advantage. The validation span is used because a recipe chosen on the test span would be judged on the same rows.
    """
    coins = {series for ratios in validation.values() for series in ratios}
    # The penalty for a missing coin depends on the others alone, so a recipe cannot improve by failing.
    worst = {s: max(ratios[s] for ratios in validation.values() if s in ratios) for s in coins}
    pooled = {
        recipe: sum(ratios.get(s, worst[s]) for s in coins) / len(coins)
        for recipe, ratios in validation.items()
    }
    return dict(sorted(pooled.items(), key=lambda item: (item[1], item[0])))


def choose_first(
    fielded: Mapping[Recipe, GateModel], order: Iterable[Recipe], serving: Iterable[Recipe] = ()
) -> GateModel | None:
    """Return the first champion of a series: of the recipe that serves most other coins, otherwise of the best recipe.

    Args:
        serving: the recipe of each champion of the timeframe.
    """
    counts: dict[Recipe, int] = {}
    for recipe in serving:
        counts[recipe] = counts.get(recipe, 0) + 1
    # A coin listed yesterday gets what serves the others: one recipe per timeframe is easier to watch, and a choice
    # on its few rows would be luck.
    ranked = [*sorted(counts, key=lambda r: (-counts[r], r)), *order]
    return next((fielded[recipe] for recipe in ranked if recipe in fielded), None)
