"""HTTP client of a source: a `requests.Session` with the environment's proxies, certificates and netrc.

Temporary failures are retried by tenacity, also those of a body, which urllib3's `Retry` does not see. What the
libraries lack is done here: a pause shared by all threads when a server requests a wait, a size cap for every body, and
deadlines of complete responses.

Redirects are not followed; credentials in a source's URL are sent only to its host and appear in no message; cookies
are not stored.
"""

import json
import logging
import math
import re
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPResponse
from http.cookiejar import DefaultCookiePolicy
from typing import Any, NoReturn
from urllib.parse import quote, urlencode
from urllib.request import getproxies_environment

from requests import HTTPError, Response, Session
from requests.adapters import HTTPAdapter
from requests.utils import get_netrc_auth
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential, wait_random
from urllib3 import HTTPConnectionPool, Retry
from urllib3.exceptions import HTTPError as TransportError
from urllib3.exceptions import InvalidHeader

from tasks.market.layout import Remote
from tasks.storage.files import public_url, without_credentials


class SourceFault(Exception):
    """A request without a usable response; the message is the reason shown to the user."""


class NotFound(SourceFault):
    """The server reports that there is no such file."""


class Rejected(SourceFault):
    """The server rejects the request (400): REST does so for delisted pairs."""


class Refused(SourceFault):
    """The server refuses this client (403, 418, 451): retrying only prolongs a ban."""


class Unreachable(SourceFault):
    """No response after all tries: connection, timeout, 429 or 5xx."""


class BadFile(Exception):
    """A file whose contents must not enter the store; the message is the reason for its quarantine."""

    def __init__(self, reason: str, payload: bytes = b"") -> None:
        super().__init__(reason)
        self.payload = payload


class _Session(Session):
    """A session that follows no redirect: it would read the redirect's body whole, whatever its size."""

    def get_redirect_target(self, resp: Response) -> None:
        """Return no target."""


class _Transport(HTTPAdapter):
    """Connections on which a response, headers and body, must be complete within `deadline` seconds.

    The timeouts of requests and urllib3 apply to each read: a server that sends a byte of a header every few seconds
    would hold a connection for days.
    """

    def __init__(self, deadline: float, connections: int) -> None:
        self._response = partial(_timed_response, deadline)
        super().__init__(pool_maxsize=connections, pool_block=True)

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> HTTPConnectionPool:
        """Return the connection pool of a request."""
        pool = super().get_connection_with_tls_context(*args, **options)
        if pool.ConnectionCls.response_class is not self._response:  # type: ignore[attr-defined]
            timed = {"response_class": staticmethod(self._response)}
            pool.ConnectionCls = type("TimedConnection", (pool.ConnectionCls,), timed)
        return pool


def _timed_response(deadline: float, sock: socket.socket, *args: Any, **options: Any) -> HTTPResponse:
    response = HTTPResponse(sock, *args, **options)
    raw: Any = response.fp.raw  # type: ignore[attr-defined]
    until, readinto = time.monotonic() + deadline, raw.readinto

    def in_time(buffer: Any) -> int | None:
        if time.monotonic() > until:
            raise TimeoutError(f"timed out: not finished in {deadline:g} s")
        return readinto(buffer)

    raw.readinto = in_time  # called by `fp`, a buffered reader
    return response


def whole_number(text: str) -> int:
    """Return a non-negative number from a server, -1 if invalid (`str.isdigit` would accept "²", and `int` fail)."""
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text.strip()) else -1


