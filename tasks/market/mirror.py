"""Files in Binance Vision's format, and a loopback server that lists and serves them.

Used by the market simulator, by the tests (with injected faults) and by the benchmarks.
"""

import hashlib
import io
import ssl
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import polars as pl

from schemas.frames import KLINES
from tasks.market.layout import MICROSECONDS_SINCE, grid_of

PAGE = 1000  # keys on one page of S3's listing


class Mirror(Protocol):
    """A set of published files."""

    def keys(self, prefix: str) -> list[tuple[str, str, int]]:
        """Return key, ETag and size (-1: not listed) of every file under a prefix, sorted."""

    def read(self, key: str) -> bytes | None:
        """Return a file's bytes, None if there is no such file."""


def to_csv(frame: pl.DataFrame, interval: str, decimals: int | None = 8) -> bytes:
    """Return candles in Binance's CSV format: 8 decimals (None: all), no header, microseconds from 2025 on."""
    time = pl.col("open_time").to_physical()
    ends = pl.lit(pl.Series(grid_of(interval).end(frame["open_time"].to_physical().to_numpy())))
    unit = pl.when(time >= MICROSECONDS_SINCE).then(1).otherwise(1000)
    return (
        frame.select(
            (time // unit).alias("open_time"),
            *list(KLINES)[1:6],
            (ends // unit - 1).alias("close_time"),
            *list(KLINES)[6:],
            pl.lit(0).alias("ignore"),
        )
        .write_csv(None, include_header=False, float_precision=decimals)
        .encode()
    )


def to_zip(name: str, csv: bytes, level: int = 6) -> bytes:
    """Return a zip with a single member `name` and a fixed date: equal candles give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        member = zipfile.ZipInfo(name, (2025, 1, 1, 0, 0, 0))
        member.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(member, csv)
    return buffer.getvalue()


def to_checksum(name: str, payload: bytes) -> bytes:
    """Return the contents of a CHECKSUM file."""
    return f"{hashlib.sha256(payload).hexdigest()}  {name}".encode()


def listing_page(entries: list[tuple[str, str, int]], prefix: str, marker: str, delimiter: str) -> bytes:
    """Return a page of S3's listing of `entries` after `marker`."""
    contents, folders = [], []
    for key, etag, size in entries:
        rest = key.removeprefix(prefix)
        if delimiter and delimiter in rest:
            folders.append(prefix + rest.split(delimiter)[0] + delimiter)
        else:
            shown = f"<Size>{size}</Size>" if size >= 0 else ""
            contents.append((key, f"<Key>{escape(key)}</Key><ETag>&quot;{etag}&quot;</ETag>{shown}"))
    after = [item for item in contents if item[0] > marker]
    page, more = after[:PAGE], len(after) > PAGE
    body = "".join(f"<Contents>{text}</Contents>" for _, text in page)
    body += "".join(
        f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>"
        for f in dict.fromkeys(folders)
        if f > marker
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Prefix>{escape(prefix)}</Prefix><IsTruncated>{str(more).lower()}</IsTruncated>"
        + (f"<NextMarker>{escape(page[-1][0])}</NextMarker>" if more else "")
        + f"{body}</ListBucketResult>"
    ).encode()


Answer = tuple[int, dict[str, str], bytes]
Hook = Callable[[BaseHTTPRequestHandler, str, dict[str, str]], Answer | bool | None]
"""May respond to a request (an `Answer`, or True if it wrote to the socket); None passes it to the mirror."""


@contextmanager
def serve(
    mirror: Mirror, hook: Hook | None = None, lists: bool = True, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve a mirror on a free loopback port and yield its URL; `tls` makes it https."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = 1 << 16  # headers and body in one packet

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            key = unquote(parts.path).lstrip("/")
            query = {k: v[-1] for k, v in parse_qs(parts.query).items()}
            answer = hook(self, key, query) if hook else None
            if answer is True:
                return
            self._send(answer or _answer(mirror, key, query, lists))  # type: ignore[arg-type]

        do_HEAD = do_GET

        def _send(self, answer: Answer) -> None:
            status, headers, body = answer
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(mirror: Mirror, key: str, query: dict[str, str], lists: bool) -> Answer:
    if not key and "prefix" in query and lists:
        entries = mirror.keys(query["prefix"])
        page = listing_page(entries, query["prefix"], query.get("marker", ""), query.get("delimiter", ""))
        return 200, {"Content-Type": "application/xml"}, page
    body = mirror.read(key) if key else None
    if body is None:
        return (
            404,
            {"Content-Type": "application/xml"},
            b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>",
        )
    return 200, {}, body
