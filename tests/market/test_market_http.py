"""The environment's proxies and certificates, credentials that stay with their host, links that leave a mirror."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

import pytest

from schemas.errors import CpbError
from tasks.market import simulator
from tasks.market.client import HttpSource, SourceFault, Unreachable, redirect_target
from tasks.market.ingest import update_store
from tasks.market.layout import source_file
from tests.tools.folder_mirror import FolderMirror
from tests.tools.market_tools import FAST, Flood, build, key, scope

FEBRUARY = source_file(key(), "2024-02")
SECRET = "s3cret-pa55"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch, tmp_path):
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
        "requests_ca_bundle",
        "curl_ca_bundle",
    ):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # no netrc of the user's


@contextmanager
def proxy(target):
    """A real forward proxy on loopback that finds every host name at `target`; yields its address and its log."""
    log = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            log.append((self.command, self.path, dict(self.headers)))
            parts = urlsplit(self.path)
            with build_opener(ProxyHandler({})).open(f"{target}{parts.path}?{parts.query}") as answer:
                body = answer.read()
                self.send_response(answer.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", log
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def market(tmp_path):
    build(tmp_path / "mirror", ["BTCUSDT"])
    with simulator.serve(FolderMirror(tmp_path / "mirror")) as url:
        yield url


def test_the_proxy_of_the_environment_is_used(market, tmp_path, monkeypatch):
    with proxy(market) as (address, log):
        monkeypatch.setenv("HTTP_PROXY", address.replace("//", f"//me:{SECRET}@"))
        report = update_store(scope(tmp_path / "home", "http://mirror.invalid", "BTC"), limits=FAST)
        assert (report.exit, report.series[0].rows) == (0, 91 * 24)
        assert all(path.startswith("http://mirror.invalid/") for _, path, _ in log)
        assert len(log) == report.requests
        assert all("Proxy-Authorization" in headers for *_, headers in log)
        assert SECRET not in json.dumps(report.to_dict())
        log.clear()
        monkeypatch.setenv("NO_PROXY", "mirror.invalid")
        with pytest.raises(CpbError) as caught:
            update_store(scope(tmp_path / "home", "http://mirror.invalid", "BTC"), limits=FAST)
        assert (caught.value.code, log) == ("unreachable", [])


def test_a_proxy_out_of_reach_is_named_without_its_password(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://me:{SECRET}@127.0.0.1:9")
    with pytest.raises(CpbError, match="ProxyError") as caught:
        update_store(scope(tmp_path / "home", "http://mirror.invalid", "BTC"), limits=FAST)
    assert SECRET not in str(caught.value)


def test_the_certificates_of_the_environment_are_trusted(tmp_path, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path))
    source = HttpSource("https://mirror.invalid")
    assert source._settings["https://mirror.invalid"]["verify"] == str(tmp_path)


def test_the_simulator_and_loopback_need_no_proxy(market, tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert update_store(scope(tmp_path / "home", market, "BTC"), limits=FAST).exit == 0
    assert update_store(scope(tmp_path / "home", "sim", "BTC", as_of="2025-02-01", since="2025-01")).exit == 0


def with_credentials(url):
    return url.replace("//", f"//me:{SECRET}@")


def test_credentials_are_sent_and_never_shown_or_stored(tmp_path, caplog):
    build(tmp_path / "mirror", ["BTCUSDT"])
    (tmp_path / "mirror" / FEBRUARY.key).write_bytes(b"no zip")  # has messages and a quarantine to look at
    asked = []

    def hook(handler, name, query):
        asked.append(handler.headers.get("Authorization"))
        return None if asked[-1] else (401, {}, b"who are you?")

    home = tmp_path / "home"
    with simulator.serve(FolderMirror(tmp_path / "mirror"), hook) as url:
        report = update_store(scope(home, with_credentials(url), "BTC"), limits=FAST)
        assert report.source == url
    assert report.series[0].rows == 62 * 24
    assert set(asked) == {"Basic bWU6czNjcmV0LXBhNTU="}
    assert SECRET not in repr(report) + caplog.text + repr(HttpSource(with_credentials(url)))
    stored = [p for p in home.rglob("*") if p.is_file()]
    assert len(stored) > 5
    assert not any(SECRET.encode() in path.read_bytes() for path in stored)
    with pytest.raises(CpbError) as caught:  # the server is gone
        update_store(scope(home, with_credentials(url), "BTC"), limits=FAST)
    assert SECRET not in str(caught.value)
    assert SECRET not in str(caught.value.__cause__)


def test_a_redirect_to_another_host_gets_neither_credentials_nor_a_request(tmp_path):
    build(tmp_path / "mirror", ["BTCUSDT"])
    seen = []

    def thief(handler, name, query):
        seen.append(dict(handler.headers))

    with simulator.serve(FolderMirror(tmp_path / "mirror"), thief) as other:

        def hook(handler, name, query):
            if name == FEBRUARY.key:
                return 302, {"Location": f"{other}/{name}", "Set-Cookie": "id=1"}, b""
            return None

        with simulator.serve(FolderMirror(tmp_path / "mirror"), hook) as url:
            report = update_store(scope(tmp_path / "home", with_credentials(url), "BTC"), limits=FAST)
    assert seen == []
    assert any("redirected to" in note and "name it as the source" in note for note in report.notes)
    assert report.series[0].files["missing"] == 1


@pytest.mark.parametrize("kept_in", ["URL", "netrc"])
def test_credentials_are_for_their_host(tmp_path, monkeypatch, kept_in):
    asked = {}

    def hook(handler, name, query):
        asked[handler.headers["Host"].split(":")[0]] = handler.headers.get("Authorization")
        return 200, {}, b"[]"

    if kept_in == "netrc":
        (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
        (tmp_path / ".netrc").chmod(0o600)
        monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with simulator.serve(FolderMirror(tmp_path), hook) as url:
        base = with_credentials(url) if kept_in == "URL" else url
        source = HttpSource(base, rest=url.replace("127.0.0.1", "localhost"), limits=FAST)
        assert source.get("x") == b"[]"
        assert source.klines("x", {}) == []
    assert asked == {"127.0.0.1": "Basic bWU6czNjcmV0LXBhNTU=", "localhost": None}


def test_the_body_of_a_redirect_is_not_read(tmp_path):
    flood = Flood("x", b"HTTP/1.1 302 Found\r\nLocation: /y\r\n\r\n")
    with (
        simulator.serve(FolderMirror(tmp_path), flood) as url,
        pytest.raises(SourceFault, match="not there"),
    ):
        HttpSource(url, limits=FAST).get("x")
    assert flood.sent < 50


@pytest.mark.parametrize("absolute", [True, False])
def test_a_redirect_within_the_host_is_followed_with_its_credentials(tmp_path, absolute):
    asked = []

    def hook(handler, name, query):
        asked.append((name, handler.headers.get("Authorization")))
        if name == "old/x":
            start = f"http://{handler.headers['Host']}" if absolute else ""
            return 301, {"Location": f"{start}/new/x"}, b"moved"
        return 200, {}, b"found"

    with simulator.serve(FolderMirror(tmp_path), hook) as url:
        assert HttpSource(with_credentials(url), limits=FAST).get("old/x") == b"found"
    assert [name for name, _ in asked] == ["old/x", "new/x"]
    assert {credentials for _, credentials in asked} == {"Basic bWU6czNjcmV0LXBhNTU="}


def test_redirects_in_a_circle_end(tmp_path):
    with (
        simulator.serve(FolderMirror(tmp_path), lambda *_: (302, {"Location": "/x"}, b"")) as url,
        pytest.raises(SourceFault, match="redirected more than 5 times"),
    ):
        HttpSource(url, limits=FAST).get("x")


@pytest.mark.parametrize(
    ("url", "location", "target"),
    [
        ("http://me:secret@a.org/x", "https://a.org/x", "https://me:secret@a.org/x"),
        ("http://a.org:80/x", "https://A.org:443/x?y=1", "https://A.org:443/x?y=1"),
        ("https://me:secret@a.org/x/", "y", "https://me:secret@a.org/x/y"),
        ("https://a.org:8443/x", "//a.org:8443/y", "https://a.org:8443/y"),
        ("https://me:secret@a.org/x", "https://thief:pw@a.org/y", "https://me:secret@a.org/y"),
    ],
)
def test_a_redirect_that_is_followed(url, location, target):
    assert redirect_target(url, location) == target


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("https://me:secret@a.org/x", "http://a.org/x"),
        ("https://a.org/x", "https://b.a.org/x"),
        ("https://a.org/x", "https://a.org@b.org/x"),
        ("http://a.org/x", "http://a.org:81/x"),
        ("http://a.org:8080/x", "https://a.org/x"),
        ("https://a.org/x", "ftp://a.org/x"),
        ("https://a.org/x", "file:///etc/passwd"),
        ("https://a.org/x", "https://a.org:port/x"),
        ("https://a.org/x", "https://[::1/x"),
    ],
)
def test_a_redirect_that_is_not_followed(url, location):
    with pytest.raises(SourceFault, match="redirected to") as caught:
        redirect_target(url, location)
    assert "secret" not in str(caught.value)


def test_a_server_that_asks_for_an_hour_is_given_up(tmp_path):
    with simulator.serve(FolderMirror(tmp_path), lambda *_: (503, {"Retry-After": "3600"}, b"")) as url:
        source = HttpSource(url, limits=FAST)
        with pytest.raises(Unreachable, match="server asked to wait 3600 s"):
            source.get("x")
        assert source.requests == 1


def test_a_link_that_leaves_the_mirror_is_not_followed(tmp_path):
    root = build(tmp_path / "mirror", ["BTCUSDT"])
    secret = tmp_path / "private.zip"
    secret.write_bytes(b"not for cpb")
    path = root / FEBRUARY.key
    kept = path.with_name("kept.bin")
    path.rename(kept)
    path.symlink_to(secret)
    report = update_store(scope(tmp_path / "home", root, "BTC"))
    assert any("leads out of the mirror folder" in note for note in report.notes)
    assert report.series[0].files == {"ok": 2, "repaired": 0, "quarantined": 0, "unverified": 0, "missing": 1}
    assert not (tmp_path / "home/quarantine").exists()
    path.unlink()
    path.symlink_to(kept)  # inside the mirror: followed
    assert update_store(scope(tmp_path / "home", root, "BTC")).series[0].rows == 91 * 24
    (tmp_path / "link").symlink_to(root)  # the mirror itself may be a link
    assert update_store(scope(tmp_path / "other", tmp_path / "link", "BTC")).series[0].rows == 91 * 24
