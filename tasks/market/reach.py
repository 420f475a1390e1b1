"""Whether any of a source's hosts can be reached, known within seconds.

The system's name lookup has no time limit (13 s to fail without a network), and a connection attempt waits its full
timeout for each address of a host. Here all hosts and addresses are tried at the same time, in threads that are not
waited for.
"""

import socket
import time
from collections.abc import Callable, Collection
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

Place = tuple[str, int]
"""Host name and port."""

_TRIES, _PAUSE_S = 2, 0.4  # a refusal may be a restart
_PORTS = {"http": 80, "https": 443}
_SOCKS_PORT = 1080


def place_of(url: str) -> Place | None:
    """Return the host and port of a server's or proxy's URL; None if it has no valid ones."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port or _PORTS.get(parts.scheme, _SOCKS_PORT)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname else None


def no_connection(places: Collection[Place], within_s: float) -> str:
    """Return why none of the places accepts a connection, tried twice within `within_s`; "" once any does."""
    until = time.monotonic() + within_s
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_S)
        try:
            reason = _failure(places, until)
        except Empty:
            return f"no connection within {within_s:g} s"
        if not reason:
            return ""
    return f"no connection: {reason} after {_TRIES} tries"


def _failure(places: Collection[Place], until: float) -> str:
    """Return the last error if every attempt fails, "" once an attempt succeeds; raises `Empty` after `until`."""
    # Each thread reports its error, None if it is connected, or the number of threads that it has started.
    reports: SimpleQueue[OSError | int | None] = SimpleQueue()

    def in_thread(work: Callable[..., None], *args: Any) -> None:
        Thread(target=work, args=args, daemon=True, name="reach").start()

    def connect(address: Place) -> None:
        try:
            socket.create_connection(address, max(0.1, until - time.monotonic())).close()
        except OSError as error:
            reports.put(error)
        else:
            reports.put(None)

    def look_up(host: str, port: int) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reports.put(error if isinstance(error, OSError) else OSError(str(error)))
            return
        addresses = {(str(address[0]), port) for *_, address in found}
        reports.put(len(addresses))
        for address in addresses:
            in_thread(connect, address)

    for place in places:
        in_thread(look_up, *place)
    pending, last = len(places), ""
    while pending:
        report = reports.get(timeout=max(0.0, until - time.monotonic()))
        if report is None:
            return ""
        if isinstance(report, int):
            pending += report
        else:
            last = str(report)
        pending -= 1
    return last
