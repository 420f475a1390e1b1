"""The drift watch: whether champions do worse than on their test spans, by `tasks.judging.drift`.

It keeps one record per market, `HOME/ledger/watch.json`, with the state of every series after the forecasts processed
so far. A forecast is processed once, in order of origin, when all its steps are scored; an hourly check reads only the
newest month of each series, whatever the age of the ledger.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import polars as pl
from pydantic import Field

from schemas.base import Record
from schemas.failure import Failure
from schemas.identity import SeriesId, tree_of
from schemas.ledger import BANDS, Alarm, JudgedMetrics, Reference, Watching
from schemas.scope import Scope
from tasks.forecasting.chain import ANY_ERROR
from tasks.forecasting.issue import failure, reference_of, served_model
from tasks.forecasting.score import evidence_rows
from tasks.judging.drift import ALARM, NOTICEABLE, RECOVERED, Capital, Outcome, limits
from tasks.storage.locks import locked
from tasks.storage.packaged import PackagedModel, ServedModel
from tasks.storage.recipes import recipe_of
from tasks.storage.records import find_record, write_record

FILE_NAME = "watch.json"


State = Literal["fine", "watch", "drifted"]


class SeriesWatch(Record):
    """The watch's state of one series.

    `recipe`: that of the watched models; `model_version`: the newest champion's; `promises`: of this version and the
    previous version, whose last forecasts are not scored yet; `weights`: sha256 of their weights, which records that
    older versions of cpb wrote lack. `taken_to`: origin of the newest forecast processed. `bands`, `excess` and `crps`
    [horizon]: the capital of the bets. `since`: when the state became `drifted`.
    """

    series: SeriesId
    recipe: str
    model_version: str
    promises: dict[str, JudgedMetrics | None]
    weights: dict[str, str] = Field(default_factory=dict)
    bands: float = 0.0
    excess: float = 0.0
    crps: tuple[float, ...]
    taken: int = 0
    taken_to: datetime | None = None
    state: State = "fine"
    reason: str = ""
    since: datetime | None = None


class Watch(Record):
    """The states of all series of one market."""

    version: ClassVar[int] = 3

    series: dict[str, SeriesWatch] = Field(default_factory=dict)


def check_drift(scope: Scope, champions: Sequence[PackagedModel]) -> Watching:
    """Process new scores since the last check and return an alarm per champion; a failure does not stop the others."""
    now = scope.as_of or datetime.now(UTC)
    stored = read_watch(scope.home, scope.market).series
    watched: list[SeriesWatch] = []
    failures: list[Failure] = []
    for champion in champions:
        series = champion.series
        try:
            model = served_model(champion)
            watch = follow(stored.get(series.name), model, reference_of(model))
            watch = update(watch, evidence_rows(scope.home, series, watch.taken_to, scope.as_of))
            watched.append(judge(watch, now))
        except ANY_ERROR as error:
            failures.append(failure(series, "watch", error))
    if watched:
        save_watch(scope.home, scope.market, watched)
    return Watching(alarms=tuple(map(alarm_of, watched)), failures=tuple(failures))


def follow(watch: SeriesWatch | None, model: ServedModel, reference: Reference) -> SeriesWatch:
    """Return the state to continue from under the current champion.

    A refresh (same recipe) continues: with a new version every night, evidence that restarted with each version would
    never accumulate. Each forecast is compared with the promise of its own version. Another recipe restarts, and so
    does another model under the same name, as after a store was begun anew.

    Args:
        model: the champion; its recipe is unchanged by a refresh.
        reference: that of the champion.
    """
    version, recipe, crps = model.model_version, str(recipe_of(model.config)), (0.0,) * reference.horizon
    promises, weights = {version: reference.promised}, {version: model.weights_sha256}
    # A new beginning where earlier evidence is not about this model: none, another recipe or horizon, or
    # other weights under its name.
    if (
        watch is None
        or watch.recipe != recipe
        or len(watch.crps) != len(crps)
        or watch.weights.get(version, model.weights_sha256) != model.weights_sha256
    ):
        return SeriesWatch(
            series=model.series,
            recipe=recipe,
            model_version=version,
            promises=promises,
            weights=weights,
            crps=crps,
        )
    last = watch.model_version
    # Two versions at most: forecasts of older ones were scored long before.
    promises = watch.promises if last == version else {last: watch.promises[last], **promises}
    weights = {name: sha256 for name, sha256 in watch.weights.items() if name in promises} | weights
    return watch.model_copy(update={"model_version": version, "promises": promises, "weights": weights})


def update(watch: SeriesWatch, rows: pl.DataFrame) -> SeriesWatch:
    """Return the state after processing the new forecasts in `rows` (`evidence_rows` of this series' champions).

    Forecasts of versions without a promise entry are skipped, those of other weights under such a name too, and so are
    forecasts completed only after a later forecast was processed.
    """
    weights = pl.col("model_version").replace_strict(watch.weights, default=None, return_dtype=pl.String)
    # rows of before do not say which weights made them
    is_another = (pl.col("weights_sha256") != weights).fill_null(value=False)
    new = rows.filter(pl.col("model_version").is_in(list(watch.promises)), ~is_another).sort("issued_at")
    if watch.taken_to is not None:
        new = new.filter(pl.col("issued_at") > watch.taken_to)
    # One bet a candle: a repeated forecast would count the same close twice.
    new = new.unique("issued_at", keep="last", maintain_order=True)
    if new.is_empty():
        return watch
    capital = _capital(watch)
    for row in new.iter_rows(named=True):
        promise = watch.promises[row["model_version"]]
        # Without a promise: nominal coverage and the reference's CRPS.
        coverage, ratio = (promise.coverage_step_1, promise.crps_ratio) if promise else ({}, 1.0)
        missed, ref_missed = (
            {band: not row[f"{whose}covered_{band}_step_1"] for band in BANDS} for whose in ("", "ref_")
        )
        outcome = Outcome(missed, ref_missed, row["crps"], row["ref_crps"], row["ref_width"])
        # What the test span promised, each version its own: a refresh may be narrower than the one before.
        limit = limits(coverage, ratio, promise.reference_coverage_step_1 if promise else None)
        capital.update(outcome, limit, watch.series.seconds)
    return watch.model_copy(
        update={
            "bands": float(capital.bands),
            "excess": float(capital.excess),
            "crps": tuple(capital.crps.tolist()),
            "taken": watch.taken + len(new),
            "taken_to": new["issued_at"][-1],
        }
    )


def judge(watch: SeriesWatch, now: datetime) -> SeriesWatch:
    """Return the state with its verdict: `fine`, `watch` or `drifted`, and the reason in one sentence.

    A champion has drifted from `ALARM` on until the evidence falls below `RECOVERED`.
    """
    evidence = evidence_of(watch)
    total = sum(evidence.values())
    # Two thresholds: evidence that wavers around one would raise an alarm every other hour.
    drifted = total >= ALARM or (watch.state == "drifted" and total >= RECOVERED)
    reason = ""
    if drifted or total >= NOTICEABLE:
        claims = {"bands": "closes miss the bands more often", "crps": "the CRPS is larger"}
        wrong = " and ".join(text for claim, text in claims.items() if evidence[claim] > 1)
        reason = (
            f"{watch.model_version} does worse than its test span: {wrong or 'evidence has not fallen back yet'}; "
            f"evidence {total:.1f}, an alarm from {ALARM:.0f}"
        )
    state: State = "drifted" if drifted else "watch" if reason else "fine"
    # The first time of this alarm stays, however often it is checked.
    since = (watch.since or now) if drifted else None
    return watch.model_copy(update={"state": state, "reason": reason, "since": since})


def _capital(watch: SeriesWatch) -> Capital:
    capital = Capital(len(watch.crps))
    capital.bands, capital.excess, capital.crps = map(np.array, (watch.bands, watch.excess, watch.crps))
    return capital


def evidence_of(watch: SeriesWatch) -> dict[str, float]:
    """Return the evidence by claim: `bands` (misses at step 1) and `crps`."""
    return {name: float(value) for name, value in _capital(watch).evidence.items()}


def alarm_of(watch: SeriesWatch) -> Alarm:
    """Return the state as the record passed between steps."""
    fields = watch.model_dump(include={"state", "reason", "model_version", "since"})
    return Alarm(
        series=watch.series, evidence=evidence_of(watch), threshold=ALARM, forecasts=watch.taken, **fields
    )


def read_watch(home: Path, market: str) -> Watch:
    """Return the record of a market; empty if it is missing or damaged."""
    return find_record(tree_of(home, "ledger", market) / FILE_NAME, Watch) or Watch()


def alarms(home: Path, market: str) -> list[Alarm]:
    """Return the last verdict on each series of a market, in order."""
    return [alarm_of(watch) for _, watch in sorted(read_watch(home, market).series.items())]


def save_watch(home: Path, market: str, watched: Iterable[SeriesWatch]) -> None:
    """Store the states of some series of a market, keeping the others. Atomic, under a lock."""
    path = tree_of(home, "ledger", market) / FILE_NAME
    with locked(path.with_name(".watch.lock")):
        stored = read_watch(home, market).series
        for watch in watched:
            before = stored.get(watch.series.name)
            # otherwise another run has processed more of the same champion's forecasts: keep its state
            if before is None or watch.recipe != before.recipe or watch.taken >= before.taken:
                stored[watch.series.name] = watch
        write_record(path, Watch(series=dict(sorted(stored.items()))), compact=True)
