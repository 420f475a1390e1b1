"""Events of a run: its error or failures, stale data, rejected or changed files, new champions."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from schemas.errors import count
from schemas.handover import Alarm, Decision, Failure
from schemas.identity import SeriesId
from tasks.forecasting.staleness import find_stale
from tasks.market.manifest import MANIFEST, FileRecord, Manifest
from tasks.notices.event import Event, Kind


def of_error(flow: str, error: Exception) -> list[Event]:
    """Return the event of a run that ended in an error; each error code is a separate event."""
    code = getattr(error, "code", type(error).__name__)
    return [Event("run failed", f"{flow} {code}", f"{flow}: {str(error) or type(error).__name__}", flow)]


def of_failures(flow: str, failures: Iterable[Failure]) -> list[Event]:
    """Return an event for each failed series or model of a run that kept the other results.

    Stale data is left out: it is in `of_stale`.
    """
    return [
        Event(
            "run partial",
            f"{flow} {f.subject} {f.step}",
            f"{flow}: {f.subject} failed in {f.step}: {f.reason}",
            flow,
        )
        for f in failures
        if f.code != "stale"
    ]


def of_decisions(decisions: Iterable[Decision], serving: Mapping[SeriesId, str]) -> list[Event]:
    """Return an event for each series whose champion changed or was retired; `serving`: the versions before."""
    return [
        Event(
            "champion changed", f"{d.series.name}/{d.version_number} {d.outcome}", f"{d.series}: {_change(d)}"
        )
        for d in decisions
        if d.outcome == "retired" or (d.moved and serving.get(d.series) != d.version_number)
    ]


def of_alarms(alarms: Iterable[Alarm]) -> list[Event]:
    """Return an event for each drifted champion, sent once per drift."""
    return [
        Event("champion drifted", f"{a.series.name} {a.since:%Y-%m-%dT%H:%MZ}", str(a), once=True)
        for a in alarms
        if a.state == "drifted" and a.since
    ]


def of_stale(
    home: Path, series: Sequence[SeriesId], now: datetime | None = None, grace: timedelta = timedelta(0)
) -> list[Event]:
    """Return an event for each series with a candle or forecast that is too old; arguments as in `find_stale`."""
    found = find_stale(home, series, now, grace)
    return [Event("data stale", f"{one.series.name} {one.what}", str(one)) for one in found]


def of_files(root: Path, series: Sequence[SeriesId], since: datetime) -> list[Event]:
    """Return an event for each published file that was quarantined, or found changed, in a market home since `since`.

    Raises:
        CpbError: the manifest cannot be read.
    """
    if not (root / MANIFEST).exists():
        return []
    with Manifest(root / MANIFEST) as manifest:
        records = [(one, record) for one in series for record in manifest.files(one).values()]
    return [
        Event(kind, f"{one.name} {record.period}", f"{one} {record.period}: {reason}")
        for one, record in records
        if record.facts.get("at", 0) >= int(since.timestamp())
        for kind, reason in _of_file(record)
    ]


def _of_file(record: FileRecord) -> list[tuple[Kind, str]]:
    if record.status == "quarantined":
        return [("file quarantined", record.reason)]
    if rows := record.facts.get("changed"):
        reason = f"published again with {count(rows, 'candle')} changed, which are now stored"
        return [("file changed upstream", reason)]
    return []


def _change(decision: Decision) -> str:
    if decision.outcome == "retired":
        return f"version {decision.version_number} is retired: {decision.reason}"
    architecture = f"{decision.candidate.recipe.split('/')[0]}, " if decision.candidate else ""
    return f"{architecture}version {decision.version_number} is the champion now: {decision.reason}"
