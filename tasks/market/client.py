"""How bytes get here: one small interface over HTTP and over a folder.

Retries, waiting and deadlines live here and nowhere else. urllib3 alone: 0.6 s of CPU for 1,920 files where
requests takes 1.4 s, and aiohttp or obstore end at the same wall time.
"""

import json
import random
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path
from urllib.parse import quote, urlencode, urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError, ReadTimeoutError

from tasks.market.deadline import open_pool
from tasks.market.faults import NotFound, Refused, Rejected, SourceFault, Unreachable
from tasks.market.wire import reason_of, seconds_asked, whole_number

BINANCE = "https://data.binance.vision"
BINANCE_BUCKET = "https://s3-ap-northeast-1.amazonaws.com/data.binance.vision"
BINANCE_REST = {
    "spot": "https://data-api.binance.vision",
    "um": "https://fapi.binance.com",
    "cm": "https://dapi.binance.com",
}
_AGAIN = {408, 425, 429, *range(500, 600)} - {501, 505}  # those two will never pass
_MOVED = {301, 302, 303, 307, 308}
_HOPS = 5
_REFUSED = {
    403: "forbidden from here",
    418: "banned for asking too often",
    451: "not available from your location",
}
_CHUNK = 1 << 18
_STRIKES = 24  # requests in a row without an answer: from then on nothing is asked twice


@dataclass(frozen=True)
class Limits:
    """How patient a client is; seconds and counts."""

    connect: float = 5
    read: float = 30
    deadline: float = 180  # of one whole answer, headers and body, however slowly it trickles
    tries: int = 4
    backoff: float = 0.4
    longest_wait: float = 180  # a server that asks for more is given up for this run
    body: int = 16 << 20  # bytes of an answer whose size nobody told: a thousand keys or candles take 400 KB


@dataclass(frozen=True)
class Remote:
    """What a server tells of a file without sending it."""

    key: str
    etag: str = ""
    size: int = -1
    modified: str = ""


