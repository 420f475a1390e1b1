"""The challengers' trial: live forecasts made after the appointment are added to the evidence as they are scored.

Crossing the threshold switches the timeframe immediately; a trial without a result ends after `MAX_TRIAL`. Older rows
are not evidence: they were public when the challenger was chosen, and the best of many equal recipes looks better
there.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

from schemas.forecasts import CHALLENGER, CHAMPION
from schemas.handover import Decision, Failure, PairEvidence, Trials
from schemas.identity import INTERVAL_SECONDS, SeriesId
from schemas.scope import Scope
from tasks.forecasting.chain import ANY_ERROR, as_error
from tasks.forecasting.daily import recipes_of
from tasks.forecasting.losses import evidence_rows
from tasks.judging import gate
from tasks.promotion import recipe_pairs
from tasks.promotion.contenders import standing
from tasks.promotion.moves import decided, dismiss, promote_version, promotion_lock
from tasks.promotion.recipe_pairs import Pair
from tasks.tracking.connection import Store
from tasks.tracking.decisions import keep_decision
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.registry import Champion, challengers, champions

Versions = tuple[Champion, Champion | None]
"""Champion and challenger, if any, of a series."""


def update_trials(scope: Scope) -> Trials:
    """Add the scored shadow forecasts of a market's timeframes to their pairs, and end trials that are decided or over.

    An error in a timeframe becomes a failure; the other timeframes continue.
    """
    decisions: list[Decision] = []
    failures: list[Failure] = []
    now = scope.as_of or datetime.now(UTC)
    for timeframe in scope.timeframes:
        try:
            if any(pair.state == "open" for pair in recipe_pairs.pairs(scope.home, scope.market, timeframe)):
                decisions += _update(scope.home, scope.market, timeframe, now)
        except ANY_ERROR as error:
            # The forecasts are stored: an error of the tracking store must not fail their run.
            failures.append(Failure.of(None, "promote", as_error(f"{scope.market} {timeframe}", error)))
    return Trials(decisions=tuple(decisions), failures=tuple(failures))


def _update(home: Path, market: str, timeframe: str, now: datetime) -> list[Decision]:
    store = open_store()
    with promotion_lock(store, home, market):
        decisions: list[Decision] = []
        known = _versions(store, market, timeframe)
        for pair in recipe_pairs.pairs(home, market, timeframe):
            if pair.state == "open":
                decisions += _update_pair(home, store, pair, known, now)
    return decisions


def _versions(store: Store, market: str, timeframe: str) -> dict[SeriesId, Versions]:
    """Return the champion and the challenger of each series of a timeframe."""
    serving = {c.series: c for c in champions(market=market, store=store) if c.series.timeframe == timeframe}
    beside = {c.series: c for c in challengers(list(serving), store=store)}
    return {series: (champion, beside.get(series)) for series, champion in serving.items()}


def _update_pair(
    home: Path, store: Store, pair: Pair, known: dict[SeriesId, Versions], now: datetime
) -> list[Decision]:
    challenger, incumbent = pair.recipes
    served = {s: versions for s, versions in known.items() if standing(versions[0]).recipe == incumbent}
    coins = [s for s, (_, other) in served.items() if other and standing(other).recipe == challenger]
    rows = live_differences(home, coins, pair, now)
    due = pair.horizon * timedelta(seconds=INTERVAL_SECONDS[pair.timeframe])
    rule = recipe_pairs.complete_or_old({series.symbol for series in coins}, due, now)
    longer = recipe_pairs.take(pair, rows, rule)
    if longer != pair:
        recipe_pairs.save(home, longer)
    clock = datetime.now(UTC)  # the duration of a trial is measured by the wall clock
    evidence = longer.evidence(clock)
    decisions = []
    if evidence.e >= longer.threshold:
        decisions = [_switch(store, longer, evidence, *versions) for versions in served.values()]
        behind = {decision.series for decision in decisions if not decision.moved}
        recipe_pairs.save(home, recipe_pairs.end(longer, "switched", clock, behind))
        dismiss(store, (other for series, (_, other) in served.items() if other and series in behind))
    elif clock - longer.appointed_at >= gate.MAX_TRIAL:
        recipe_pairs.save(home, recipe_pairs.end(longer, "dropped", clock))
        dismiss(store, (other for _, other in served.values() if other))
    return decisions


def _switch(
    store: Store, pair: Pair, evidence: PairEvidence, before: Champion, winner: Champion | None
) -> Decision:
    """Switch a coin, or keep its champion if its challenger may not replace it."""
    standing_winner = standing(winner) if winner else None
    stop = gate.stays(standing_winner, standing(before), pair.recipes[0])
    ruling = stop or gate.Ruling("switched", "evidence", f"the evidence is in: {evidence}")
    candidate = standing_winner.ref if standing_winner else None
    decision = decided(before.series, ruling, standing(before), candidate, evidence)
    if winner and not stop:
        return promote_version(store, winner, decision)
    keep_decision(store, decision)
    return decision


def on_trial(home: Path, models: Iterable[Champion]) -> list[Champion]:
    """Return the challengers whose recipe is on trial; other models have the alias from an ended trial."""
    models = list(models)
    groups = {(one.series.market, one.series.timeframe) for one in models}
    tried = {
        group: {pair.challenger for pair in recipe_pairs.pairs(home, *group) if pair.state == "open"}
        for group in groups
    }
    return [
        one for one in models if str(standing(one).recipe) in tried[one.series.market, one.series.timeframe]
    ]


def live_differences(
    home: Path, series: list[SeriesId], pair: Pair, until: datetime
) -> dict[datetime, dict[str, tuple[float, bool]]]:
    """Return, per new origin and coin, the difference in CRPS divided by the reference's width, from live forecasts.

    Only forecasts by versions of the pair's recipes count. Where the champion has a forecast and the challenger has
    none (the boolean), the difference is the coin's largest of the `MISSING_MEMORY` before, and at least the champion's
    own loss: to leave out hours in which losses are large must not pay.
    """
    since = pair.watermark or pair.appointed_at
    rows = evidence_rows(home, series, since - gate.MISSING_MEMORY, until)
    found: dict[datetime, dict[str, tuple[float, bool]]] = defaultdict(dict)
    for one in series:
        recipes = recipes_of(home, one)
        mine = rows.filter(pl.col("series") == one.name)
        parts = {}
        for role, wanted in ((CHAMPION, pair.incumbent), (CHALLENGER, pair.challenger)):
            versions = [version for version, recipe in recipes.items() if recipe == wanted]
            own = mine.filter(pl.col("role") == role, pl.col("version").is_in(versions))
            # A version replaced between two runs at the same origin also has a row: the newer row counts.
            parts[role] = own.unique("issued_at", keep="last", maintain_order=True)
        both = (
            parts[CHAMPION]
            .filter(pl.col("ref_width") > 0)
            .join(parts[CHALLENGER], on="issued_at", how="left", suffix="_challenger", maintain_order="left")
            .with_columns(
                difference=(pl.col("crps_challenger") - pl.col("crps")) / pl.col("ref_width"),
                own=pl.col("crps") / pl.col("ref_width"),
            )
            .with_columns(
                worst=pl.col("difference").rolling_max_by("issued_at", gate.MISSING_MEMORY, closed="left")
            )
        )
        for row in both.filter(pl.col("issued_at") > since).iter_rows(named=True):
            known = row["difference"]
            filled = max(row["own"], row["worst"] or 0.0) if known is None else known
            found[row["issued_at"]][one.symbol] = filled, known is None
    return found
