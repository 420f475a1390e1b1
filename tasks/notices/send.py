"""Sending: a message to every service at once, and the heartbeat. All of it ends within `DEADLINE_S`.

Each service has a thread of its own that nobody waits for longer: neither a name lookup nor a service that answers
byte by byte keeps to a timeout. The threads are daemons, so the process can end while one still hangs.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import urljoin, urlsplit

from tasks.notices.event import Message
from tasks.notices.services import Service

DEADLINE_S = 9.0
"""Everything that is sent after a run, together; leaves a second to find out what there is to tell."""
_MAX_REDIRECTS = 3


def senders(services: Sequence[Service], message: Message) -> dict[str, Callable[[], str]]:
    """Return, by each service's name, the call that sends it a message, for `within`."""
    return {one.name: partial(_send, one, message) for one in services}


def beat(url: str) -> str:
    """Call the heartbeat URL; return "" or what went wrong. Redirects to another host are not followed."""
    import requests

    place = urlsplit(url)
    if place.scheme not in ("http", "https") or not place.hostname:
        return "it is no http or https URL"
    try:
        with requests.Session() as session:
            for _ in range(_MAX_REDIRECTS + 1):
                with session.get(url, timeout=(5, 5), allow_redirects=False, stream=True) as answer:
                    if not answer.is_redirect:
                        return "" if answer.ok else f"it answered {answer.status_code}"
                    url = urljoin(url, answer.headers["location"])
                after = urlsplit(url)
                if (after.scheme, after.netloc.rpartition("@")[2]) != (
                    place.scheme,
                    place.netloc.rpartition("@")[2],
                ):
                    return "it redirects to another host"
            return "it redirects again and again"
    except (requests.RequestException, ValueError) as error:  # their texts hold the URL
        return f"it cannot be reached ({type(error).__name__})"


def within(calls: dict[str, Callable[[], str]], deadline_s: float = DEADLINE_S) -> dict[str, str]:
    """Call all at the same time and return what each says is wrong, "" if nothing; a slow one counts as wrong."""
    outcomes: dict[str, str] = {}

    def run(name: str, call: Callable[[], str]) -> None:
        try:
            outcomes[name] = call()
        except Exception as error:  # noqa: BLE001 - a library's fault is this service's problem, not the run's
            outcomes[name] = type(error).__name__  # the text may hold the URL

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

    # What apprise logs may hold a URL, or a part of it.
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