@dataclass
class HttpSource:
    """A server with Binance Vision's layout; counts its requests, shares waiting among all threads."""

    base: str
    listing: str = ""
    rest: str = ""
    connections: int = 16
    limits: Limits = field(default_factory=Limits)
    label: str = ""
    requests: int = 0
    waits: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.base = self.base.rstrip("/")
        self.listing = self.listing or self.base
        self.rest = self.rest or self.base
        self._pool = open_pool(
            self.limits.read,
            self.limits.deadline,
            num_pools=4,
            maxsize=self.connections,
            block=True,
            retries=False,
            socket_options=_NO_DELAY,
        )
        self._lock = threading.Lock()
        self._wait_until = 0.0
        self._answered = False
        self._strikes = 0
        self.clock_ahead: float | None = None  # seconds by which the server's clock is ahead of ours

    @property
    def name(self) -> str:
        """What messages call this source."""
        return self.label or self.base

    def get(self, key: str, most: int = 0) -> bytes:
        """Return a file's bytes, at most `most`; raises `NotFound`, `Refused` or `Unreachable`."""
        return self._ask("GET", f"{self.base}/{quote(key)}", most)[1]

    def head(self, key: str) -> Remote | None:
        """Return what the server tells of a file, None if it has none."""
        try:
            headers, _ = self._ask("HEAD", f"{self.base}/{quote(key)}")
        except NotFound:
            return None
        size = whole_number(headers.get("Content-Length", ""))
        return Remote(key, headers.get("ETag", "").strip('"'), size, headers.get("Last-Modified", ""))

    def list_page(self, query: dict[str, str]) -> bytes | None:
        """Return one page of the bucket listing, None where the server does not answer such a question."""
        try:
            return self._ask("GET", f"{self.listing}/?{urlencode(query)}")[1]
        except Unreachable:
            raise
        except SourceFault:
            return None

    def klines(self, path: str, query: dict[str, str | int]) -> list[list]:
        """Return REST candles; raises `SourceFault` when the answer is not a list of them."""
        _, body = self._ask("GET", f"{self.rest}/{path}?{urlencode(query)}")
        try:
            rows = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise SourceFault("answered something that is not JSON") from error
        if not isinstance(rows, list):
            raise SourceFault("answered something that is not a list of candles")
        return rows

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def _ask(self, method: str, url: str, most: int = 0) -> tuple[urllib3.HTTPHeaderDict, bytes]:
        """Ask until there is an answer: only faults that may pass are tried again."""
        problem = "no answer"
        for attempt in range(self.limits.tries if self._strikes < _STRIKES else 1):
            if attempt:
                time.sleep(self.limits.backoff * 2 ** (attempt - 1) * random.uniform(0.7, 1.3))
            if (wait := self._wait_until - time.monotonic()) > 0:  # sleep(0) would cost every request 60 µs
                time.sleep(wait)
            try:
                status, headers, body = self._follow(method, url, most or self.limits.body)
            except NewConnectionError as error:
                problem = f"no connection: {reason_of(error)}"
                if not self._answered and attempt:
                    break  # nobody home: two tries are enough to say so
                continue
            except (HTTPError, OSError) as error:
                problem = reason_of(error)
                continue
            self._answered, self._strikes = True, 0
            if status == 200:
                self._set_clock(headers)
                return headers, body
            if status == 404:
                raise NotFound(f"{url} is not there (404)")
            if status in _REFUSED:
                raise Refused(f"{_REFUSED[status]} ({status})")
            if status == 400:
                raise Rejected("unexpected answer 400")
            if status not in _AGAIN:
                raise SourceFault(f"unexpected answer {status}")
            problem = f"server error {status}"
            self._heed(headers)
        self._strikes += 1
        raise Unreachable(f"{problem} after {attempt + 1} tries")

    def _follow(self, method: str, url: str, most: int) -> tuple[int, urllib3.HTTPHeaderDict, bytes]:
        """Ask once, and again wherever the server sends us: mirrors move; never from https back to http."""
        for _ in range(_HOPS):
            status, headers, body = self._once(method, url, most)
            if status not in _MOVED or "Location" not in headers:
                return status, headers, body
            here, url = urlsplit(url).scheme, urljoin(url, headers["Location"])
            if urlsplit(url).scheme not in {here, "https"}:
                raise SourceFault(f"sent on to {url[:80]}, which is not asked")
        raise SourceFault(f"sent on more than {_HOPS} times")

    def _once(self, method: str, url: str, most: int) -> tuple[int, urllib3.HTTPHeaderDict, bytes]:
        with self._lock:
            self.requests += 1
        started = time.monotonic()
        try:
            answer, body = self._exchange(method, url, most)
        except (TimeoutError, ReadTimeoutError) as error:
            if time.monotonic() - started < self.limits.deadline:
                raise
            raise TimeoutError(f"timed out: not finished in {self.limits.deadline:g} s") from error
        length = whole_number(answer.headers.get("Content-Length", ""))
        coded = "Content-Encoding" in answer.headers  # then the length is not that of the body we see
        if method == "GET" and length >= 0 and not coded and length != len(body):
            raise ConnectionError(f"connection cut: {len(body)} of {length} bytes")
        return answer.status, answer.headers, body

    def _exchange(self, method: str, url: str, most: int) -> tuple[urllib3.BaseHTTPResponse, bytes]:
        timeout = urllib3.Timeout(connect=self.limits.connect, read=self.limits.read)
        plain = {"Accept-Encoding": "identity"}
        answer = self._pool.request(method, url, preload_content=False, timeout=timeout, headers=plain)
        try:
            body = self._body(answer, most)
        except BaseException:
            answer.close()  # the rest of a broken body must not be read as the next answer
            raise
        answer.release_conn()
        return answer, body

    def _body(self, answer: urllib3.BaseHTTPResponse, most: int) -> bytes:
        chunks, size = [], 0
        while chunk := answer.read1(_CHUNK):
            chunks.append(chunk)
            size += len(chunk)
            if size > most:
                raise SourceFault(f"answer larger than the {most >> 10} KB it may have")
        return b"".join(chunks)

    def _set_clock(self, headers: urllib3.HTTPHeaderDict) -> None:
        """Remember the server's clock: whether a candle is finished is for the exchange to say."""
        if self.clock_ahead is None:
            try:
                self.clock_ahead = parsedate_to_datetime(headers["Date"]).timestamp() - time.time()
            except (KeyError, ValueError):
                self.clock_ahead = 0.0

    def _heed(self, headers: urllib3.HTTPHeaderDict) -> None:
        """Make every thread wait as long as the server asks."""
        asked = seconds_asked(headers)
        if not asked:
            return
        if asked > self.limits.longest_wait:
            raise Unreachable(f"server asked to wait {asked} s")
        with self._lock:
            self._wait_until = max(self._wait_until, time.monotonic() + asked)
            note = f"server asked to wait {asked} s"
            if note not in self.waits:
                self.waits.append(note)


@dataclass
class FolderSource:
    """A folder with Binance Vision's layout."""

    root: Path
    requests: int = 0
    waits: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What messages call this source."""
        return str(self.root)

    def get(self, key: str, most: int = 0) -> bytes:
        """Return a file's bytes; raises `NotFound` or `SourceFault`."""
        self.requests += 1
        try:
            return (self.root / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotFound(f"{self.root / key} is not there") from error
        except OSError as error:
            raise SourceFault(f"{self.root / key} cannot be read: {error.strerror}") from error

    def files(self, prefix: str) -> Iterable[Remote]:
        """Yield what lies in a folder; modification time and size stand in for an ETag."""
        self.requests += 1
        folder = self.root / prefix
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.suffix == ".zip" and path.is_file():
                info = path.stat()
                modified = formatdate(info.st_mtime, usegmt=True)
                yield Remote(
                    prefix + path.name, f"{info.st_mtime_ns:x}-{info.st_size}", info.st_size, modified
                )

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders in a folder."""
        folder = self.root / prefix
        return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []

    def close(self) -> None:
        """Nothing to close."""


Source = HttpSource | FolderSource
_NO_DELAY = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
