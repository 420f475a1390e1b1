"""Does the drift watch stay quiet, and does it see bands that became too narrow? Real hours, resampled in blocks.

python -m research.drift --source FOLDER --as-of 2025-06-06 [--json]

A robust HAR per coin is fitted every `SPAN_DAYS` days as `train-all` would have. Its test span, the 120 days before a
block of `BLOCK_DAYS` days, promises coverage and CRPS ratio; the block is forecast at every hour. Blocks of real hours,
each with its own promise, are drawn with replacement and make years: clustering, overlap and the drift of real months
stay. The watch (`tasks.judging.drift`) looks at every hour.

    false alarms    alarms in a year in which nothing was changed, times 40 series
    narrow          from a random hour on all quantiles are drawn to the median, by a factor
    worse           from a random hour on the model's CRPS is larger, by a factor
    stepwise        narrowed by 5 points a week, down to .8
    recovery        days from the end of 30 days at .8 to `fine`

Spans with even numbers tuned the constants of the watch. Those with odd numbers were looked at too, and so were the
months before June 2022 (`--since 2020-11-01 --as-of 2022-06-01`): no span is held out.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cpbmodels.data.series import Series
from research._shared import HORIZON, ingested
from schemas.identity import SeriesId
from schemas.reference import BANDS
from tasks.judging.baselines import Baseline, Rows, ewma_walk, fit_reference, population_stability, realised
from tasks.judging.drift import ALARM, RECOVERED, Capital, Outcome, limits
from tasks.judging.fitted import INPUTS, robust_har
from tasks.judging.scores import BANDS as BAND_LEVELS
from tasks.judging.scores import MEDIAN, Array, pinball
from tasks.signals.feature_files import read_features, write_features

SERIES, HOURS = 40, 8760
SPAN_DAYS, BLOCK_DAYS, TEST_DAYS, VALIDATION_DAYS, EMBARGO_HOURS = 60, 30, 120, 60, 178
MIN_TRAINING = 2500
FACTORS = (1.0, 0.95, 0.9, 0.85, 0.8)
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
Q10, Q90 = BAND_LEVELS[80]


@dataclass(frozen=True)
class Block:
    """Real hours of one coin under one model. `missed` [F, 3, N] of the bands at step 1 and `crps` [F, N], by factor;
    `ref_missed` [3, N]; `promise` [7]: coverage of the bands at step 1, the reference's, and CRPS ratio; `psi`: of each
    column of the model."""

    coin: str
    span: int
    missed: Array
    ref_missed: Array
    crps: Array
    ref_crps: Array
    ref_width: Array
    promise: Array
    psi: dict[str, float]


def blocks_of(source: str, as_of: str, home: Path, since: datetime, coins: str = "all") -> list[Block]:
    scope, names = ingested(home, source, coins, "1h", as_of=as_of)
    found = []
    for name in names:
        series = read_features(home, write_features(home, name, as_of=scope.as_of))
        found += blocks_of_series(series, name, int(since.timestamp() * 1e6))
    return found


def blocks_of_series(series: Series, name: SeriesId, since_us: int) -> list[Block]:
    assert series.times is not None
    found: list[Block] = []
    starts = range(since_us, int(series.times[-1]) - SPAN_DAYS * DAY_US, SPAN_DAYS * DAY_US)
    for span, start in enumerate(starts):
        model = with_spans(series, start)
        train = model.origins("train", 1, HORIZON)
        if len(train) < MIN_TRAINING:
            continue
        both = robust_har(model, train, HORIZON), ewma_walk(model, train, HORIZON)
        reference = fit_reference(model, name, HORIZON, INPUTS)
        for first in range(start, start + SPAN_DAYS * DAY_US, BLOCK_DAYS * DAY_US):
            rows = live(model, first, first + BLOCK_DAYS * DAY_US)
            tested = figures(model, live(model, first - TEST_DAYS * DAY_US, first), *both, factors=(1.0,))
            if len(rows) < BLOCK_DAYS * 12 or len(tested["ref_crps"]) < TEST_DAYS * 12:
                continue
            promise = [
                *(1 - tested["missed"][0].mean(axis=1)),
                *(1 - tested["ref_missed"].mean(axis=1)),
                tested["crps"].mean() / tested["ref_crps"].mean(),
            ]
            columns = dict(zip(INPUTS, model.columns(INPUTS)[rows].T, strict=True))
            psi = population_stability(reference, columns)
            found.append(
                Block(name.symbol, span, **figures(model, rows, *both), promise=np.array(promise), psi=psi)  # type: ignore[arg-type]
            )
    return found


def with_spans(series: Series, start: int) -> Series:
    """The series with the spans of a training whose test span ends at `start` (µs UTC)."""
    test = start - TEST_DAYS * DAY_US
    validation = test - EMBARGO_HOURS * HOUR_US - VALIDATION_DAYS * DAY_US
    instants = {"train": (0, validation - EMBARGO_HOURS * HOUR_US), "test": (test, start)}
    assert series.times is not None
    rows = {k: tuple(map(int, np.searchsorted(series.times, span))) for k, span in instants.items()}
    return replace(series, spans=rows)  # type: ignore[arg-type]


def live(series: Series, first: int, end: int) -> Rows:
    """Rows of the origins in a time span whose targets are there."""
    assert series.times is not None
    rows = np.arange(*np.searchsorted(series.times, (first, end)))
    usable = np.flatnonzero(series.usable(1, HORIZON))
    return rows[np.isin(rows, usable)]


def figures(
    series: Series,
    rows: Rows,
    model: Baseline,
    reference: Baseline,
    factors: Sequence[float] = FACTORS,
) -> dict[str, Array]:
    truth = realised(series, rows, HORIZON)
    quantiles, other = model.quantiles(series, rows), reference.quantiles(series, rows)
    middle = quantiles[..., MEDIAN : MEDIAN + 1]
    missed, crps = [], []
    for factor in factors:
        narrow = middle + factor * (quantiles - middle)
        missed.append(misses(narrow, truth))
        crps.append(2 * pinball(narrow, truth).mean(axis=(1, 2)))
    return {
        "missed": np.array(missed),
        "ref_missed": misses(other, truth),
        "crps": np.array(crps),
        "ref_crps": 2 * pinball(other, truth).mean(axis=(1, 2)),
        "ref_width": (other[..., Q90] - other[..., Q10]).mean(axis=1),
    }


def misses(quantiles: Array, truth: Array) -> Array:
    """Whether the close of step 1 is outside each band [3, N]."""
    first, edges = truth[:, 0], (BAND_LEVELS[band] for band in BANDS)
    return np.array([(first < quantiles[:, 0, low]) | (first > quantiles[:, 0, high]) for low, high in edges])


@dataclass(frozen=True)
class Years:
    """Hours of N series: `missed` [F, 3, T, N], `ref_missed` [3, T, N], `crps` [F, T, N], the rest [T, N] and `promise`
    [7, T, N]."""

    missed: Array
    ref_missed: Array
    crps: Array
    ref_crps: Array
    ref_width: Array
    promise: Array


def resample(blocks: Sequence[Block], series: int, hours: int, seed: int) -> Years:
    """Make series of hours from blocks drawn with replacement, each with its own promise."""
    generator = np.random.default_rng(seed)
    drawn = []
    for _ in range(series):
        parts: list[Block] = []
        while sum(len(block.ref_crps) for block in parts) < hours:
            parts.append(blocks[generator.integers(len(blocks))])
        drawn.append(parts)

    return stacked(drawn, hours)


def stacked(series: Sequence[Sequence[Block]], hours: int | None = None) -> Years:
    """Put the blocks of each series one after another; `hours`: at most, the same for all."""

    def joined(of: Callable[[Block], Array]) -> Array:
        each = [np.concatenate([of(block) for block in parts], axis=-1)[..., :hours] for parts in series]
        return np.stack(each, axis=-1)

    return Years(
        missed=joined(lambda b: b.missed),
        ref_missed=joined(lambda b: b.ref_missed),
        crps=joined(lambda b: b.crps),
        ref_crps=joined(lambda b: b.ref_crps),
        ref_width=joined(lambda b: b.ref_width),
        promise=joined(lambda b: np.repeat(b.promise[:, None], len(b.ref_crps), axis=1)),
    )


def look(years: Years, factor: Array | None = None, worse: Array | None = None, restart: int = 0) -> Array:
    """Return the evidence [T, N] at every hour.

    Args:
        factor: index into `FACTORS` [T, N] of how narrow the bands are.
        worse: what the model's CRPS is multiplied by, [T, N].
        restart: hours after which the watch forgets everything, 0 for never.
    """
    hours, n = years.ref_crps.shape
    capital, every = Capital(HORIZON, (n,)), np.arange(n)
    found = np.empty((hours, n))
    for t in range(hours):
        if restart and t % restart == 0:
            capital = Capital(HORIZON, (n,))
        at = np.zeros(n, dtype=int) if factor is None else factor[t]
        missed = {band: years.missed[at, i, t, every] for i, band in enumerate(BANDS)}
        ref_missed = {band: years.ref_missed[i, t] for i, band in enumerate(BANDS)}
        crps = years.crps[at, t, every] * (1 if worse is None else worse[t])
        promised = years.promise[:, t]
        own, other = ({band: promised[i + j] for i, band in enumerate(BANDS)} for j in (0, len(BANDS)))
        limit = limits(own, promised[-1], other)
        capital.take(Outcome(missed, ref_missed, crps, years.ref_crps[t], years.ref_width[t]), limit, 3600)
        found[t] = capital.total
    return found


def alarms(evidence: Array) -> Array:
    """Count the alarms [N]: rises to `ALARM` from the start or from below `RECOVERED`."""
    count, drifted = np.zeros(evidence.shape[1]), np.zeros(evidence.shape[1], dtype=bool)
    for row in evidence:
        new = ~drifted & (row >= ALARM)
        count += new
        drifted = (drifted | new) & (row >= RECOVERED)
    return count


def delays(evidence: Array, onset: Array) -> Array:
    """Return the days [N] from the onset (hours, [N]) to the alarm, inf if none; NaN where an alarm stood before."""
    hours = np.arange(len(evidence))[:, None]
    high = evidence >= ALARM
    first = np.where((high & (hours >= onset)).any(axis=0), (high & (hours >= onset)).argmax(axis=0), np.inf)
    before = (high & (hours < onset)).any(axis=0)
    return np.where(before, np.nan, (first + 1 - onset) / 24)


def quiet_years(blocks: Sequence[Block], series: int, seed: int) -> dict[str, float]:
    count = alarms(look(resample(blocks, series, HOURS, seed)))
    mean = SERIES * float(count.mean())
    return {
        "false_alarms_a_year": mean,
        "standard_error": SERIES * float(count.std() / np.sqrt(len(count))),
        "years_simulated": float(series),
    }


def changes(blocks: Sequence[Block], series: int, seed: int) -> dict[str, dict[str, float]]:
    """Days until a change is seen, for each kind of change; it begins 30 to 90 days after the start."""
    days = 210
    years = resample(blocks, series, days * 24, seed)
    onset = np.random.default_rng(seed).integers(30 * 24, 90 * 24, series)
    hours = np.arange(days * 24)[:, None]
    changed = hours >= onset
    none = np.zeros(changed.shape, dtype=int)
    found = {}
    for factor in (0.9, 0.8):
        found[f"narrow_{factor}"] = look(years, np.where(changed, FACTORS.index(factor), none))
    weeks = np.clip((hours - onset) // (7 * 24) + 1, 0, len(FACTORS) - 1)
    found["stepwise_to_0.8"] = look(years, np.where(changed, weeks, none))
    for worse in (1.03, 1.05):
        found[f"crps_worse_{worse}"] = look(years, worse=np.where(changed, worse, 1.0))
    found["narrow_0.8_watch_restarted_nightly"] = look(
        years, np.where(changed, FACTORS.index(0.8), none), restart=24
    )
    told = {name: days_to_alarm(delays(evidence, onset)) for name, evidence in found.items()}
    over = onset + 30 * 24
    evidence = look(years, np.where(changed & (hours < over), FACTORS.index(0.8), none))
    return told | {"recovery_after_30_days_of_0.8": days_to_alarm(recoveries(evidence, over))}


def recoveries(evidence: Array, over: Array) -> Array:
    """Return the days [N] from the end of a change to `fine`; NaN where no alarm stood then."""
    hours = np.arange(len(evidence))[:, None]
    fine = (evidence < RECOVERED) & (hours >= over)
    first = np.where(fine.any(axis=0), fine.argmax(axis=0), np.inf)
    reported = ((evidence >= ALARM) & (hours < over)).any(axis=0)
    return np.where(reported, (first - over) / 24, np.nan)


def days_to_alarm(days: Array) -> dict[str, float]:
    known = days[~np.isnan(days)]
    low, middle, high = np.quantile(known, [0.1, 0.5, 0.9], method="inverted_cdf")
    return {
        "median_days": float(middle),
        "p10": float(low),
        "p90": float(high),
        "within_14_days": float((known <= 14).mean()),
        "never": float(np.isinf(known).mean()),
        "n": float(len(known)),
    }


def as_it_was(blocks: Sequence[Block]) -> dict[str, float]:
    """The watch on each coin's hours in the order in which they came."""
    coins: dict[str, list[Block]] = {}
    for block in blocks:
        coins.setdefault(block.coin, []).append(block)
    count, hours = 0.0, 0
    for own in coins.values():
        years = stacked([own])
        count += float(alarms(look(years)).sum())
        hours += years.ref_crps.shape[0]
    return {
        "alarms": count,
        "series_years": hours / HOURS,
        "false_alarms_a_year": SERIES * count / (hours / HOURS),
    }


