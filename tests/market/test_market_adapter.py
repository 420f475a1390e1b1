"""What is worked out once a host must come to what `requests` works out for each request."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from market_tools import FAST
from requests import Request, RequestException
from requests.auth import HTTPBasicAuth

from tasks.market.adapter import Requests
from tasks.market.client import HttpSource

HEADERS = {"User-Agent": "test", "Accept-Encoding": "identity"}


def described(prepare):
    """A prepared request as a tuple, or the kind of error that refuses it."""
    try:
        request = prepare()
    except RequestException as error:
        return type(error)
    return request.method, request.url, request.path_url, dict(request.headers), request.body


@pytest.mark.parametrize("auth", [None, HTTPBasicAuth("me", "pass")])
@pytest.mark.parametrize(
    "url",
    [
        "http://mirror.invalid/data/spot/BTCUSDT-1h-2024-02.zip",
        "http://Mirror.Invalid:8080/a_b.zip?symbol=BTCUSDT&limit=1000",
        "http://münchen.invalid/a.zip",
        "https://[::1]:443/a.zip",
        "http://mirror.invalid:/a.zip",
        "http://mirror.invalid",
        "http://mirror.invalid/",
        "http://mirror.invalid/?prefix=data%2Fspot%2F&delimiter=%2F",
        "http://mirror.invalid/a b/ü.zip",
        "http://mirror.invalid/a%20b.zip",
        "http://mirror.invalid/a/../b.zip",
        "http://mirror.invalid/./b.zip",
        "http://mirror.invalid//b.zip",
        "http://mirror.invalid/a.zip#end",
        "http://me:other@mirror.invalid/a.zip",
        "http://mirror.invalid\\@else.invalid/a.zip",
        "http://mirror.invalid:99999/a.zip",
        "http://mirror.invalid:80x/a.zip",
        "http://*.invalid/a.zip",
        "http://[::1/a.zip",
        "http:///a.zip",
        "ftp://mirror.invalid/a.zip",
        "mirror.invalid/a.zip",
    ],
)
def test_requests_are_prepared_as_the_library_does(url, auth):
    requests = Requests(HEADERS, lambda _: auth)
    for method in ("GET", "HEAD", "GET"):
        expected = described(lambda m=method: Request(m, url, headers=HEADERS, auth=auth).prepare())
        assert described(lambda m=method: requests.prepared(m, url)) == expected


def test_requests_of_two_hosts_do_not_share_credentials():
    requests = Requests(HEADERS, lambda url: HTTPBasicAuth("me", "pass") if "own.invalid" in url else None)
    for _ in range(2):
        assert "Authorization" in requests.prepared("GET", "http://own.invalid/a.zip").headers
        assert "Authorization" not in requests.prepared("GET", "http://other.invalid/a.zip").headers


@contextmanager
def counting_server():
    """A server that keeps connections open; yields its address and a list with an entry for each connection."""
    connections = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self):
            connections.append(self.client_address)
            super().setup()

        def do_GET(self):
            body = self.path.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", connections
    finally:
        server.shutdown()
        server.server_close()


def test_one_connection_serves_all_files_and_a_closed_source_opens_another():
    with counting_server() as (url, connections):
        source = HttpSource(url, limits=FAST)
        for i in range(20):
            assert source.get(f"a/{i}.zip") == b"/a/%d.zip" % i
        assert len(connections) == 1
        source.close()
        assert source.get("b.zip") == b"/b.zip"
        assert len(connections) == 2
        source.close()
