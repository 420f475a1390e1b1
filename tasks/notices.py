"""Notifications: one message with what a run must tell people, through the services of `CPB_NOTIFY`, and a heartbeat.

The services are apprise URLs (https://appriseit.com/services/), from the variable and from `HOME/notify`, which only
its owner may read. They hold passwords: messages and logs name a service by its scheme alone. An event is told once a
day (UTC); `HOME/notify.json` lists those told. Nothing here fails a run, or delays it by more than `DEADLINE_S`.
"""

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from textwrap import shorten

from schemas.base import Record
from schemas.decision import Decision, decided_sentence
from schemas.errors import CpbError, UsageError, log
from schemas.failure import STALE, WRONG_ALERT, Failure
from schemas.home import home_folder
from schemas.ledger import Alarm
from tasks.storage.files import NOTIFY_FILE, read_private
from tasks.storage.records import find_record, write_record
from tasks.storage.urls import without_credentials

VARIABLE = "CPB_NOTIFY"
HEARTBEAT_VARIABLE = "CPB_HEARTBEAT_URL"
DEADLINE_S = 9.0
"""Time limit for all sending after a run: name resolution and slow responses do not respect a timeout."""
MAX_LINES, MAX_LINE = 20, 400
"""Lines of a message and characters of a line; many services truncate longer messages."""
_MAX_BYTES = 100_000
# A comma is a separator only before another URL: some URLs contain commas, as in ?to=a@x.org,b@x.org
_BETWEEN = re.compile(r"\s+|,+(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+")


Events = dict[str, str]
"""Key of an event, which stays the same while it lasts or repeats -> its sentence."""


def events_of(
    failures: Iterable[Failure], decisions: Iterable[Decision], alarms: Iterable[Alarm], stale: str = ""
) -> Events:
    """Return a sentence for each failed series or model, each switch of a champion, and each drifted champion.

    stale: the sentence of every stale series.
    """
    failed = {
        _key(f): stale if f.code == STALE else f"{f.subject} failed in {f.step}: {f.reason}" for f in failures
    }
    # With the version in the key: a second switch on the same day is news.
    switched = {
        f"switch {d.series.name} {d.version_number}": f"{decided_sentence([d])}; {d.reason}"
        for d in decisions
        if d.outcome in ("switched", "forced", "retired")
    }
    drifted = {f"drift {a.series.name}": str(a) for a in alarms if a.state == "drifted"}
    return failed | switched | drifted


def _key(failure: Failure) -> str:
    # Each wrong line of alerts is news; another reason of the same subject and step may be one with a new figure in it.
    line = f" {failure.reason}" if failure.code == WRONG_ALERT else ""
    return f"failed {failure.subject} {failure.step}{line}"


def send_test() -> dict[str, str]:
    """Send a test message; return each service's problem, "" if it accepted the message.

    Raises:
        CpbError: the services cannot be read.
        UsageError: there are none.
    """
    urls = services()
    if not urls:
        raise UsageError(
            f"no notifications can be sent: set {VARIABLE} to one or more URLs, as in "
            f"{VARIABLE}=mailto://USER:PASSWORD@HOST, or write them into the file {home_folder() / NOTIFY_FILE} with "
            "mode 600; see docs/operations.md",
            code="notify-unset",
            field=VARIABLE,
        )
    return _run_within_deadline(
        _senders(urls, "test", ["a test message; failures, drift and switches of champions come this way"])
    )


def services() -> list[str]:
    """Return the URLs of `CPB_NOTIFY`, then of the file, without duplicates; empty if neither exists.

    Raises:
        CpbError: other users can read the file, or a part of the text is not a URL.
    """
    path, text = home_folder() / NOTIFY_FILE, ""
    try:
        text = read_private(path, _MAX_BYTES, links=True)
    except (FileNotFoundError, NotADirectoryError):
        pass  # a home that is not a folder is reported elsewhere
    except OSError as error:
        raise CpbError(
            f"the file of notification URLs {path} is not read: {error.strerror or 'it cannot be opened'}; make it a "
            f"plain file, owned by you, that others cannot read, with `chmod 600 {path}`",
            code="notify-file",
            field=str(path),
        ) from error
    # Comments are for lines of the file; in the variable `#` may be part of a URL.
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    urls: dict[str, None] = {}
    for where, given in ((VARIABLE, os.environ.get(VARIABLE, "")), (str(path), "\n".join(lines))):
        for number, url in enumerate(filter(None, (part.strip(",") for part in _BETWEEN.split(given))), 1):
            if not _URL.fullmatch(url):  # not shown: it may be part of a password
                raise CpbError(
                    f"entry {number} in {where} is not an apprise URL; write SERVICE://…, separated by spaces or "
                    "lines, as https://appriseit.com/services/ lists them",
                    code="notify-url",
                    field=where,
                )
            urls[url] = None
    return list(urls)


