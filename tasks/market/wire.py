"""A transport whose answers are complete in time; what servers write into headers; network errors as plain sentences.

The timeouts of requests and urllib3 bound each read of a socket: a server that sends a byte of its headers every few
seconds would hold a connection for days. Here the socket waits for no longer than the whole answer may still take.
"""

import math
import re
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPResponse
from typing import Any

from requests.adapters import HTTPAdapter
from requests.exceptions import InvalidProxyURL, ProxyError, SSLError
from urllib3 import HTTPConnectionPool, Retry
from urllib3.exceptions import ConnectTimeoutError, InvalidHeader, ProxySchemeUnknown

from tasks.storage.urls import without_credentials


class DeadlineExceeded(TimeoutError):
    """An answer, headers and body, was not finished in time."""


class Transport(HTTPAdapter):
    """Connections, direct or through a proxy, that bound one read and one whole answer, both in seconds.

    `count` is called for every request, redirected ones too.
    """

    def __init__(self, read: float, deadline: float, connections: int, count: Callable[[], None]) -> None:
        self._count, self._answer = count, partial(_answer, read, deadline)
        super().__init__(pool_maxsize=connections, pool_block=True)

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> HTTPConnectionPool:
        """Return the pool that a request takes its connection from."""
        self._count()
        pool = super().get_connection_with_tls_context(*args, **options)
        if pool.ConnectionCls.response_class is not self._answer:  # type: ignore[attr-defined]
            timed = {"response_class": staticmethod(self._answer)}
            pool.ConnectionCls = type("TimedConnection", (pool.ConnectionCls,), timed)
        return pool


def _answer(read: float, deadline: float, sock: socket.socket, *args: Any, **options: Any) -> HTTPResponse:
    """Return an answer, headers and body, that is read before its deadline."""
    answer = HTTPResponse(sock, *args, **options)
    raw: Any = answer.fp.raw  # type: ignore[attr-defined]
    until, readinto = time.monotonic() + deadline, raw.readinto

    def in_time(buffer: Any) -> int | None:
        while (left := until - time.monotonic()) > 0:
            sock.settimeout(min(read, left))
            try:
                return readinto(buffer)
            except TimeoutError:
                if read < left:
                    raise
        raise DeadlineExceeded(f"timed out: not finished in {deadline:g} s")

    raw.readinto = in_time  # what `fp`, a buffered reader, calls
    return answer


def whole_number(text: str) -> int:
    """Return a count that a server wrote, -1 if it is none (`int` would take "²" for a digit and fail)."""
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text.strip()) else -1


def retry_after_seconds(value: str) -> int:
    """Return the seconds of a Retry-After, which may be a date; 0 if it makes no sense."""
    try:
        return math.ceil(Retry().parse_retry_after(value))
    except (InvalidHeader, ValueError, TypeError, OverflowError):
        return 0


_REASONS = {
    "ead timed out": "timed out",
    "content-encoding": "an answer that cannot be decoded",
    "IncompleteRead": "connection cut in the middle of the answer",
    "reset by peer": "connection reset",
    "without response": "connection closed without an answer",
    "BadStatusLine": "an answer that is not HTTP",
    "Connection aborted": "an answer that is not HTTP",
}


def reason_of(error: BaseException | None) -> str:
    """Return the part of a network error that helps: requests and urllib3 wrap the cause several times."""
    causes = list(_causes(error))
    if late := [cause for cause in causes if isinstance(cause, DeadlineExceeded)]:
        return str(late[0])
    last = _text(causes[-1])
    if isinstance(error, ProxyError | InvalidProxyURL | ProxySchemeUnknown):
        return f"the proxy cannot be used ({last}); check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
    if isinstance(error, SSLError):
        certificates = "name your network's certificates in REQUESTS_CA_BUNDLE"
        return f"its certificate cannot be verified ({last}); {certificates}"
    if is_unconnected(error):
        return f"no connection: {last}"
    message = " ".join(map(str, causes))
    known = (reason for sign, reason in _REASONS.items() if sign in message)
    return next(known, "timed out" if message.endswith("timed out") else last)


def is_unconnected(error: BaseException | None) -> bool:
    """Whether no connection came about."""
    return any(isinstance(cause, ConnectTimeoutError) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that led to it, the innermost last."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def _text(error: BaseException) -> str:
    """Return an error's message without the object in front that urllib3 prints."""
    message = re.sub(r"^(<.*?>|\w+\(.*?\)): ", "", str(error)) or type(error).__name__
    return without_credentials(message)
