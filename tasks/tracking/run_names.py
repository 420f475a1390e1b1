"""Descriptive run names, and the tags by which MLflow's filters find runs.

A flow is `train-all · 20 coins · 15m 1h · default · 2025-06-06`, a fleet `har · 20 coins · 1h · default · 2025-06-06`.
Members are called `ARCH/SYMBOL/IV`. A run's candles are listed as one data set per timeframe, not per coin.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from schemas.handover import JobMember, SeriesRecord
from schemas.identity import SIM
from schemas.run import RunSpec
from schemas.universe import coins_label
from tasks.storage.digests import value_digest
from tasks.tracking.records import Dataset
from tasks.tracking.tags import CANDLES_UNTIL, COINS, REAL, SEED, SIMULATED, SOURCE_KIND, TIMEFRAMES

SEPARATOR = " · "


def run_name(what: str, spec: RunSpec, records: Sequence[SeriesRecord]) -> str:
    """Return the name of a flow's run (`what`: its command) or a fleet's (its architecture) on these series."""
    coins = coins_label(record.series.symbol for record in records)
    return SEPARATOR.join((what, coins, _timeframes(records), spec.preset, _data_end(spec, records)))


def _data_end(spec: RunSpec, records: Iterable[SeriesRecord]) -> str:
    """Return the day (UTC) before which the data ends: `--as-of`, with its time unless midnight, else the day of the
    newest candle.
    """
    as_of = spec.scope.as_of
    if as_of is None:
        return f"{datetime.fromtimestamp(max(r.last_us for r in records) / 1e6, UTC):%Y-%m-%d}"
    return instant_label(as_of)


def instant_label(instant: datetime) -> str:
    """Return the day of an instant, with its time unless that is midnight."""
    return f"{instant:%Y-%m-%d}" if instant.time() == instant.time().min else f"{instant:%Y-%m-%dT%H:%M}"


def source_kind(market: str) -> str:
    """Return whether a market's candles are `real` or `simulated`."""
    return SIMULATED if market == SIM else REAL


def scope_tags(spec: RunSpec, records: Sequence[SeriesRecord]) -> dict[str, str]:
    """Return the tags of a flow's or a fleet's run on these series."""
    return {
        COINS: coins_label(record.series.symbol for record in records),
        TIMEFRAMES: _timeframes(records),
        CANDLES_UNTIL: _data_end(spec, records),
        **source_tags(spec),
    }


def source_tags(spec: RunSpec) -> dict[str, str]:
    """Return the tags that members also have, in addition to their series' tags."""
    return {SOURCE_KIND: source_kind(spec.market), SEED: str(spec.seed)}


def _timeframes(records: Iterable[SeriesRecord]) -> str:
    found = {record.series.timeframe: record.series.seconds for record in records}
    return " ".join(sorted(found, key=found.__getitem__))


def learned_from(records: Iterable[SeriesRecord]) -> list[Dataset]:
    """Return data sets of some series' candles, named `20 coins 1h (real)`, or `BTCUSDT-1h` for a single coin."""
    return [
        Dataset(_name(group), _digest(group), _place(group), sum(r.rows for r in group))
        for group in _by_timeframe(records)
    ]


def judged_on(members: Iterable[JobMember]) -> list[Dataset]:
    """Return the test spans of a fleet's members: `20 coins 1h (real), 2025-02-06 to 2025-06-05`."""
    members = list(members)
    spans = {m.bounds.timeframe: m.bounds.test for m in members}
    found = []
    for group in _by_timeframe(m.features for m in members):
        series = group[0].series
        first, end = spans[series.timeframe]
        last = end - timedelta(seconds=series.seconds)
        rows = len(group) * int((end - first).total_seconds()) // series.seconds
        name = f"{_name(group)}, {first:%Y-%m-%d} to {last:%Y-%m-%d}"
        digest = _digest(group, first.isoformat(), end.isoformat())
        found.append(Dataset(name, digest, _place(group), rows, context="test"))
    return found


def _by_timeframe(records: Iterable[SeriesRecord]) -> Iterator[list[SeriesRecord]]:
    groups: dict[int, list[SeriesRecord]] = defaultdict(list)
    for record in records:
        groups[record.series.seconds].append(record)
    for seconds in sorted(groups):
        yield groups[seconds]


def _name(group: Sequence[SeriesRecord]) -> str:
    series = group[0].series
    if len(group) == 1:
        return series.name
    coins = coins_label(record.series.symbol for record in group)
    return f"{coins} {series.timeframe} ({source_kind(series.market)})"


def _digest(group: Sequence[SeriesRecord], *span: str) -> str:
    """Return one digest for all; a single series keeps its own digest, as on its member's run."""
    if len(group) == 1 and not span:
        return group[0].digest
    return value_digest([sorted((r.series.name, r.digest) for r in group), span])[:16]


def _place(group: Sequence[SeriesRecord]) -> str:
    return os.path.commonpath([record.path for record in group])
