"""HTTP client of a source: a `requests.Session` per host, with the environment's proxies and certificates.

tenacity retries temporary failures, all in one place: urllib3's `Retry` does not check bodies, waits in one thread, and
obeys a Retry-After of any length. Implemented here, because no library does it: a pause shared by all threads when a
server requests a wait, a size cap for every body, redirects only to the same host; and deadlines of complete
responses, because the timeouts of requests and urllib3 apply to each socket read: a server that sends a header byte
every few seconds could hold a connection for days.

Credentials in a source's URL are sent only to that host and appear in no message; cookies are not stored.

A Session takes twice the CPU of an adapter with requests prepared once per host, 0.5 ms a request instead of 0.27: 5 to
15 % of an ingestion from loopback, more for smaller files. That did not justify a hundred more lines.
"""

import json
import logging
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPResponse
from http.cookiejar import DefaultCookiePolicy
from typing import Any, NoReturn
from urllib.parse import quote, urlencode, urljoin, urlsplit

from requests import HTTPError, Response, Session, TooManyRedirects
from requests.adapters import HTTPAdapter
from requests.exceptions import InvalidProxyURL, ProxyError, SSLError
from requests.utils import get_auth_from_url, get_netrc_auth, should_bypass_proxies
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential, wait_random
from urllib3 import HTTPConnectionPool, Retry
from urllib3.exceptions import ConnectTimeoutError, InvalidHeader, ProxySchemeUnknown
from urllib3.exceptions import HTTPError as TransportError

from tasks.market.faults import NotFound, Refused, Rejected, SourceFault, Unreachable
from tasks.market.layout import Remote
from tasks.storage.urls import public_url, without_credentials


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
        return _proxy_fault(last)
    if isinstance(error, SSLError):
        certificates = "set REQUESTS_CA_BUNDLE to your network's certificates"
        return f"its certificate cannot be verified ({last}); {certificates}"
    if is_unconnected(error):
        return f"no connection: {last}"
    message = " ".join(map(str, causes))
    known = (reason for sign, reason in _REASONS.items() if sign in message)
    return next(known, "timed out" if message.endswith("timed out") else last)


def _proxy_fault(reason: str) -> str:
    return f"the proxy cannot be used ({reason}); check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"


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


# It would log failures that cpb reports itself, with the raw path.
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

BINANCE = "https://data.binance.vision"
BINANCE_BUCKET = "https://s3-ap-northeast-1.amazonaws.com/data.binance.vision"
BINANCE_REST = {
    "spot": "https://data-api.binance.vision",
    "um": "https://fapi.binance.com",
    "cm": "https://dapi.binance.com",
}
CONNECTIONS = 32
_TEMPORARY = {408, 425, 429, *range(500, 600)} - {501, 505}  # 501 and 505 are permanent
_MAX_REDIRECTS = 5
_FAULTS: dict[int, tuple[type[SourceFault], str]] = {
    400: (Rejected, "rejected"),
    403: (Refused, "access forbidden"),
    404: (NotFound, "not there"),
    418: (Refused, "banned for too many requests"),
    451: (Refused, "not available from your location"),
}
_LOOPBACK = "localhost,127.0.0.0/8,::1"  # this machine: a proxy would connect to itself
_CHUNK = 1 << 18  # bytes per read
_MAX_FAILURES = 24  # consecutive failed requests after which each request is tried only once
_FIRST_TRIES = 2  # of a source that never answered, if it fails at once


@dataclass(frozen=True)
class Limits:
    """A client's limits, in seconds, counts and bytes."""

    connect: float = 3
    read: float = 30
    deadline: float = 180  # of a complete response, headers and body, however slowly it arrives
    tries: int = 4
    backoff: float = 0.4
    longest_wait: float = 180  # a longer Retry-After fails the request
    body: int = 16 << 20  # bytes, if the size is unknown: a page of a thousand keys or candles is 400 KB


_Answer = tuple[Mapping[str, str], bytes]
"""Headers and body."""


