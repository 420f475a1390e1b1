"""How bytes get here over HTTP: `requests`, with the proxies and certificates of the environment.

Who retries what. Connections that fail or break before an answer begins: urllib3's `Retry`, inside the adapter. It
ends where the headers do, so the rest is done here: answers cut short, answers that never end (`deadline.py`), servers
that ask to wait (one pause for all threads, refused beyond a limit), caps on the size of every body, errors' too.

Credentials in a source's URL are sent to that host alone and appear in no message: a redirect to another host is
refused, and cookies are neither kept nor sent.
"""

import json
import logging
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, unquote, urlencode, urljoin, urlsplit

from requests import RequestException, Session
from requests.auth import HTTPBasicAuth
from requests.utils import default_user_agent, get_netrc_auth
from urllib3 import Retry
from urllib3.exceptions import HTTPError

from tasks.market.adapter import HostAdapter, Requests, origin_of
from tasks.market.faults import NotFound, Refused, Rejected, SourceFault, Unreachable
from tasks.market.layout import Remote
from tasks.market.wire import is_unconnected, reason_of, retry_after_seconds, whole_number
from tasks.storage.urls import public_url

# Each retry would be a line with the raw path; what ends the retries is reported in a sentence of ours.
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

BINANCE = "https://data.binance.vision"
BINANCE_BUCKET = "https://s3-ap-northeast-1.amazonaws.com/data.binance.vision"
BINANCE_REST = {
    "spot": "https://data-api.binance.vision",
    "um": "https://fapi.binance.com",
    "cm": "https://dapi.binance.com",
}
CONNECTIONS = 32
_ORIGINS = 6  # base, listing and REST, each redirected to https
_TEMPORARY = {408, 425, 429, *range(500, 600)} - {501, 505}  # 501 and 505 never pass
_MOVED = {301, 302, 303, 307, 308}
_MAX_REDIRECTS = 5
_REFUSED = {
    403: "forbidden from here",
    418: "banned for asking too often",
    451: "not available from your location",
}
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": default_user_agent()}
_CHUNK = 1 << 18  # bytes of one read
_MAX_FAILURES = 24  # requests in a row without an answer: from then on each is tried once only


@dataclass(frozen=True)
class Limits:
    """How patient a client is; seconds and counts."""

    connect: float = 5
    read: float = 30
    deadline: float = 180  # of one whole answer, headers and body, however slowly it trickles
    tries: int = 4
    backoff: float = 0.4
    longest_wait: float = 180  # a server that asks for more is given up for this run
    body: int = (
        16 << 20
    )  # size cap in bytes where none is known: a page of a thousand keys or candles is 400 KB


