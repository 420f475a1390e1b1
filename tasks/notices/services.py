"""Notification services, given as apprise URLs in `CPB_NOTIFY` and in a file; sending messages, and the heartbeat.

https://appriseit.com/services/ lists the forms: `mailto://…`, `tgram://…`, `slack://…`, `discord://…`, `json://…`. The
URLs contain passwords and are never shown.

A message is sent to all services concurrently, and sending ends within `DEADLINE_S`. Each service has a separate thread
that is abandoned after this time, because name resolution and slow responses do not respect a timeout. The threads are
daemons, so the process can end while a thread still hangs.

Notifications about the outcome of a run are sent once a day per event (`tell_outcome`).
"""

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from schemas.errors import CpbError, UsageError
from schemas.handover import Alarm, Decision, Failure
from schemas.identity import SeriesId
from schemas.scope import Scope
from tasks.notices import findings
from tasks.notices.event import Event, Message, claim, message, release
from tasks.storage.files import read_private
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.versions import ALIAS, versions_with_alias

VARIABLE, FILE_VARIABLE, FILE_NAME = "CPB_NOTIFY", "CPB_NOTIFY_FILE", "notify"
HEARTBEAT_VARIABLE = "CPB_HEARTBEAT_URL"


DEADLINE_S = 9.0
"""Time limit for all sending after a run; leaves a second for collecting the events."""
_MAX_REDIRECTS = 3
_MAX_BYTES = 100_000
# A comma is a separator only before another URL: some URLs contain commas, as in ?to=a@x.org,b@x.org
_BETWEEN = re.compile(r"\s+|,+(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://.+")


@dataclass(frozen=True)
class Service:
    """An apprise URL. Only `name`, its scheme and number, may be shown."""

    name: str
    url: str = field(repr=False)


def services(home: Path) -> list[Service]:
    """Return the services of `CPB_NOTIFY`, then of the file, without duplicates; empty if neither exists.

    Raises:
        CpbError: other users can read the file, or a part of the text is not a URL.
    """
    texts = [(VARIABLE, os.environ.get(VARIABLE, "")), *_file_text(home)]
    urls = dict.fromkeys(url for where, text in texts for url in _urls(where, text))
    return [Service(f"{url.partition('://')[0].lower()} (service {n})", url) for n, url in enumerate(urls, 1)]


def heartbeat_url(flow: str) -> str:
    """Return the URL to call after a complete run, with `{flow}` replaced by the flow's name; "" if unset."""
    return os.environ.get(HEARTBEAT_VARIABLE, "").strip().replace("{flow}", flow)


def _urls(where: str, text: str) -> list[str]:
    found = [part.strip(",") for part in _BETWEEN.split(text)]
    for number, part in enumerate(filter(None, found), 1):
        if not _SCHEME.fullmatch(part):  # not shown: it may be part of a password
            raise CpbError(
                f"entry {number} in {where} is not an apprise URL; write SERVICE://…, separated by spaces or lines, "
                "as https://appriseit.com/services/ lists them",
                code="notify-url", field=where,
            )  # fmt: skip
    return [part for part in found if part]


def _file_text(home: Path) -> list[tuple[str, str]]:
    """Return the file's path and text, without lines that begin with `#`; empty if there is no file."""
    named = os.environ.get(FILE_VARIABLE)
    path = Path(named) if named else home / FILE_NAME
    try:
        text = read_private(path, _MAX_BYTES, links=True)
    except (FileNotFoundError, NotADirectoryError) as error:
        if named:
            raise _refused(path, "it does not exist", f"create it, or unset {FILE_VARIABLE}") from error
        return []  # a home that is not a folder is reported elsewhere
    except OSError as error:
        remedy = f"make it a plain file, owned by you, that others cannot read, with `chmod 600 {path}`"
        raise _refused(path, error.strerror or "it cannot be opened", remedy) from error
    return [(str(path), "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))]


def _refused(path: Path, why: str, remedy: str) -> CpbError:
    return CpbError(
        f"the file of notification URLs {path} is not read: {why}; {remedy}",
        code="notify-file", field=str(path),
    )  # fmt: skip


def senders(services: Sequence[Service], message: Message) -> dict[str, Callable[[], str]]:
    """Return one sending function per service, by name, for `within`."""
    return {one.name: partial(_send, one, message) for one in services}


def beat(url: str) -> str:
    """Call the heartbeat URL; return an error, or "". Redirects to another host are not followed."""
    import requests

    place = urlsplit(url)
    if place.scheme not in ("http", "https") or not place.hostname:
        return "it is not an http or https URL"
    try:
        with requests.Session() as session:
            for _ in range(_MAX_REDIRECTS + 1):
                with session.get(url, timeout=(5, 5), allow_redirects=False, stream=True) as answer:
                    if not answer.is_redirect:
                        return "" if answer.ok else f"it answered {answer.status_code}"
                    before, url = url, urljoin(url, answer.headers["location"])
                if session.should_strip_auth(before, url):
                    return "it redirects to another host"
            return "it redirects too many times"
    except (requests.RequestException, ValueError) as error:  # the error texts contain the URL
        return f"it cannot be reached ({type(error).__name__})"


def within(calls: dict[str, Callable[[], str]], deadline_s: float = DEADLINE_S) -> dict[str, str]:
    """Run all calls concurrently and return each call's error, "" if none; exceeding the deadline is an error."""
    outcomes: dict[str, str] = {}

    def run(name: str, call: Callable[[], str]) -> None:
        try:
            outcomes[name] = call()
        except Exception as error:  # noqa: BLE001 - a library's error must not fail the run
            outcomes[name] = type(error).__name__  # the text may contain the URL

    threads = [
        threading.Thread(target=run, args=item, daemon=True, name="cpb-notify") for item in calls.items()
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + deadline_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return {name: outcomes.get(name, f"no answer within {deadline_s:.0f} s") for name in calls}


def _send(service: Service, message: Message) -> str:
    import apprise

    # Log messages of apprise may contain a URL, or a part of it.
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    sender = apprise.Apprise(asset=apprise.AppriseAsset(app_id="cpb", app_desc="cpb"))
    if not sender.add(service.url):
        return "apprise does not know such a URL; see https://appriseit.com/services/"
    levels = {"info": apprise.NotifyType.INFO, "warning": apprise.NotifyType.WARNING,
              "failure": apprise.NotifyType.FAILURE}  # fmt: skip
    accepted = sender.notify(
        body=message.body,
        title=message.title,
        notify_type=levels[message.level],
        body_format=apprise.NotifyFormat.TEXT,
    )
    return "" if accepted else "it was not reached, or refused the message"


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
    10 s. Sends nothing for an interrupted run, which the user stopped.
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
    text = "a test message; failures of runs, stale data and changes of champions are reported this way"
    return within(senders(known, message([Event("test", "test", text)])))


def _some_services(home: Path) -> list[Service]:
    """Return the notification services; raises `UsageError` if none is configured."""
    if known := services(home):
        return known
    raise UsageError(
        f"no notifications can be sent: set {VARIABLE} to one or more URLs, as in "
        f"{VARIABLE}=mailto://USER:PASSWORD@HOST, or write them into the file `notify` in CPB_HOME with mode 600; see "
        "docs/notifications.md",
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
        log.warning("no notification of the end of %s was sent: %s", flow, problem)


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