@dataclass
class HttpSource:
    """A server with Binance Vision's layout; counts requests, and shares pauses among all threads."""

    base: str = field(repr=False)  # may contain credentials until they are removed below
    listing: str = ""
    rest: str = ""
    connections: int = CONNECTIONS
    limits: Limits = field(default_factory=Limits)
    label: str = ""
    requests: int = 0
    waits: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        urls = [self.base, self.listing or self.base, self.rest or self.base]
        self.base, self.listing, self.rest = shown = [public_url(url).rstrip("/") for url in urls]
        self._transport = Transport(self.limits.read, self.limits.deadline, self.connections, self._count)
        self._sessions = {
            name: _HostSession(url, self._transport) for name, url in zip(shown, urls, strict=True)
        }
        self._lock = threading.Lock()
        self._wait_until = 0.0
        self._failures = 0
        self._unreachable = ""  # why no connection was ever made: later requests do not try
        self.clock_ahead: float | None = None  # seconds; > 0: the server's clock is ahead of the local clock
        self._retrying = Retrying(
            retry=retry_if_exception_type((OSError, TransportError)),  # `requests` errors are OSErrors
            stop=self._was_last_try,
            wait=wait_exponential(multiplier=self.limits.backoff) + wait_random(0, self.limits.backoff / 2),
            retry_error_callback=self._give_up,
        )

    @property
    def name(self) -> str:
        """The name of this source in messages."""
        return self.label or self.base

    def get(self, key: str, max_bytes: int = 0) -> bytes:
        """Return a file's bytes, at most `max_bytes`; raises `NotFound`, `Refused` or `Unreachable`."""
        return self._ask("GET", self.base, f"/{quote(key)}", max_bytes)[1]

    def head(self, key: str) -> Remote | None:
        """Return the server's metadata of a file, None if missing."""
        try:
            headers, _ = self._ask("HEAD", self.base, f"/{quote(key)}")
        except NotFound:
            return None
        size = whole_number(headers.get("Content-Length", ""))
        return Remote(key, headers.get("ETag", "").strip('"'), size, headers.get("Last-Modified", ""))

    def list_page(self, query: dict[str, str]) -> bytes | None:
        """Return a page of the bucket listing, None if the server does not support listings."""
        try:
            return self._ask("GET", self.listing, f"/?{urlencode(query)}")[1]
        except Unreachable:
            raise
        except SourceFault:
            return None

    def klines(self, path: str, query: dict[str, str | int]) -> list[list]:
        """Return REST candles; raises `SourceFault` if the response is not a list of candles."""
        _, body = self._ask("GET", self.rest, f"/{path}?{urlencode(query)}")
        try:
            rows = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise SourceFault("answered with something other than JSON") from error
        if not isinstance(rows, list):
            raise SourceFault("answered with something other than a list of candles")
        return rows

    def close(self) -> None:
        """Close the connections; a later request opens new connections."""
        self._transport.close()

    def _ask(self, method: str, host: str, target: str, max_bytes: int = 0) -> _Answer:
        """Return a response of status 200; retries temporary failures, raises other failures."""
        if self._unreachable:
            raise Unreachable(self._unreachable)
        return self._retrying(self._try, method, host, target, max_bytes or self.limits.body)

    def _try(self, method: str, host: str, target: str, max_bytes: int) -> _Answer:
        if (wait := self._wait_until - time.monotonic()) > 0:  # even sleep(0) costs 60 µs
            time.sleep(wait)
        url, timeout = f"{host}{target}", (self.limits.connect, self.limits.read)
        try:
            response = self._sessions[host].request(method, url, stream=True, timeout=timeout)
        except TooManyRedirects as error:
            raise SourceFault(f"redirected more than {_MAX_REDIRECTS} times") from error
        body = bytearray()
        with response:
            for chunk in response.iter_content(_CHUNK):
                body += chunk
                if len(body) > max_bytes:
                    raise SourceFault(f"answer larger than the limit of {max_bytes >> 10} KB")
        self._failures = 0
        if response.status_code in _TEMPORARY:
            self._apply_retry_after(response.headers)
            raise HTTPError(f"server error {response.status_code}")
        if response.status_code != 200:
            kind, text = _FAULTS.get(response.status_code, (SourceFault, "unexpected answer"))
            raise kind(f"{text} ({response.status_code})")
        self._set_clock(response.headers)
        return response.headers, bytes(body)

    def _was_last_try(self, state: RetryCallState) -> bool:
        assert state.outcome
        first = self.clock_ahead is None and is_unconnected(state.outcome.exception())
        # A lookup without a network takes 13 s, a host 3 s an address: once is enough.
        slow = first and (state.seconds_since_start or 0) > self.limits.connect
        tries = 1 if slow or self._failures >= _MAX_FAILURES else _FIRST_TRIES if first else self.limits.tries
        return state.attempt_number >= min(tries, self.limits.tries)

    def _give_up(self, state: RetryCallState) -> NoReturn:
        assert state.outcome
        self._failures += 1
        error = state.outcome.exception()
        tries = "1 try" if state.attempt_number == 1 else f"{state.attempt_number} tries"
        reason = f"{reason_of(error)} after {tries}"
        if self.clock_ahead is None and is_unconnected(error):
            self._unreachable = reason
        raise Unreachable(reason) from error

    def _count(self) -> None:
        with self._lock:
            self.requests += 1

    def _set_clock(self, headers: Mapping[str, str]) -> None:
        """Record the server's clock: the exchange's time decides whether a candle has closed."""
        if self.clock_ahead is None:
            try:
                self.clock_ahead = parsedate_to_datetime(headers["Date"]).timestamp() - time.time()
            except (KeyError, ValueError):
                self.clock_ahead = 0.0

    def _apply_retry_after(self, headers: Mapping[str, str]) -> None:
        """Make every thread wait as long as the server requests."""
        if not (seconds := retry_after_seconds(headers.get("Retry-After", ""))):
            return
        note = f"server asked to wait {seconds} s"
        if seconds > self.limits.longest_wait:
            raise Unreachable(note)
        with self._lock:
            self._wait_until = max(self._wait_until, time.monotonic() + seconds)
            if note not in self.waits:
                self.waits.append(note)