@dataclass(frozen=True)
class _Answer:
    """One whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass
class HttpSource:
    """A server with Binance Vision's layout; counts its requests, shares pauses among all threads."""

    base: str = field(repr=False)  # may hold credentials until they are taken out below
    listing: str = ""
    rest: str = ""
    connections: int = CONNECTIONS
    limits: Limits = field(default_factory=Limits)
    label: str = ""
    requests: int = 0
    waits: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._auth = _auth_in(self.base)
        self.base = public_url(self.base).rstrip("/") if self._auth else self.base.rstrip("/")
        self.listing = self.listing or self.base
        self.rest = self.rest or self.base
        self._lock = threading.Lock()
        self._wait_until = 0.0
        self._answered = False
        self._failures = 0
        self._settings: dict[str, dict[str, Any]] = {}
        self.clock_ahead: float | None = None  # seconds by which the server's clock is ahead of ours
        self._requests = Requests(_HEADERS, self._credentials)
        self._adapter = HostAdapter(
            self.limits.read,
            self.limits.deadline,
            self._count,
            pool_connections=_ORIGINS,
            pool_maxsize=self.connections,
            pool_block=True,
        )
        # until anything has answered, two attempts to connect are enough: the host is unreachable
        self._adapter.max_retries = self._retries(connect=1)

    @property
    def name(self) -> str:
        """What messages call this source."""
        return self.label or public_url(self.base)

    def get(self, key: str, max_bytes: int = 0) -> bytes:
        """Return a file's bytes, at most `max_bytes`; raises `NotFound`, `Refused` or `Unreachable`."""
        return self._ask("GET", f"{self.base}/{quote(key)}", max_bytes).body

    def head(self, key: str) -> Remote | None:
        """Return what the server tells of a file, None if it has none."""
        try:
            headers = self._ask("HEAD", f"{self.base}/{quote(key)}").headers
        except NotFound:
            return None
        size = whole_number(headers.get("Content-Length", ""))
        return Remote(key, headers.get("ETag", "").strip('"'), size, headers.get("Last-Modified", ""))

    def list_page(self, query: dict[str, str]) -> bytes | None:
        """Return one page of the bucket listing, None where the server does not answer such a query."""
        try:
            return self._ask("GET", f"{self.listing}/?{urlencode(query)}").body
        except Unreachable:
            raise
        except SourceFault:
            return None

    def klines(self, path: str, query: dict[str, str | int]) -> list[list]:
        """Return REST candles; raises `SourceFault` when the answer is not a list of them."""
        body = self._ask("GET", f"{self.rest}/{path}?{urlencode(query)}").body
        try:
            rows = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise SourceFault("answered something that is not JSON") from error
        if not isinstance(rows, list):
            raise SourceFault("answered something that is not a list of candles")
        return rows

    def close(self) -> None:
        """Close the connections."""
        self._adapter.close()

    def _ask(self, method: str, url: str, max_bytes: int = 0) -> _Answer:
        """Return an answer of status 200; tries again what may pass, and says what went wrong otherwise."""
        problem, attempt = "no answer", 0
        for attempt in range(self.limits.tries if self._failures < _MAX_FAILURES else 1):
            if attempt:
                time.sleep(self.limits.backoff * 2 ** (attempt - 1) * random.uniform(0.7, 1.3))
            if (wait := self._wait_until - time.monotonic()) > 0:  # even sleep(0) costs 60 µs
                time.sleep(wait)
            try:
                answer = self._follow(method, url, max_bytes or self.limits.body)
            except RequestException as error:  # `Retry` has tried often enough
                raise self._unreachable(error) from error
            except (HTTPError, OSError) as error:  # the answer began, and was cut or not finished in time
                problem = reason_of(error)
                continue
            self._note_answer()
            if answer.status not in _TEMPORARY:
                return self._accepted(url, answer)
            problem = f"server error {answer.status}"
            self._apply_retry_after(answer.headers)
        self._note_failure()
        raise Unreachable(f"{problem} after {attempt + 1} tries")

    def _accepted(self, url: str, answer: _Answer) -> _Answer:
        """Return an answer that says yes; raises what the others say."""
        if answer.status == 200:
            self._set_clock(answer.headers)
            return answer
        if answer.status == 404:
            raise NotFound(f"{public_url(url)} is not there (404)")
        if answer.status in _REFUSED:
            raise Refused(f"{_REFUSED[answer.status]} ({answer.status})")
        if answer.status == 400:
            raise Rejected("unexpected answer 400")
        raise SourceFault(f"unexpected answer {answer.status}")

    def _follow(self, method: str, url: str, max_bytes: int) -> _Answer:
        """Ask once, and again where the server redirects on its own host; never from https back to http."""
        for _ in range(_MAX_REDIRECTS):
            answer = self._once(method, url, max_bytes)
            if answer.status not in _MOVED or "Location" not in answer.headers:
                return answer
            try:
                here, url = url, urljoin(url, answer.headers["Location"])
            except ValueError as error:
                raise SourceFault("redirected to what is no URL") from error
            if not _same_host(here, url):
                raise SourceFault(
                    f"redirected to another host, {_shown_host(url)}, which is not asked; name it as the source "
                    "if you trust it"
                )
        raise SourceFault(f"redirected more than {_MAX_REDIRECTS} times")

    def _once(self, method: str, url: str, max_bytes: int) -> _Answer:
        request = self._requests.prepared(method, url)
        timeout = (self.limits.connect, self.limits.read)
        # the adapter, not a session: that keeps cookies, and takes redirects apart even where it is not to follow them
        response = self._adapter.send(
            request, stream=True, timeout=timeout, **self._environment(str(request.url))
        )
        try:
            body = self._body(response.raw, max_bytes)
        except BaseException:
            response.raw.close()  # the rest of a broken body must not be read as the next answer
            raise
        response.raw.release_conn()
        length = whole_number(response.headers.get("Content-Length", ""))
        encoded = "Content-Encoding" in response.headers  # then the length is not that of the body we see
        if method == "GET" and length >= 0 and not encoded and length != len(body):
            raise ConnectionError(f"connection cut: {len(body)} of {length} bytes")
        return _Answer(response.status_code, response.headers, body)

    def _body(self, raw: Any, max_bytes: int) -> bytes:
        chunks, size = [], 0
        while chunk := raw.read1(_CHUNK, decode_content=True):
            chunks.append(chunk)
            size += len(chunk)
            if size > max_bytes:
                raise SourceFault(f"answer larger than the {max_bytes >> 10} KB it may have")
        return b"".join(chunks)

    def _environment(self, url: str) -> dict[str, Any]:
        """Return proxies and certificates for a URL's host, as the environment names them; read once per host."""
        host = origin_of(url)
        if host not in self._settings:
            with Session() as session:
                found = session.merge_environment_settings(url, {}, None, None, None)
            # loopback means this machine: a proxy would look on its own
            proxies = {} if _is_loopback(url) else found["proxies"]
            self._settings[host] = {"proxies": proxies, "verify": found["verify"], "cert": found["cert"]}
        return self._settings[host]

    def _credentials(self, url: str) -> HTTPBasicAuth | None:
        """Return the credentials of the source's URL, or of the user's netrc file, for the source's own host."""
        return self._auth if self._auth and _same_host(self.base, url) else None

    def _retries(self, connect: int | None = None) -> Retry:
        """Return urllib3's part: it sees failures up to the headers, so no status and no Retry-After."""
        return Retry(
            total=self.limits.tries - 1,
            connect=connect,
            redirect=0,
            status=0,
            backoff_factor=self.limits.backoff,
            backoff_jitter=self.limits.backoff / 2,
            respect_retry_after_header=False,
        )

    def _unreachable(self, error: RequestException) -> Unreachable:
        """Return what to report when urllib3 has given up."""
        self._note_failure()
        retries: Retry = self._adapter.max_retries
        allowed, reason = int(retries.total or 0), reason_of(error)
        if is_unconnected(error):
            allowed = allowed if retries.connect is None else min(allowed, int(retries.connect))
            reason = f"no connection: {reason}"
        return Unreachable(f"{reason} after {allowed + 1} tries")

    def _note_answer(self) -> None:
        self._failures = 0
        if not self._answered:
            self._answered = True
            self._adapter.max_retries = self._retries()

    def _note_failure(self) -> None:
        self._failures += 1
        if self._failures == _MAX_FAILURES:
            self._adapter.max_retries = Retry(total=0, redirect=0)
            self._answered = False  # the first answer restores patience

    def _count(self) -> None:
        with self._lock:
            self.requests += 1

    def _set_clock(self, headers: Mapping[str, str]) -> None:
        """Remember the server's clock: the exchange's time decides whether a candle is finished."""
        if self.clock_ahead is None:
            try:
                self.clock_ahead = parsedate_to_datetime(headers["Date"]).timestamp() - time.time()
            except (KeyError, ValueError):
                self.clock_ahead = 0.0

    def _apply_retry_after(self, headers: Mapping[str, str]) -> None:
        """Make every thread wait as long as the server asks."""
        seconds = retry_after_seconds(headers)
        if not seconds:
            return
        if seconds > self.limits.longest_wait:
            raise Unreachable(f"server asked to wait {seconds} s")
        with self._lock:
            self._wait_until = max(self._wait_until, time.monotonic() + seconds)
            note = f"server asked to wait {seconds} s"
            if note not in self.waits:
                self.waits.append(note)


def _auth_in(url: str) -> HTTPBasicAuth | None:
    """Return the credentials that a URL holds, or else those of the user's netrc file for its host."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.username is not None:
        return HTTPBasicAuth(unquote(parts.username), unquote(parts.password or ""))
    found = get_netrc_auth(url)
    return HTTPBasicAuth(*found) if found else None


_PORTS = {"http": 80, "https": 443}


def _same_host(one: str, other: str) -> bool:
    """Whether a redirect stays on its host and port; http may become https on the standard ports."""
    try:
        a, b = urlsplit(one), urlsplit(other)
        ports = [(p.scheme, p.port or _PORTS.get(p.scheme)) for p in (a, b)]
    except ValueError:
        return False
    upgrade = ports == [("http", 80), ("https", 443)]
    return a.hostname == b.hostname and (ports[0] == ports[1] or upgrade)


def _shown_host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}"[:80]


def _is_loopback(url: str) -> bool:
    name = urlsplit(url).hostname or ""
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
