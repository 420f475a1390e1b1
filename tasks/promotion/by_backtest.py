"""The gate by a backtest: recipes are registered before the backtest and decided on after it.

The register, `HOME/ledger/gate/interval=1h/003~5.json` (number, recipes and search trials submitted), is what the
correction for many recipes counts: a record is never changed or removed, whether its recipes pass or lose. A recipe
that passes leaves a `Switch` in `HOME/ledger/switches`; coins follow it in the next night that trains the recipe.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cpbmodels.data import INTERVAL_SECONDS
from schemas.backtesting import BacktestSpec
from schemas.base import Record
from schemas.decision import BacktestEvidence
from schemas.errors import CpbError, UsageError
from schemas.fleets import FleetSpec
from schemas.handover import SplitBounds
from schemas.identity import Market, Recipe, SeriesId, tree_of
from tasks.backtesting.folds import FoldSeries
from tasks.judging.member import MemberScore
from tasks.judging.paired import MIN_COVER, corrected, daily_losses, failed, min_days, paired
from tasks.promotion.losses import registered_model
from tasks.promotion.moves import promotion_lock
from tasks.promotion.remade import UNKNOWN, fleet_of, why_another
from tasks.storage.records import find_record, value_digest, write_record
from tasks.tracking.champions import champions
from tasks.tracking.store import open_store
from tasks.training.plan import fleet_names, planned_recipe

CHAMPION = "champion"
"""Name of the champions' recipe in a backtest whose own options do not train it."""

_NAME = re.compile(r"(?P<number>\d{3,})~(?P<count>\d+)\.json")
_SWITCH = re.compile(r"\d{8}T\d{12}\.json")


class Submission(Record):
    """Recipes named for a backtest against the champions' recipe, before it starts.

    `trials`: search trials on the span of which each recipe is the best, 1 for none. `first`, `last`: start and end of
    the test spans. `series`: digests of the candles.
    """

    market: Market
    timeframe: str
    incumbent: str
    recipes: tuple[str, ...]
    trials: int
    folds: int
    first: datetime
    last: datetime
    series: tuple[str, ...]
    named_at: datetime

    @property
    def count(self) -> int:
        """Number of recipes and search trials that count for the correction."""
        return self.trials * len(self.recipes)

    @property
    def digest(self) -> str:
        """Digest of what was named, without the time."""
        return value_digest(self.model_dump(mode="json", exclude={"named_at"}))[:16]


class Switch(Record):
    """A recipe that replaces the recipe of a timeframe's champions, by a backtest.

    `behind`: the symbols that still have their champion, and follow in a night that trains the recipe. `fleet`: what
    trains it.
    """

    market: Market
    timeframe: str
    backtest: BacktestEvidence
    switched_at: datetime
    behind: tuple[str, ...]
    fleet: FleetSpec | None = None

    @property
    def recipes(self) -> tuple[Recipe, Recipe]:
        """The recipe that won, and the one that it replaces."""
        return Recipe.parse(self.backtest.challenger), Recipe.parse(self.backtest.incumbent)


@dataclass(frozen=True)
class Contest:
    """A backtest that may replace the champions' recipe of a timeframe.

    `recipes`, `fleets`: the submitted recipes, and what trains them, by their name in the backtest; `name`: the
    incumbent's. `served`: its coins. `beside`: the incumbent's fleet, if it is not among the backtest's own.
    """

    recipes: dict[str, Recipe]
    fleets: dict[str, FleetSpec]
    incumbent: Recipe
    name: str
    served: tuple[SeriesId, ...]
    beside: FleetSpec | None


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
    incumbent = Counter(recipes_served.values()).most_common(1)[0][0]
    coins = tuple(series for series, recipe in recipes_served.items() if recipe == incumbent)
    fleets = dict(zip(fleet_names(spec.fleets), spec.fleets, strict=True))
    planned = {name: planned_recipe(fleet) for name, fleet in fleets.items()}
    submitted = {name: recipe for name, recipe in planned.items() if recipe != incumbent}
    if not submitted:
        raise UsageError(
            f"gate: the only recipe is {incumbent}, which already serves; add another with --architectures",
            code="gate",
            field="architectures",
        )
    trained_as = next((name for name, recipe in planned.items() if recipe == incumbent), None)
    if trained_as:
        return Contest(submitted, fleets, incumbent, trained_as, coins, None)
    first = next(champion for champion in served if champion.series == coins[0])
    try:
        beside = fleet_of(first.tags)
    except UsageError as error:
        raise UsageError(f"gate: {error}", code="gate") from None
    return Contest(submitted, fleets, incumbent, CHAMPION, coins, beside)


