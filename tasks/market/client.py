"""HTTP client of a source: a `requests.Session` with the environment's proxies, certificates and netrc.

Temporary failures are repeated by tenacity, also those of a body, which urllib3's `Retry` does not see. What the
libraries lack is done here: a size cap and a deadline for every body.

A redirect is followed within its host, or from HTTP to the same host's HTTPS. Credentials in a source's URL are sent
only to its host and appear in no message; cookies are not stored.
"""

import json
import logging
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit
from urllib.request import getproxies_environment

from requests import Response, Session
from requests.adapters import HTTPAdapter
from requests.utils import get_netrc_auth
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_combine,
    wait_random_exponential,
)
from urllib3 import Retry
from urllib3.exceptions import HTTPError as TransportError

from tasks.market.layout import Remote
from tasks.storage.urls import public_url, without_credentials

BINANCE = "https://data.binance.vision"
BINANCE_BUCKET = "https://s3-ap-northeast-1.amazonaws.com/data.binance.vision"
BINANCE_REST = {
    "spot": "https://data-api.binance.vision",
    "um": "https://fapi.binance.com",
    "cm": "https://dapi.binance.com",
}
CONNECTIONS = 32
_TEMPORARY = {408, 425, 429, *range(500, 600)} - {501, 505}  # 501 and 505 are permanent
_LOOPBACK = "localhost,127.0.0.0/8,::1"  # this machine: a proxy would connect to itself
_CHUNK = 1 << 18  # bytes per read
_MAX_REDIRECTS = 5  # of a request
_DEFAULT_PORTS = {"http": 80, "https": 443}


class SourceFault(Exception):
    """A request without a usable response; the message is the reason shown to the user."""


class NotFound(SourceFault):
    """The server reports that there is no such file."""


class Rejected(SourceFault):
    """The server rejects the request (400): REST does so for delisted pairs."""


class Refused(SourceFault):
    """The server refuses this client (403, 418, 451): retrying only prolongs a ban."""


class Unreachable(SourceFault):
    """No response after all tries: connection, timeout, 429 or 5xx; `wait`: the seconds that the server requested."""

    wait: float = 0


class BadFile(Exception):
    """A file whose contents must not enter the store; the message is the reason for its quarantine."""

    def __init__(self, reason: str, payload: bytes = b"") -> None:
        super().__init__(reason)
        self.payload = payload


class _Session(Session):
    """A session that leaves redirects to `HttpSource`: it would read a redirect's body whole, whatever its size."""

    def get_redirect_target(self, resp: Response) -> None:
        """Return no target."""


def whole_number(text: str) -> int:
    """Return a non-negative number from a server, -1 if invalid (`str.isdigit` would accept "²", and `int` fail)."""
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text.strip()) else -1


# It would log failures that cpb reports itself, with the raw path.
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

_FAULTS: dict[int, tuple[type[SourceFault], str]] = {
    400: (Rejected, "rejected"),
    403: (Refused, "access forbidden"),
    404: (NotFound, "not there"),
    418: (Refused, "banned for too many requests"),
    451: (Refused, "not available from your location"),
}


@dataclass(frozen=True)
class Limits:
    """A client's limits, in seconds, counts and bytes."""

    connect: float = 3
    read: float = 30
    deadline: float = 180  # of a body, however slowly it arrives
    tries: int = 4
    backoff: float = 0.8  # the first pause is at most this long, each later one at most twice the one before
    longest_wait: float = 180  # a longer Retry-After fails the request
    body: int = 16 << 20  # bytes, if the size is unknown: a page of a thousand keys or candles is 400 KB


