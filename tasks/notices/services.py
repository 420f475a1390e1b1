"""Notification services, given as apprise URLs in `CPB_NOTIFY` and in a file; sending messages, and the heartbeat.

https://appriseit.com/services/ lists the forms: `mailto://…`, `tgram://…`, `slack://…`, `discord://…`, `json://…`. The
URLs contain passwords and are never shown.

A message is sent to all services concurrently, and sending ends within `DEADLINE_S`. Each service has a separate thread
that is abandoned after this time, because name resolution and slow responses do not respect a timeout. The threads are
daemons, so the process can end while a thread still hangs.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from schemas.errors import CpbError
from tasks.notices.event import Message
from tasks.storage.files import read_private

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
        remedy = f"make it a plain file of your own that others cannot read, with `chmod 600 {path}`"
        raise _refused(path, error.strerror or "it cannot be opened", remedy) from error
    return [(str(path), "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))]


def _refused(path: Path, why: str, remedy: str) -> CpbError:
    return CpbError(
        f"the file of notification URLs {path} is not read: {why}; {remedy}",
        code="notify-file", field=str(path),
    )  # fmt: skip


def senders(services: Sequence[Service], message: Message) -> dict[str, Callable[[], str]]:
    """Return a call per service name that sends the message, for `within`."""
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
