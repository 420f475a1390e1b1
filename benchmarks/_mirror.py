"""A mirror on loopback HTTP, for benchmarks and tests: files, a bucket's listing of them, and faults."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 1000  # keys on one page of S3's listing


def listing_page(entries: list[tuple[str, str, int]], query: dict[str, str]) -> bytes:
    """Return a page of S3's listing of `entries` under the query's `prefix` and after its `marker`."""
    prefix, marker, delimiter = query["prefix"], query.get("marker", ""), query.get("delimiter", "")
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
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Prefix>{escape(prefix)}</Prefix><IsTruncated>{str(more).lower()}</IsTruncated>"
        + (f"<NextMarker>{escape(page[-1][0])}</NextMarker>" if more else "")
        + f"{body}</ListBucketResult>"
    ).encode()


Hook = Callable[[BaseHTTPRequestHandler, str, dict[str, str]], Any]
"""May respond to a request for a key with a query: status, headers and body, or True if it wrote to the socket.

None passes the request to the mirror.
"""


@contextmanager
def serve(mirror: Any, hook: Hook | None = None, lists: bool = True) -> Iterator[str]:
    """Serve a mirror on a free loopback port and yield its URL.

    Args:
        mirror: its `keys(prefix)` returns key, ETag and size (-1: not listed) of the files whose key begins so; its
            `read(key)` a file's bytes, None if there is no such file.
        lists: whether it has a listing.
    """

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
            if not answer and not key and "prefix" in query and lists:
                answer = 200, {}, listing_page(mirror.keys(query["prefix"]), query)
            elif not answer:
                content = mirror.read(key) if key else None
                answer = (404, {}, b"<Error/>") if content is None else (200, {}, content)
            status, headers, body = answer
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