def _reason(error: BaseException) -> str:
    """Return the kind of an error, and the innermost cause: requests and urllib3 wrap it several times."""
    cause = error
    while inner := cause.__cause__ or cause.__context__:
        cause = inner
    return without_credentials(f"{type(error).__name__}: {cause}")


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
_FIRST_TRIES = 2  # of a host that has not answered yet


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
    name: str = ""  # in messages; default the base URL
    requests: int = 0
    waits: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        urls = [url.rstrip("/") for url in (self.base, self.listing or self.base, self.rest or self.base)]
        self.base, self.listing, self.rest = shown = [public_url(url).rstrip("/") for url in urls]
        self.name = self.name or self.base
        self._private_urls = dict(zip(shown, urls, strict=True))
        self._transport = _Transport(self.limits.deadline, self.connections)
        self._session = _Session()
        self._session.headers["Accept-Encoding"] = (
            "identity"  # zips; sizes and ETags are of the unencoded bytes
        )
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self._session.mount("http://", self._transport)
        self._session.mount("https://", self._transport)
        no_proxy = {"no_proxy": f"{_LOOPBACK},{getproxies_environment().get('no', '')}"}
        self._settings = {  # of the environment, read once: 0.1 ms a request
            name: self._session.merge_environment_settings(url, no_proxy, True, None, None)
            | {"auth": get_netrc_auth(url)}
            for name, url in self._private_urls.items()
        }
        self._session.trust_env = False
        self._lock = threading.Lock()
        self._wait_until = 0.0
        self._failures = 0
        self._answered: set[str] = set()
        self._unreachable: dict[str, str] = {}  # hosts that never answered, and why: they are not asked again
        self.clock_ahead: float | None = None  # seconds; > 0: the server's clock is ahead of the local clock
        self._retrying = Retrying(
            retry=retry_if_exception_type((OSError, TransportError)),  # `requests` errors are OSErrors
            stop=self._was_last_try,
            wait=wait_exponential(multiplier=self.limits.backoff) + wait_random(0, self.limits.backoff / 2),
            retry_error_callback=self._give_up,
        )

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
        if host in self._unreachable:
            raise Unreachable(self._unreachable[host])
        return self._retrying(self._try, method, host, target, max_bytes or self.limits.body)

    def _try(self, method: str, host: str, target: str, max_bytes: int) -> _Answer:
        if (wait := self._wait_until - time.monotonic()) > 0:  # even sleep(0) costs 60 µs
            time.sleep(wait)
        with self._lock:
            self.requests += 1
        url, timeout = f"{self._private_urls[host]}{target}", (self.limits.connect, self.limits.read)
        response = self._session.request(method, url, timeout=timeout, **self._settings[host])
        self._answered.add(host)
        with response:
            if response.is_redirect:
                moved = public_url(response.headers["Location"])[:200]
                raise SourceFault(
                    f"redirected to {moved}, which is not followed; name it as the source if you trust it"
                )
            body = bytearray()
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
        _, host, *_ = state.args
        tries = self.limits.tries if host in self._answered else _FIRST_TRIES
        return state.attempt_number >= (1 if self._failures >= _MAX_FAILURES else tries)

    def _give_up(self, state: RetryCallState) -> NoReturn:
        assert state.outcome
        self._failures += 1
        error = state.outcome.exception()
        assert error
        tries = "1 try" if state.attempt_number == 1 else f"{state.attempt_number} tries"
        reason = f"{_reason(error)} after {tries}"
        _, host, *_ = state.args
        if host not in self._answered:
            self._unreachable[host] = reason
        raise Unreachable(reason) from error

    def _set_clock(self, headers: Mapping[str, str]) -> None:
        """Record the server's clock: the exchange's time decides whether a candle has closed."""
        if self.clock_ahead is None:
            try:
                self.clock_ahead = parsedate_to_datetime(headers["Date"]).timestamp() - time.time()
            except (KeyError, ValueError):
                self.clock_ahead = 0.0

    def _apply_retry_after(self, headers: Mapping[str, str]) -> None:
        """Make every thread wait as long as the server requests."""
        try:  # a number or a date
            seconds = math.ceil(Retry().parse_retry_after(headers.get("Retry-After", "")))
        except (InvalidHeader, ValueError, TypeError, OverflowError):
            return
        if seconds <= 0:
            return
        note = f"server asked to wait {seconds} s"
        if seconds > self.limits.longest_wait:
            raise Unreachable(note)
        with self._lock:
            self._wait_until = max(self._wait_until, time.monotonic() + seconds)
            if note not in self.waits:
                self.waits.append(note)