def stability(blocks: Sequence[Block]) -> dict[str, dict[str, float]]:
    """Quantiles of the population stability index of 30 real days against the training span, by column."""
    return {
        name: {
            "median": float(np.median([b.psi[name] for b in blocks])),
            "p90": float(np.quantile([b.psi[name] for b in blocks], 0.9)),
            "p99": float(np.quantile([b.psi[name] for b in blocks], 0.99)),
        }
        for name in blocks[0].psi
    }


def measure(blocks: Sequence[Block], series: int = 400, seed: int = 1) -> dict[str, Any]:
    halves = {
        "even spans": [b for b in blocks if b.span % 2 == 0],
        "odd spans": [b for b in blocks if b.span % 2],
    }
    found: dict[str, Any] = {
        name: {"quiet": quiet_years(half, series, seed), "changes": changes(half, series // 2, seed + 1)}
        for name, half in halves.items()
    }
    return found | {"as_it_was": as_it_was(blocks), "stability": stability(blocks), "blocks": len(blocks)}


def show(found: dict[str, Any]) -> None:
    for half in ("even spans", "odd spans"):
        quiet = found[half]["quiet"]
        print(
            f"{half}: {quiet['false_alarms_a_year']:.2f} +- {quiet['standard_error']:.2f} false alarms a year over "
            f"{SERIES} series ({quiet['years_simulated']:.0f} years of a series)"
        )
        print(f"{'days until seen':>36}  median    p10    p90  in 14 days  never")
        for name, row in found[half]["changes"].items():
            print(
                f"{name:>36}  {row['median_days']:6.1f} {row['p10']:6.1f} {row['p90']:6.1f}"
                f"  {row['within_14_days']:10.0%}  {row['never']:5.0%}"
            )
    past = found["as_it_was"]
    print(
        f"as it was: {past['alarms']:.0f} alarms in {past['series_years']:.1f} years of a series, "
        f"{past['false_alarms_a_year']:.2f} a year over {SERIES} series"
    )
    for name, row in found["stability"].items():
        print(
            f"{name:>24}  PSI of 30 days: median {row['median']:.2f}, p90 {row['p90']:.2f}, p99 {row['p99']:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", required=True)
    parser.add_argument("--as-of", required=True)
    parser.add_argument("--since", default="2022-06-01", help="first day that is forecast")
    parser.add_argument("--coins", default="all")
    parser.add_argument("--series", type=int, default=400, help="years of a series to simulate")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    since = datetime.fromisoformat(asked.since).replace(tzinfo=UTC)
    with TemporaryDirectory() as folder:
        blocks = blocks_of(asked.source, asked.as_of, Path(folder), since, asked.coins)
    found = measure(blocks, asked.series)
    if asked.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