def sends_messages() -> bool:
    """Whether there are services; one that cannot be read counts, as `tell_end` says why."""
    try:
        return bool(services())
    except CpbError:
        return True


class SentEvents(Record):
    """The keys of the events told on a day (UTC, `2025-06-06`)."""

    day: str
    events: tuple[str, ...] = ()


def _sent_today() -> SentEvents:
    sent, day = find_record(home_folder() / "notify.json", SentEvents), f"{datetime.now(UTC):%Y-%m-%d}"
    return sent if sent and sent.day == day else SentEvents(day=day)


def tell_end(flow: str, events: Events, *, complete: bool) -> None:
    """Tell people what a flow's run that has ended has to tell, and call the heartbeat if it was complete."""
    try:
        urls = services()
        sent = _sent_today() if urls else SentEvents(day="")
        # An hourly run repeats what failed: people read it once a day.
        new = {key: text for key, text in events.items() if key not in sent.events}
        sentences = [*dict.fromkeys(new.values())]  # several events may share one
        shown = [key for key, text in new.items() if text in sentences[:MAX_LINES]]  # others: by the next run
        calls = _senders(urls, flow, sentences) if new else {}
        heartbeat = os.environ.get(HEARTBEAT_VARIABLE, "").strip().replace("{flow}", flow)
        heartbeat_call = (
            {HEARTBEAT_VARIABLE: partial(_call_heartbeat, heartbeat)} if heartbeat and complete else {}
        )
        problems = _run_within_deadline(calls | heartbeat_call)
        for name in filter(problems.get, problems):
            log.warning("no message through %s: %s", name, problems[name])
        if not all(problems[name] for name in calls):  # else the next run tries again
            write_record(
                home_folder() / "notify.json", SentEvents(day=sent.day, events=(*sent.events, *shown))
            )
    except Exception as problem:  # noqa: BLE001 - a run must not fail because of its notifications
        log.warning("no notification of the end of %s was sent: %s", flow, problem)


def _senders(urls: Sequence[str], flow: str, sentences: Sequence[str]) -> dict[str, Callable[[], str]]:
    """Return a sending function per service, by its scheme and number."""
    # Credentials are removed first: they are not recognised in a truncated URL.
    lines = [f"- {shorten(without_credentials(text), MAX_LINE, placeholder=' …')}" for text in sentences]
    more = [f"- and {len(lines) - MAX_LINES} more; see the run's log"] if len(lines) > MAX_LINES else []
    title, body = f"cpb on {socket.gethostname()}: {flow}", "\n".join(lines[:MAX_LINES] + more)
    return {
        f"{url.partition('://')[0].lower()} (service {number})": partial(_send, url, title, body)
        for number, url in enumerate(urls, 1)
    }


def _send(url: str, title: str, body: str) -> str:
    import apprise

    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # its messages may contain a part of a URL
    sender = apprise.Apprise(asset=apprise.AppriseAsset(app_id="cpb", app_desc="cpb"))
    if not sender.add(url):
        return "apprise does not know such a URL; see https://appriseit.com/services/"
    accepted = sender.notify(title=title, body=body, body_format=apprise.NotifyFormat.TEXT)
    return "" if accepted else "it was not reached, or refused the message"


def _call_heartbeat(url: str) -> str:
    import requests

    with requests.get(url, timeout=(5, 5), allow_redirects=False, stream=True) as response:
        return "" if response.status_code // 100 == 2 else f"it answered {response.status_code}"


def _run_within_deadline(calls: dict[str, Callable[[], str]]) -> dict[str, str]:
    """Run all calls concurrently, each in a daemon thread, and return each call's problem, "" if none."""
    outcomes: dict[str, str] = {}

    def run(name: str, call: Callable[[], str]) -> None:
        try:
            outcomes[name] = call()
        except Exception as error:  # noqa: BLE001 - a library's error must not fail the run
            outcomes[name] = f"it cannot be reached ({type(error).__name__})"  # the text may contain the URL

    # Daemons: a service that never answers keeps no process from ending.
    threads = [threading.Thread(target=run, args=item, daemon=True) for item in calls.items()]
    for thread in threads:
        thread.start()
    end = time.monotonic() + DEADLINE_S
    # One deadline for all, not one each.
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return {name: outcomes.get(name, f"no answer within {DEADLINE_S:.0f} s") for name in calls}
