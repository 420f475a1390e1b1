"""An HTTP transport with a deadline per response; parsing of header values; network errors as plain sentences.

The timeouts of requests and urllib3 apply to each socket read: a server that sends a header byte every few seconds
could hold a connection for days. Here a socket read waits at most for the time left of the whole response.
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
    """A response, headers and body, was not complete in time."""


class Transport(HTTPAdapter):
    """Connections, direct or through a proxy, with time limits for a read and for a complete response, in seconds.

    `count` is called for every request, including redirects.
    """

    def __init__(self, read: float, deadline: float, connections: int, count: Callable[[], None]) -> None:
        self._count, self._answer = count, partial(_answer, read, deadline)
        super().__init__(pool_maxsize=connections, pool_block=True)

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> HTTPConnectionPool:
        """Return the connection pool of a request, and count the request."""
        self._count()
        pool = super().get_connection_with_tls_context(*args, **options)
        if pool.ConnectionCls.response_class is not self._answer:  # type: ignore[attr-defined]
            timed = {"response_class": staticmethod(self._answer)}
            pool.ConnectionCls = type("TimedConnection", (pool.ConnectionCls,), timed)
        return pool


def _answer(read: float, deadline: float, sock: socket.socket, *args: Any, **options: Any) -> HTTPResponse:
    """Return a response whose headers and body must be read before its deadline."""
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

    raw.readinto = in_time  # called by `fp`, a buffered reader
    return answer


def whole_number(text: str) -> int:
    """Return a non-negative number from a server, -1 if invalid (`str.isdigit` would accept "²", and `int` fail)."""
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text.strip()) else -1


def retry_after_seconds(value: str) -> int:
    """Return the seconds of a Retry-After, which may be a date; 0 if invalid."""
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
    """Return the useful part of a network error: requests and urllib3 wrap the cause several times."""
    causes = list(_causes(error))
    if late := [cause for cause in causes if isinstance(cause, DeadlineExceeded)]:
        return str(late[0])
    last = _text(causes[-1])
    if isinstance(error, ProxyError | InvalidProxyURL | ProxySchemeUnknown):
        return f"the proxy cannot be used ({last}); check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
    if isinstance(error, SSLError):
        certificates = "set REQUESTS_CA_BUNDLE to your network's certificates"
        return f"its certificate cannot be verified ({last}); {certificates}"
    if is_unconnected(error):
        return f"no connection: {last}"
    message = " ".join(map(str, causes))
    known = (reason for sign, reason in _REASONS.items() if sign in message)
    return next(known, "timed out" if message.endswith("timed out") else last)


def is_unconnected(error: BaseException | None) -> bool:
    """Whether no connection was established."""
    return any(isinstance(cause, ConnectTimeoutError) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, the innermost last."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def _text(error: BaseException) -> str:
    """Return an error's message without the object prefix of urllib3."""
    message = re.sub(r"^(<.*?>|\w+\(.*?\)): ", "", str(error)) or type(error).__name__
    return without_credentials(message)