@dataclass
class HttpSource:
    """A server with Binance Vision's layout; counts requests."""

    base: str = field(repr=False)  # may contain credentials until they are removed below
    listing: str = ""
    rest: str = ""
    limits: Limits = field(default_factory=Limits)
    name: str = ""  # in messages; default the base URL
    requests: int = 0
    notes: list[str] = field(default_factory=list)
    # Seconds by which the REST server's clock is ahead of the local clock: the exchange's time decides whether a candle
    # has closed. Servers of files and listings, such as a CDN or a mirror, have clocks of their own.
    clock_ahead: float | None = None

    def __post_init__(self) -> None:
        urls = [url.rstrip("/") for url in (self.base, self.listing or self.base, self.rest or self.base)]
        self.base, self.listing, self.rest = shown = [public_url(url).rstrip("/") for url in urls]
        self.name = self.name or self.base
        self._private_urls = dict(zip(shown, urls, strict=True))
        self._session = _Session()
        # zips are compressed already, and sizes and ETags are of the unencoded bytes
        self._session.headers["Accept-Encoding"] = "identity"
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS, pool_block=True))
        no_proxy = {"no_proxy": f"{_LOOPBACK},{getproxies_environment().get('no', '')}"}
        self._settings = {  # of the environment, read once: 0.1 ms a request
            name: self._session.merge_environment_settings(url, no_proxy, stream=True, verify=None, cert=None)
            | {"auth": get_netrc_auth(url)}
            for name, url in self._private_urls.items()
        }
        self._session.trust_env = False
        self._lock = threading.Lock()
        self._retrying = Retrying(
            retry=retry_if_exception(
                lambda fault: isinstance(fault, Unreachable) and fault.wait <= self.limits.longest_wait
            ),
            stop=stop_after_attempt(self.limits.tries),
            wait=wait_combine(wait_random_exponential(self.limits.backoff), _requested_wait),
            reraise=True,
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
        version = headers.get("ETag", "").strip('"') or headers.get("Last-Modified", "")
        return Remote(key, version, whole_number(headers.get("Content-Length", "")))

    def list_page(self, query: dict[str, str]) -> bytes | None:
        """Return a page of the bucket listing, None if the server does not support listings."""
        try:
            return self._ask("GET", self.listing, f"/?{urlencode(query)}")[1]
        except Unreachable:
            raise
        except SourceFault:
            return None

    def klines(self, path: str, query: dict[str, str | int]) -> list[Any]:
        """Return REST candles; raises `SourceFault` if the response is not a list of candles.

        The first answer sets `clock_ahead`.
        """
        headers, body = self._ask("GET", self.rest, f"/{path}?{urlencode(query)}")
        if self.clock_ahead is None:
            try:
                self.clock_ahead = parsedate_to_datetime(headers["Date"]).timestamp() - time.time()
            except (KeyError, ValueError):
                self.clock_ahead = 0.0
        try:
            rows = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise SourceFault("answered with something other than JSON") from error
        if not isinstance(rows, list):
            raise SourceFault("answered with something other than a list of candles")
        return rows

    def close(self) -> None:
        """Close the connections; a later request opens new connections."""
        self._session.close()

    def _ask(
        self, method: str, host: str, target: str, max_bytes: int = 0
    ) -> tuple[Mapping[str, str], bytes]:
        """Return headers and body of a response of status 200; raises other and lasting failures."""
        return self._retrying(self._try, method, host, target, max_bytes or self.limits.body)

    def _try(self, method: str, host: str, target: str, max_bytes: int) -> tuple[Mapping[str, str], bytes]:
        with self._lock:
            self.requests += 1
        url, timeout = f"{self._private_urls[host]}{target}", (self.limits.connect, self.limits.read)
        body, until = bytearray(), time.monotonic() + self.limits.deadline
        try:
            with self._answer(method, url, timeout, host) as response:
                while chunk := response.raw.read1(_CHUNK, decode_content=True):
                    body += chunk
                    if len(body) > max_bytes:
                        raise SourceFault(f"answer larger than the limit of {max_bytes >> 10} KB")
                    # the timeouts apply to each read: a trickle would last for days
                    if time.monotonic() > until:
                        raise TimeoutError(f"timed out: not finished in {self.limits.deadline:g} s")
        except (OSError, TransportError) as error:  # requests' errors are OSErrors
            raise Unreachable(_reason(error)) from error
        status, headers = response.status_code, response.headers
        if status in _TEMPORARY:
            raise self._temporary(status, headers.get("Retry-After", ""))
        if status != 200:
            kind, text = _FAULTS.get(status, (SourceFault, "unexpected answer"))
            raise kind(f"{text} ({status})")
        return headers, bytes(body)

    def _answer(self, method: str, url: str, timeout: tuple[float, float], host: str) -> Response:
        """Return the first answer that is no redirect; the bodies of redirects are not read."""
        for _ in range(_MAX_REDIRECTS + 1):
            response = self._session.request(method, url, timeout=timeout, **self._settings[host])
            if not response.is_redirect:
                return response
            response.close()
            url = redirect_target(url, response.headers["Location"])
        raise SourceFault(f"redirected more than {_MAX_REDIRECTS} times")

    def _temporary(self, status: int, retry_after: str) -> Unreachable:
        fault = Unreachable(f"server error {status}")
        try:  # a number or a date
            wait = Retry().parse_retry_after(retry_after)
        except (TransportError, ValueError, TypeError, OverflowError):
            return fault
        if wait > 0:
            fault = Unreachable(f"server error {status}, server asked to wait {wait:.0f} s")
            fault.wait = wait
            self.notes.append(f"server asked to wait {wait:.0f} s")
        return fault


def redirect_target(url: str, location: str) -> str:
    """Return the URL that a redirect leads to, with the user and password of `url`.

    Raises:
        SourceFault: it is on another host or port, or leaves HTTPS.
    """
    try:
        asked, target = urlsplit(url), urlsplit(urljoin(url, location))
        ports = [part.port or _DEFAULT_PORTS.get(part.scheme) for part in (asked, target)]
    except ValueError as error:  # such as a port that is no number
        raise SourceFault("redirected to an address that is no URL") from error
    same = (target.scheme, ports[1]) == (asked.scheme, ports[0])
    upgraded = (asked.scheme, target.scheme, *ports) == ("http", "https", 80, 443)
    if target.hostname != asked.hostname or not (same or upgraded):
        moved = public_url(location)[:200]
        raise SourceFault(
            f"redirected to {moved}, which is not followed; name it as the source if you trust it"
        )
    user, at, _ = asked.netloc.rpartition("@")
    host = target.netloc.rpartition("@")[2]
    return target._replace(netloc=f"{user}{at}{host}").geturl()


def _requested_wait(retry_state: RetryCallState) -> float:
    assert retry_state.outcome is not None
    return getattr(retry_state.outcome.exception(), "wait", 0.0)


def _reason(error: BaseException) -> str:
    """Return the kind of an error, and the innermost cause: requests and urllib3 wrap it several times."""
    cause = error
    while inner := cause.__cause__ or cause.__context__:
        cause = inner
    return without_credentials(f"{type(error).__name__}: {cause}")
