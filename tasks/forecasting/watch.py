"""What may go wrong while nobody looks: data that is too old, and champions that do worse than on their test spans.

Too old is more than two intervals behind what Binance has published. Candles of the REST API (`--tail`) are available
as soon as they close; a day's file is published up to six hours after the day's end. Simulated data is never too old,
and neither is a coin that has stopped trading.

The drift watch keeps one record per market, `HOME/ledger/watch.json`, with the state of every series: that of
`tasks.judging.drift` after the forecasts processed so far. A forecast is processed once, in order of origin, when all
its steps are scored; an hourly check reads only the newest month of each series, whatever the age of the ledger.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import polars as pl
from pydantic import Field

from cpbmodels.data import INTERVAL_SECONDS
from schemas.base import Record
from schemas.errors import CpbError
from schemas.failure import Failure
from schemas.identity import SIM, SeriesId, tree_of
from schemas.ledger import BANDS, Alarm, JudgedMetrics, Reference, Watching
from schemas.scope import Scope
from tasks.forecasting.chain import ANY_ERROR
from tasks.forecasting.issue import failure, reference_of, served_model
from tasks.forecasting.months import forecast_command, latest
from tasks.forecasting.score import evidence_rows
from tasks.judging.drift import ALARM, NOTICEABLE, RECOVERED, Capital, Outcome, limits
from tasks.market.klines import ingest_command, read_klines, with_source
from tasks.storage.locks import locked
from tasks.storage.packaged import PackagedModel, ServedModel
from tasks.storage.recipes import recipe_of
from tasks.storage.records import find_record, write_record

PUBLISHING_DELAY = timedelta(hours=6)
"""Usual maximum delay from the end of a day to its file."""

INTERVALS_ALLOWED = 2

BETWEEN_RUNS = timedelta(hours=2)
"""Additional tolerated age where runs refresh the data: a run starts every hour and takes some time."""

STOPPED_AFTER = timedelta(days=14)
"""A coin whose newest candle is this far behind the newest of its market has stopped trading: not a failure."""

FILE_NAME = "watch.json"


@dataclass(frozen=True)
class Stale:
    """A series whose newest candle, or newest forecast, is too old; `newest` is that candle's close."""

    series: SeriesId
    what: Literal["candle", "forecast"]
    newest: datetime
    age: timedelta

    def __str__(self) -> str:
        """Return the finding and the remedy as one sentence."""
        if self.what == "forecast":
            return f"{self.finding}; refresh it with `{forecast_command(self.series)}`"
        return (
            f"{self.finding}; refresh it with {with_source(ingest_command(self.series), self.series.market)}"
        )

    @property
    def finding(self) -> str:
        """What is too old, and by how much."""
        hours = self.age.total_seconds() / 3600
        age = f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.0f} days"
        return f"{self.series}: the newest {self.what} is {age} old ({self.newest:%Y-%m-%dT%H:%MZ})"


def newest_close(home: Path, series: SeriesId, now: datetime | None = None) -> tuple[datetime, bool] | None:
    """Return the close of the newest candle (by `now`), and whether it came from the REST API; None without candles."""
    month = newest_month(home, series, now)
    if month is None:
        return None
    since = month - timedelta(days=32)  # the newest month may have no candle closed by `now` yet
    try:
        confirmed, newest = (
            read_klines(home, series, since=since, as_of=now, columns=["open_time"], confirmed=confirmed)
            .select(pl.col("open_time").max())
            .item()
            for confirmed in (True, False)
        )
    except CpbError:  # unreadable candles: reported when read for a forecast, and by `cpb verify`
        return None
    return (newest + timedelta(seconds=series.seconds), newest != confirmed) if newest else None


def find_stale(
    home: Path,
    series: Sequence[SeriesId],
    now: datetime | None = None,
    grace: timedelta = timedelta(0),
    read_close: Callable[..., tuple[datetime, bool] | None] = newest_close,
    read_forecast: Callable[..., pl.DataFrame] = latest,
) -> list[Stale]:
    """Return the series whose newest candle or newest forecast is too old, at most one finding per series.

    A series without candles is skipped: ingestion reports missing candles.

    Args:
        now: UTC; default the current time. With `--as-of` that time: nothing newer is read.
        grace: added to the allowed age if data is refreshed at intervals, as by an hourly forecast.
        read_close, read_forecast: `newest_close` and `latest`, or functions that keep their results.
    """
    until = (now,) if now else ()
    now = now or datetime.now(UTC)
    real = [s for s in series if s.market != SIM and s.timeframe in INTERVAL_SECONDS]
    newest = {s: close for s in real if (close := read_close(home, s, *until))}
    stale: list[Stale] = []
    for s, (closed, live) in newest.items():
        leader = max(close for other, (close, _) in newest.items() if other.market == s.market)
        if leader - closed > STOPPED_AFTER:
            continue
        # Candles from the REST API are there as soon as they close, those of a day's file hours after the day's end.
        day = (now - PUBLISHING_DELAY).replace(hour=0, minute=0, second=0, microsecond=0)
        oldest = (now if live else day) - INTERVALS_ALLOWED * timedelta(seconds=s.seconds) - grace
        if closed < oldest:
            stale.append(Stale(s, "candle", closed, now - closed))
        elif (issued := read_forecast(home, s, *until)["issued_at"].max()) and issued < oldest:  # type: ignore[operator]
            stale.append(Stale(s, "forecast", issued, now - issued))  # type: ignore[arg-type, operator]
    return stale


def newest_month(home: Path, series: SeriesId, until: datetime | None) -> datetime | None:
    """Return the start of the newest stored month of candles (not after `until`): older months need not be read."""
    last = f"{until:%Y-%m}" if until else "9999-12"
    months = [f.stem for f in series.folder(home, "klines").glob("????-??.parquet") if f.stem <= last]
    return datetime.strptime(max(months), "%Y-%m").replace(tzinfo=UTC) if months else None


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
        keep(scope.home, scope.market, watched)
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
        limit = limits(coverage, ratio, promise.reference_coverage_step_1 if promise else None)
        capital.take(outcome, limit, watch.series.seconds)
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
    return find_record(tree_of(home, "ledger", market) / FILE_NAME, Watch, of=market) or Watch()


def alarms(home: Path, market: str) -> list[Alarm]:
    """Return the last verdict on each series of a market, in order."""
    return [alarm_of(watch) for _, watch in sorted(read_watch(home, market).series.items())]


def keep(home: Path, market: str, watched: Iterable[SeriesWatch]) -> None:
    """Store the states of some series of a market, keeping the others. Atomic, under a lock."""
    path = tree_of(home, "ledger", market) / FILE_NAME
    with locked(path.with_name(".watch.lock")):
        stored = read_watch(home, market).series
        for watch in watched:
            before = stored.get(watch.series.name)
            # otherwise another run has processed more of the same champion's forecasts: keep its state
            if before is None or watch.recipe != before.recipe or watch.taken >= before.taken:
                stored[watch.series.name] = watch
        write_record(path, Watch(series=dict(sorted(stored.items()))), of=market, compact=True)
