"""The gate by a backtest: recipes are registered before the backtest (`submissions`) and decided on after it.

A recipe that passes leaves a `Switch`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cpbmodels.data import INTERVAL_SECONDS
from schemas.backtesting import BacktestSpec
from schemas.decision import BacktestEvidence
from schemas.errors import CpbError, UsageError
from schemas.fleets import FleetSpec
from schemas.handover import SplitBounds
from schemas.identity import Recipe, SeriesId
from tasks.backtesting.folds import FoldSeries
from tasks.judging.member import MemberScore
from tasks.judging.paired import MIN_COVER, corrected, daily_losses, failed, min_days, paired
from tasks.promotion.losses import registered_model
from tasks.promotion.moves import promotion_lock
from tasks.promotion.remade import fleet_of
from tasks.promotion.submissions import Submission, counted_before, enter
from tasks.promotion.switches import Switch, save_switch
from tasks.tracking.champions import champions
from tasks.tracking.store import open_store
from tasks.training.plan import fleet_names, planned_recipe

CHAMPION = "champion"
"""Name of the champions' recipe in a backtest whose own options do not train it."""


@dataclass(frozen=True)
class Contest:
    """A backtest that may replace the champions' recipe of a timeframe.

    `recipes`, `fleets`: the submitted recipes, and what trains them, by their name in the backtest; `name`: the
    incumbent's. `served`: its coins. `incumbent_fleet`: the incumbent's fleet, if it is not among the backtest's own.
    """

    recipes: dict[str, Recipe]
    fleets: dict[str, FleetSpec]
    incumbent: Recipe
    name: str
    served: tuple[SeriesId, ...]
    incumbent_fleet: FleetSpec | None


def open_contest(spec: BacktestSpec) -> Contest:
    """Return the contest of a backtest's recipes against the recipe that serves most coins of its timeframe.

    Raises:
        CpbError: there is no store, or no champion of the timeframe.
        UsageError: no other recipe is trained, or the champions' recipe cannot be trained again.
    """
    (timeframe,) = spec.intervals
    served = champions(open_store(create=False), market=spec.scope.market)
    served = [champion for champion in served if champion.series.timeframe == timeframe]
    recipes_served = {champion.series: registered_model(champion).recipe for champion in served}
    if not recipes_served:
        raise CpbError(
            f"no champion at {timeframe} can be replaced; train first with `cpb train-all`",
            code="no-champion",
        )
    # One recipe serves most coins as a rule; others have come by hand, or wait for a model to follow a switch.
    incumbent = Counter(recipes_served.values()).most_common(1)[0][0]
    coins = tuple(series for series, recipe in recipes_served.items() if recipe == incumbent)
    fleets = dict(zip(fleet_names(spec.fleets), spec.fleets, strict=True))
    planned = {name: planned_recipe(fleet, timeframe) for name, fleet in fleets.items()}
    submitted = {name: recipe for name, recipe in planned.items() if recipe != incumbent}
    if not submitted:
        raise UsageError(
            f"gate: the only recipe is {incumbent}, which already serves; add another with --architectures",
            code="gate",
            field="architectures",
        )
    # The champions' recipe is trained once more in any case: its models of today have seen the folds.
    trained_as = next((name for name, recipe in planned.items() if recipe == incumbent), None)
    if trained_as:
        return Contest(submitted, fleets, incumbent, trained_as, coins, None)
    first = next(champion for champion in served if champion.series == coins[0])
    try:
        incumbent_fleet = fleet_of(first.tags)
    except UsageError as error:
        raise UsageError(f"gate: {error}", code="gate") from None
    return Contest(submitted, fleets, incumbent, CHAMPION, coins, incumbent_fleet)


def submit(contest: Contest, spec: BacktestSpec, folds: Sequence[FoldSeries]) -> Submission:
    """Name the recipes in the register and return the record; a repeated backtest is counted once.

    Raises:
        UsageError: no recipe could pass: the test spans are too short, or too few of the champions' coins have folds.
    """
    # Folds of all coins share their bounds: one span a fold.
    spans = list({fold.fold: fold.bounds for fold in folds}.values())
    (timeframe,) = spec.intervals
    _check_length(spans, timeframe)
    _check_coins(contest, folds)
    made = Submission(
        market=spec.scope.market,
        timeframe=timeframe,
        incumbent=str(contest.incumbent),
        recipes=tuple(map(str, contest.recipes.values())),
        trials=spec.trials,
        folds=len(spans),
        first=min(fold.test[0] for fold in spans),
        last=max(fold.test[1] for fold in spans),
        series=tuple(sorted({f"{fold.id.name}:{fold.record.digest}" for fold in folds})),
        named_at=datetime.now(UTC),
    )
    # Before anything is trained: whoever could look at the result first could leave out what lost.
    with promotion_lock(spec.scope.home, made.market):
        return enter(spec.scope.home, made)


