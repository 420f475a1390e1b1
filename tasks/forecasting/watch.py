"""The drift watch: does each champion still perform as on its test span? Pure rules, and one record per market.

`HOME/ledger/watch.json` holds the state of every series: that of `tasks.judging.drift` after the forecasts processed so
far. A forecast is processed once, in order of origin, when all its steps are scored; an hourly check reads only the
newest month of each series, whatever the age of the ledger.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import polars as pl
from pydantic import Field

from schemas.handover import Alarm, Record
from schemas.identity import SeriesId, tree_of
from schemas.reference import BANDS, Promise, Reference
from tasks.judging.drift import ALARM, NOTICEABLE, RECOVERED, Capital, Outcome, limits
from tasks.storage.locks import locked
from tasks.storage.records import find_record, write_record

FILE_NAME = "watch.json"

MAX_STABILITY = 1.0
"""Population stability index of a column, 30 days against the training span, above which the input is unusual. The
common limit of 0.25 assumes independent rows: for the range columns, 1 in 10 real months of 30 days exceeds 0.4 and
1 in 100 exceeds 0.9 (`research/drift.py` of commit a6dc485d)."""
MAX_STABILITY_OF = {"log_sigma": 6.0}
"""The volatility level drifts over years: the median PSI is 1.4, and 1 real month in 100 exceeds 5.6."""

RECENT_DAYS = 14
"""Half-life, in days, of the recent figures compared with the promise in a reason."""

State = Literal["fine", "watch", "drifted"]


class Recent(Record):
    """Exponentially weighted sums over forecasts: misses at step 1, the reference's too, and CRPS, with the promise."""

    n: float = 0.0
    missed: dict[int, float] = Field(default_factory=dict)
    ref_missed: dict[int, float] = Field(default_factory=dict)
    promised: dict[int, float] = Field(default_factory=dict)
    crps: float = 0.0
    promised_crps: float = 0.0


class SeriesWatch(Record):
    """The watch's state of one series.

    `recipe`: that of the watched models; `model_version`: the newest champion's; `promises`: of this version and the
    previous version, whose last forecasts are not scored yet. `taken_to`: origin of the newest forecast processed.
    `bands`, `excess` and `crps` [horizon]: the capital of the bets. `since`: when the state became `drifted`.
    `stability`: PSI by column, on the UTC day `stability_day`.
    """

    series: SeriesId
    recipe: str
    model_version: str
    promises: dict[str, Promise | None]
    bands: float = 0.0
    excess: float = 0.0
    crps: tuple[float, ...]
    taken: int = 0
    taken_to: datetime | None = None
    recent: Recent = Recent()
    state: State = "fine"
    reason: str = ""
    since: datetime | None = None
    stability: dict[str, float] = Field(default_factory=dict)
    stability_day: str = ""


class Watch(Record):
    """The states of all series of one market."""

    version: ClassVar[int] = 2

    series: dict[str, SeriesWatch] = Field(default_factory=dict)


def follow(
    known: SeriesWatch | None, series: SeriesId, version: str, recipe: str, reference: Reference
) -> SeriesWatch:
    """Return the state to continue from under the current champion.

    A refresh (same recipe) continues: with a new version every night, evidence that restarted with each version would
    never accumulate. Each forecast is compared with the promise of its own version. Another recipe restarts.

    Args:
        version, recipe, reference: the champion's; `recipe` is unchanged by a refresh.
    """
    promises = {version: reference.promised}
    if known is None or known.recipe != recipe or len(known.crps) != reference.horizon:
        crps = (0.0,) * reference.horizon
        return SeriesWatch(series=series, recipe=recipe, model_version=version, promises=promises, crps=crps)
    if known.model_version == version:
        return known
    promises = {known.model_version: known.promises.get(known.model_version), **promises}
    return known.model_copy(update={"model_version": version, "promises": promises})


def take(known: SeriesWatch, rows: pl.DataFrame) -> SeriesWatch:
    """Return the state after processing the new forecasts in `rows` (`evidence_rows` of this series' champions).

    Forecasts of versions without a promise entry are skipped, and so are forecasts completed only after a later
    forecast was processed.
    """
    new = rows.filter(pl.col("version").is_in(list(known.promises))).sort("issued_at")
    if known.taken_to is not None:
        new = new.filter(pl.col("issued_at") > known.taken_to)
    new = new.unique("issued_at", keep="last", maintain_order=True)
    if new.is_empty():
        return known
    capital = _capital(known)
    recent, seconds = known.recent, known.series.seconds
    fade = 0.5 ** (seconds / (RECENT_DAYS * 86_400))
    for row in new.iter_rows(named=True):
        promise = known.promises[row["version"]]
        # Without a promise: nominal coverage and the reference's CRPS.
        coverage, ratio = (promise.coverage_step_1, promise.crps_ratio) if promise else ({}, 1.0)
        missed, ref_missed = (
            {band: not row[f"{whose}covered_{band}_step_1"] for band in BANDS} for whose in ("", "ref_")
        )
        outcome = Outcome(missed, ref_missed, row["crps"], row["ref_crps"], row["ref_width"])
        limit = limits(coverage, ratio, promise.reference_coverage_step_1 if promise else None)
        capital.take(outcome, limit, seconds)
        recent = Recent(
            n=fade * recent.n + 1,
            missed={b: fade * recent.missed.get(b, 0) + missed[b] for b in BANDS},
            ref_missed={b: fade * recent.ref_missed.get(b, 0) + ref_missed[b] for b in BANDS},
            promised={b: fade * recent.promised.get(b, 0) + 1 - coverage.get(b, b / 100) for b in BANDS},
            crps=fade * recent.crps + row["crps"],
            promised_crps=fade * recent.promised_crps + ratio * row["ref_crps"],
        )
    return known.model_copy(
        update={
            "bands": float(capital.bands),
            "excess": float(capital.excess),
            "crps": tuple(capital.crps.tolist()),
            "taken": known.taken + len(new),
            "taken_to": new["issued_at"][-1],
            "recent": recent,
        }
    )