class _HostSession(Session):
    """A session with one host: proxy, certificates and credentials (of its URL, or netrc) are determined once."""

    def __init__(self, url: str, transport: Transport) -> None:
        super().__init__()
        found = self.merge_environment_settings(url, {}, None, None, None)
        self.verify = found["verify"]
        self.proxies = {} if should_bypass_proxies(url, no_proxy=_LOOPBACK) else found["proxies"]
        login = get_auth_from_url(url)
        self.auth = login if any(login) else get_netrc_auth(url)
        self.trust_env = False
        self.headers["Accept-Encoding"] = "identity"  # zips; sizes and ETags are of the unencoded bytes
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self.max_redirects = _MAX_REDIRECTS
        self.mount("http://", transport)
        self.mount("https://", transport)

    def get_redirect_target(self, resp: Response) -> str | None:
        """Return a response's redirect target; raises `SourceFault` for another host, or from https to http.

        Otherwise `requests` would follow it to any host, after reading the response body, whatever its size.
        """
        try:
            if (target := super().get_redirect_target(resp)) is None:
                return None
            with resp:
                resp.raw.read(_CHUNK)  # a short body leaves the connection open
            url = urljoin(resp.url, target)
            if not self.should_strip_auth(resp.url, url):  # same host, no downgrade from https
                return target
        except ValueError as error:
            raise SourceFault("redirected to an invalid URL") from error
        shown = f"{urlsplit(url).scheme}://{urlsplit(url).hostname or ''}"[:80]
        text = f"redirected to another host, {shown}, which is not followed; name it as the source if you trust it"
        raise SourceFault(text)
