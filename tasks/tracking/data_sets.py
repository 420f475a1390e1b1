"""The candles of a run as MLflow's interface lists them: a data set per timeframe, not one per coin."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from schemas.handover import JobMember, SeriesRecord
from schemas.universe import coins_label
from tasks.storage.digests import value_digest
from tasks.tracking.records import Dataset
from tasks.tracking.run_names import source_kind


def learned_from(records: Iterable[SeriesRecord]) -> list[Dataset]:
    """Return the candles of some series: `20 coins 1h (real)`, of one coin `BTCUSDT-1h`."""
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
    """Return one digest for all; a single series keeps its own, as its member's run has it."""
    if len(group) == 1 and not span:
        return group[0].digest
    return value_digest([sorted((r.series.name, r.digest) for r in group), span])[:16]


def _place(group: Sequence[SeriesRecord]) -> str:
    return os.path.commonpath([record.path for record in group])
