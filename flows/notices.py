"""Notifications about the outcome of a run: through services, once a day per event, and by a heartbeat."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from schemas.errors import UsageError
from schemas.handover import Alarm, Decision, Failure
from schemas.identity import SeriesId
from schemas.scope import Scope
from tasks.notices import findings
from tasks.notices.event import Event, claim, message, release
from tasks.notices.services import (
    HEARTBEAT_VARIABLE,
    VARIABLE,
    Service,
    beat,
    heartbeat_url,
    senders,
    services,
    within,
)
from tasks.tracking.store import open_store
from tasks.tracking.versions import ALIAS, versions_with_alias

log = logging.getLogger("cpb")


@dataclass
class Outcome:
    """Events of a run so far, for notifications.

    `scope`: the run's scope, with the pairs of a listing once it was read. `serving`: the champions' versions at the
    start of the run.
    """

    scope: Scope
    failures: Sequence[Failure] = ()
    decisions: Sequence[Decision] = ()
    alarms: Sequence[Alarm] = ()
    serving: dict[SeriesId, str] = field(default_factory=dict)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))


@contextmanager
def tell_outcome(flow: str, scope: Scope) -> Iterator[Outcome]:
    """Send notifications about the events in the block, and call the heartbeat if it was complete.

    Does nothing without `CPB_NOTIFY` (or its file) and `CPB_HEARTBEAT_URL`. Never fails a run, and delays it by at most
    10 s. Sends nothing for an interrupted run, which a person has stopped.
    """
    outcome = Outcome(scope, serving=_serving(scope))
    try:
        yield outcome
    except Exception as error:
        _tell_run(flow, outcome, error)
        raise
    _tell_run(flow, outcome, None)


def tell(home: Path, events: Sequence[Event], heartbeat: str = "") -> dict[str, str]:
    """Send a message with the events not yet reported today, and call the heartbeat's URL, if any.

    Returns:
        The error by service; "" if the service accepted the message. Empty if there was nothing to send.

    Raises:
        CpbError: the services cannot be read.
    """
    known = services(home)
    new = claim(home, events) if known and events else []
    calls = senders(known, message(new)) if new else {}
    beats = {HEARTBEAT_VARIABLE: partial(beat, heartbeat)} if heartbeat else {}
    problems = within(calls | beats)
    for name, problem in problems.items():
        if problem:
            log.warning("no message through %s: %s", name, problem)
    if new and all(problems[name] for name in calls):
        release(home, new)
    return {name: problems[name] for name in calls}


def tell_problems(home: Path, problems: Sequence[Event]) -> dict[str, str]:
    """Send notifications about problems of a deployment, each once a day; returns the same as `tell`.

    Raises:
        CpbError: there are no services, or they cannot be read.
    """
    _some_services(home)
    return tell(home, problems)


def try_services(home: Path) -> dict[str, str]:
    """Send a test message to every service; returns the error by service, "" if the service accepted the message.

    Raises:
        CpbError: there are no services, or they cannot be read.
    """
    known = _some_services(home)
    text = "a test message; failures of runs, stale data and changes of champions are told this way"
    return within(senders(known, message([Event("test", "test", text)])))


def _some_services(home: Path) -> list[Service]:
    """Return the notification services; raises `UsageError` if none is configured."""
    if known := services(home):
        return known
    raise UsageError(
        f"nobody can be told: set {VARIABLE} to one or more URLs, as in {VARIABLE}=mailto://USER:PASSWORD@HOST, or "
        "write them into the file `notify` in CPB_HOME with mode 600; see docs/notifications.md",
        code="notify-unset", field=VARIABLE,
    )  # fmt: skip


def _tell_run(flow: str, outcome: Outcome, error: Exception | None) -> None:
    """Send notifications about a run that has ended; errors are only logged."""
    try:
        complete = error is None and not outcome.failures
        home = outcome.scope.home
        events = _events(flow, outcome, error) if services(home) else []
        tell(home, events, heartbeat_url(flow) if complete else "")
    except Exception as problem:  # noqa: BLE001 - a run must not fail because of its notifications
        log.warning("nobody was told how %s ended: %s", flow, problem)


def _serving(scope: Scope) -> dict[SeriesId, str]:
    """Return the version of each series' champion; empty without notification services or a store."""
    try:
        if not services(scope.home):
            return {}
        store = open_store(create=False)
        return {one: str(version.version) for one, version in versions_with_alias(store, ALIAS).items()}
    except Exception as problem:  # noqa: BLE001 - as in `_tell_run`; the run itself reports errors of its store
        log.debug("the champions in use are not known: %s", problem)
        return {}


def _events(flow: str, outcome: Outcome, error: Exception | None) -> list[Event]:
    scope = outcome.scope
    ending = findings.of_error(flow, error) if error else findings.of_failures(flow, outcome.failures)
    return [
        *ending,
        *findings.of_decisions(outcome.decisions, outcome.serving),
        *findings.of_alarms(outcome.alarms),
        *findings.of_stale(scope.home, scope.series, scope.as_of),
        *findings.of_files(scope.root, scope.series, outcome.started),
    ]