def submit(contest: Contest, spec: BacktestSpec, folds: Sequence[FoldSeries]) -> Submission:
    """Name the recipes in the register and return the record; a repeated backtest is counted once.

    Raises:
        UsageError: no recipe could pass: the test spans are too short, or too few of the champions' coins have folds.
    """
    spans = list({fold.fold: fold.bounds for fold in folds}.values())
    (timeframe,) = spec.intervals
    _check_length(spans, timeframe)
    _check_coins(contest, folds)
    home, market = spec.scope.home, spec.scope.market
    made = Submission(
        market=market,
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
    with promotion_lock(home, market):
        earlier = {submission.digest: submission for submission in submissions(home, market, timeframe)}
        if made.digest in earlier:
            return earlier[made.digest]
        number = 1 + max(
            (int(path.name.partition("~")[0]) for path in register_files(home, market, timeframe)), default=0
        )
        path = _folder(home, market, timeframe) / f"{number:03d}~{made.count}.json"
        write_record(path, made, of=record_subject(path))
    return made


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
    winner = min(
        (evidence for evidence, why in judged if not why), key=lambda evidence: evidence.ratio, default=None
    )
    if winner:
        switch = Switch(
            market=market,
            timeframe=timeframe,
            backtest=winner,
            switched_at=datetime.now(UTC),
            behind=tuple(sorted(series.symbol for series in contest.served)),
            fleet=next(
                contest.fleets[name]
                for name, recipe in contest.recipes.items()
                if str(recipe) == winner.challenger
            ),
        )
        with promotion_lock(home, market):
            save(home, switch)
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


def submissions(home: Path, market: str, timeframe: str) -> list[Submission]:
    """Return the submissions of a timeframe, oldest first; a damaged file is left out."""
    files = register_files(home, market, timeframe)
    return [record for path in files if (record := find_record(path, Submission, of=record_subject(path)))]


def counted_before(home: Path, submission: Submission) -> int:
    """Return the number of recipes and trials named earlier for spans that overlap a submission's.

    A submission whose record was lost to damage counts as overlapping.
    """
    count = 0
    for earlier in submissions(home, submission.market, submission.timeframe):
        if earlier.digest == submission.digest:
            break
        count += earlier.count if earlier.first < submission.last and submission.first < earlier.last else 0
    for path in register_files(home, submission.market, submission.timeframe):
        name = _NAME.fullmatch(path.name)
        if name and not find_record(path, Submission, of=record_subject(path)):
            count += int(name["count"])
    return count


def register_files(home: Path, market: str, timeframe: str = "*") -> list[Path]:
    """Return the files of the register of a timeframe, or of all, oldest first; other files are ignored."""
    paths = _folder(home, market, "").parent.glob(f"interval={timeframe}/*.json")
    named = ((path, _NAME.fullmatch(path.name)) for path in paths)
    return [path for _, path in sorted((int(name["number"]), path) for path, name in named if name)]


def record_subject(path: Path) -> str:
    """Return the subject of a file of register or switches: its path below the ledger."""
    return "/".join(path.parts[-3:])


def switch_files(home: Path, market: str, timeframe: str = "*") -> list[Path]:
    """Return the files of a timeframe's switches, or of all, oldest first; other files are ignored."""
    paths = (tree_of(home, "ledger", market) / "switches").glob(f"interval={timeframe}/*.json")
    return sorted(path for path in paths if _SWITCH.fullmatch(path.name))


def switches(home: Path, market: str, timeframe: str) -> list[Switch]:
    """Return every switch of a timeframe, oldest first; the coins of a damaged file stay as they are."""
    files = switch_files(home, market, timeframe)
    return [record for path in files if (record := find_record(path, Switch, of=record_subject(path)))]


def save(home: Path, switch: Switch) -> None:
    """Write a switch; it is known by the time at which it was decided."""
    folder = tree_of(home, "ledger", switch.market) / "switches" / f"interval={switch.timeframe}"
    path = folder / f"{switch.switched_at:%Y%m%dT%H%M%S%f}.json"
    write_record(path, switch, of=record_subject(path), compact=True)


def replaced_recipes(home: Path, market: str, timeframe: str) -> dict[Recipe, Switch]:
    """Return, for each recipe that lost a timeframe by a switch and has not won it back, that switch."""
    lost: dict[Recipe, Switch] = {}
    for switch in switches(home, market, timeframe):
        winner, loser = switch.recipes
        lost[loser] = switch
        lost.pop(winner, None)
    return lost


def followed(switch: Switch, switched: Mapping[Recipe, Switch]) -> Switch:
    """Return the switch whose winner the coins behind a switch follow: its own, unless that has since lost as well.

    Args:
        switched: as of `replaced_recipes`.
    """
    while after := switched.get(switch.recipes[0]):
        switch = after
    return switch


def fleet_to_follow(switch: Switch) -> FleetSpec:
    """Return what trains the recipe that won a switch.

    Raises:
        UsageError: the switch does not say it, or this release trains another recipe with it.
    """
    recipe = str(switch.recipes[0])
    refused = f"the recipe {recipe}, which has passed the gate at {switch.timeframe}, cannot be trained"
    if switch.fleet is None:
        raise UsageError(
            f"{refused}: its switch does not say how; repeat `cpb backtest --gate`", code=UNKNOWN
        )
    if why := why_another(switch.fleet, recipe):
        raise UsageError(f"{refused}: {why}; repeat `cpb backtest --gate`", code=UNKNOWN)
    return switch.fleet


def _check_length(spans: Sequence[SplitBounds], timeframe: str) -> None:
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


def _folder(home: Path, market: str, timeframe: str) -> Path:
    return tree_of(home, "ledger", market) / "gate" / f"interval={timeframe}"