def decide(
    contest: Contest,
    submission: Submission,
    home: Path,
    members: Sequence[MemberScore],
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Decide on the submitted recipes, and let the best that meets all conditions replace the champions' recipe.

    Returns:
        `named`, `passed`, `recipes`, `unjudged`, as in `--json`.
    """
    market, timeframe = submission.market, submission.timeframe
    models: dict[str, list[MemberScore]] = {}
    for member in members:
        models.setdefault(member.architecture, []).append(member)
    coins = {series.label for series in contest.served}
    # Compared on the coins that the champions' recipe serves: it is there that a winner would replace it.
    comparisons = {}
    for name in contest.recipes:
        both = [
            {m.symbol for m in models.get(which, ()) if m.symbol in coins} for which in (name, contest.name)
        ]
        if _covers(len(both[0] & both[1]), contest):
            comparisons[name] = paired(daily_losses(models[name], models[contest.name]))
    before = counted_before(home, submission)
    # A recipe without a result, as its training failed, was submitted all the same.
    values = corrected(
        [comparisons[name].p if name in comparisons else 1.0 for name in contest.recipes],
        [submission.trials] * len(contest.recipes),
        before,
    )
    judged: list[tuple[BacktestEvidence, str]] = []
    for (name, recipe), p in zip(contest.recipes.items(), values, strict=True):
        if name in comparisons:
            # Days on which a model has no rows say nothing: what remains must still be long enough for the test.
            short = comparisons[name].days < MIN_COVER * min_days(INTERVAL_SECONDS[timeframe])
            why = "too few days have rows" if short else failed(comparisons[name], p)
            evidence = BacktestEvidence(
                challenger=str(recipe),
                incumbent=submission.incumbent,
                first=submission.first,
                last=submission.last,
                submitted=before + submission.count,
                named=submission.digest,
                **comparisons[name].model_dump() | {"p": p},
            )
            judged.append((evidence, why))
    # Of several that pass, the one with the lowest ratio: they were corrected together, so one winner is one claim.
    winner = min(
        (evidence for evidence, why in judged if not why), key=lambda evidence: evidence.ratio, default=None
    )
    if winner:
        switch = Switch(
            market=market,
            timeframe=timeframe,
            backtest=winner,
            switched_at=datetime.now(UTC),
            coins_to_follow=tuple(sorted(series.symbol for series in contest.served)),
            fleet=next(
                contest.fleets[name]
                for name, recipe in contest.recipes.items()
                if str(recipe) == winner.challenger
            ),
        )
        with promotion_lock(home, market):
            save_switch(home, switch)
    for evidence, why in judged:
        if evidence == winner:
            report(
                f"passed the gate: {evidence}; it replaces {evidence.incumbent} in the next night that trains it"
            )
        else:
            report(f"does not replace {evidence.incumbent}, as {why or 'a better recipe passed'}: {evidence}")
    unjudged = [str(recipe) for name, recipe in contest.recipes.items() if name not in comparisons]
    for lacking in unjudged:
        report(
            f"{lacking} replaces nothing: it was judged on too few of the coins that the champions' recipe serves"
        )
    rows = [evidence.model_dump(mode="json") | {"failed": why} for evidence, why in judged]
    return {
        "named": submission.digest,
        "passed": winner.challenger if winner else None,
        "recipes": rows,
        "unjudged": unjudged,
    }


def _check_length(spans: Sequence[SplitBounds], timeframe: str) -> None:
    # Checked on the plan: an hour of training for a backtest that is too short to pass would be wasted.
    days = sum((bounds.test[1] - bounds.test[0]).total_seconds() for bounds in spans) / 86_400
    least = min_days(INTERVAL_SECONDS[timeframe])
    if days < least:
        raise UsageError(
            f"folds {len(spans)}: the gate needs test spans of {least} days at {timeframe}, these are {days:.0f}; give "
            f"--folds {-int(-least * len(spans) // days)}, and an earlier --since if the history is too short",
            code="gate",
            field="folds",
        )


def _check_coins(contest: Contest, folds: Sequence[FoldSeries]) -> None:
    present, served = {fold.id for fold in folds}, len(contest.served)
    # A recipe that was better on a few coins has not shown anything about the others that it would serve.
    if not _covers(sum(series in present for series in contest.served), contest):
        missing = [series.symbol for series in contest.served if series not in present]
        raise UsageError(
            f"gate: this backtest has {served - len(missing)} of the {served} coins that {contest.incumbent} serves, "
            f"and the gate needs {MIN_COVER:.0%} of them; add --coins {','.join(missing)}",
            code="gate",
            field="coins",
        )


def _covers(coins: int, contest: Contest) -> bool:
    """Whether this number of the coins that the champions' recipe serves is enough for a decision about them."""
    return coins >= MIN_COVER * len(contest.served)