def judge(known: SeriesWatch, now: datetime, late: str = "") -> SeriesWatch:
    """Return the state with its verdict: `fine`, `watch` or `drifted`, and the reason in one sentence.

    Only evidence from forecasts sets `drifted`, until the evidence falls below `RECOVERED`.

    Args:
        late: a sentence about data that is too old, else "".
    """
    evidence = evidence_of(known)
    total = sum(evidence.values())
    drifted = total >= ALARM or (known.state == "drifted" and total >= RECOVERED)
    highest = {name: MAX_STABILITY_OF.get(name, MAX_STABILITY) for name in known.stability}
    unstable = {name: value for name, value in known.stability.items() if value > highest[name]}
    reasons = []
    if drifted or total >= NOTICEABLE:
        reasons.append(_worse(known, evidence))
    if unstable:
        name = max(unstable, key=lambda key: unstable[key])
        more = f" and {len(unstable) - 1} more" if len(unstable) > 1 else ""
        reasons.append(f"the input {name}{more} is unlike the training span (PSI {unstable[name]:.1f})")
    reasons += [late] if late else []
    state: State = "drifted" if drifted else "watch" if reasons else "fine"
    since = (known.since or now) if drifted else None
    return known.model_copy(update={"state": state, "reason": "; ".join(reasons), "since": since})


def _capital(known: SeriesWatch) -> Capital:
    capital = Capital(len(known.crps))
    capital.bands, capital.excess = np.array(known.bands), np.array(known.excess)
    capital.crps = np.array(known.crps)
    return capital


def evidence_of(known: SeriesWatch) -> dict[str, float]:
    """Return the evidence by claim: `bands` (misses at step 1) and `crps`."""
    return {name: float(value) for name, value in _capital(known).evidence.items()}


def alarm_of(known: SeriesWatch) -> Alarm:
    """Return the state as the record passed between steps."""
    return Alarm(
        series=known.series,
        state=known.state,
        reason=known.reason,
        model_version=known.model_version,
        evidence=evidence_of(known),
        threshold=ALARM,
        forecasts=known.taken,
        since=known.since,
        stability=known.stability,
    )


def read_watch(home: Path, market: str) -> Watch:
    """Return the record of a market; empty if it is missing or damaged; a damaged file is set aside."""
    return find_record(_path(home, market), Watch, of=market) or Watch()


def alarms(home: Path, market: str) -> list[Alarm]:
    """Return the last verdict on each series of a market, in order."""
    return [alarm_of(known) for _, known in sorted(read_watch(home, market).series.items())]


def is_drifted(home: Path, series: SeriesId) -> bool:
    """Whether the champion of a series has drifted, as of the last check."""
    found = read_watch(home, series.market).series.get(series.name)
    return found is not None and found.state == "drifted"


def drifted_first(home: Path, series: Sequence[SeriesId]) -> list[SeriesId]:
    """Return the series with drifted champions first, otherwise in the given order."""
    watches = [read_watch(home, market) for market in {s.market for s in series}]
    drifted = {
        known.series for watch in watches for known in watch.series.values() if known.state == "drifted"
    }
    return sorted(series, key=lambda s: s not in drifted)


def keep(home: Path, market: str, found: Iterable[SeriesWatch]) -> None:
    """Store the states of some series of a market, keeping the others. Atomic, under a lock."""
    path = _path(home, market)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(".watch.lock")):
        known = read_watch(home, market).series
        for new in found:
            before = known.get(new.series.name)
            # otherwise another run has processed more of the same champion's forecasts: keep its state
            if before is None or new.recipe != before.recipe or new.taken >= before.taken:
                known[new.series.name] = new
        write_record(path, Watch(series=dict(sorted(known.items()))), of=market, compact=True)


def _path(home: Path, market: str) -> Path:
    return tree_of(home, "ledger", market) / FILE_NAME


def _worse(known: SeriesWatch, evidence: dict[str, float]) -> str:
    recent = known.recent
    found = []
    if evidence["bands"] > 1:
        shares, other, promised = (
            ", ".join(f"{sums[band] / recent.n:.1%}" for band in BANDS)
            for sums in (recent.missed, recent.ref_missed, recent.promised)
        )
        found.append(
            f"{shares} of the next closes miss the 50, 80 and 90 % bands ({promised} promised; {other} miss the "
            "reference's)"
        )
    if evidence["crps"] > 1:
        found.append(f"the CRPS is {recent.crps / recent.promised_crps - 1:+.1%} off the promise")
    figures = " and ".join(found) or "its evidence has not fallen back yet"
    strength = f"evidence {sum(evidence.values()):.1f}, an alarm from {ALARM:.0f}"
    return f"{known.model_version} does worse than its test span: {figures}; {strength}"
