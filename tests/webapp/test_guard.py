"""What a foreign web page can get from the service: nothing. Over loopback, with a real server."""

import http.client
import json
import re
from pathlib import Path

import pytest

from flows.ops.guard import Guard
from flows.ops.listeners import PAGE
from schemas.errors import UsageError
from tests.tools.page_service import client_of, serve
from webapp import all_series
from webapp import app as webapp_app
from webapp.app import create_app

PATHS = [
    "/",
    "/docs",
    "/openapi.json",
    "/static/page.js",
    "/static/nothing.js",
    "/nothing",
    "/healthz",
    "/api/symbols",
    "/api/forecast/BTC/1h",
    "/api/candles/BTC/1h?limit=0",
    "/redoc",
    "/static/../app.py",
]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    app = create_app(tmp_path_factory.mktemp("guard") / "data")
    with serve(app, ["forecasts.example.com"]) as port:
        yield port


def ask(port, path="/healthz", host=None, method="GET", **headers):
    """Return (status, headers, body) of one request, with the Host header as given."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


FOREIGN = [
    "evil.example",
    "evil.example:8000",
    "127.0.0.1.nip.io",
    "localhost.evil.example",
    "10.0.0.5",
    "0.0.0.0",
    "[fe80::1]",
    "xforecasts.example.com",
]


@pytest.mark.parametrize("path", ["/healthz", "/", "/nothing"])
@pytest.mark.parametrize("host", FOREIGN)
def test_a_foreign_host_gets_nothing_but_a_sentence(service, host, path):
    status, headers, body = ask(service, path, host)

    assert status == 421
    assert "--allowed-hosts" in json.loads(body)["detail"]
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed_and_no_other_origin_is_let_in(service, method):
    assert ask(service, "/api/symbols", "localhost", method)[0] == 405
    status, headers, _ = ask(service, "/api/symbols", "localhost", method, Origin="http://evil.example")

    assert status == 403
    assert not [name for name in headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_carries_policy_and_nosniff(service, path):
    _, headers, _ = ask(service, path, "localhost")

    assert headers["X-Content-Type-Options"] == "nosniff"
    policy = headers["Content-Security-Policy"]
    rules = dict(rule.split(maxsplit=1) for rule in policy.split("; "))
    assert rules.pop("style-src") == "'self' 'unsafe-inline'"  # plotly's, of styles alone
    assert rules.pop("img-src") == "'self' data: blob:"
    assert rules == dict.fromkeys(("default-src", "connect-src"), "'self'") | dict.fromkeys(
        ("base-uri", "form-action", "frame-ancestors", "object-src"), "'none'"
    )


@pytest.mark.parametrize("path", PATHS)
def test_head_is_answered_like_get_without_a_body(service, path):
    status, headers, body = ask(service, path, "localhost")
    head_status, head_headers, nothing = ask(service, path, "localhost", "HEAD")

    assert (head_status, nothing) == (status, b"")
    assert int(head_headers["Content-Length"]) == len(body)
    names = ("Content-Type", "X-Content-Type-Options", "Content-Security-Policy", "Referrer-Policy")
    assert [head_headers[name] for name in names] == [headers[name] for name in names]


def test_an_unexpected_fault_is_one_sentence_with_the_same_headers(tmp_path, monkeypatch):
    def broken(_home):
        raise RuntimeError("secret path /home/someone")

    monkeypatch.setattr(all_series, "listed", broken)
    with client_of(tmp_path, raise_server_exceptions=False) as client:
        answer = client.get("/api/symbols")

    assert answer.status_code == 500
    assert "secret" not in answer.json()["detail"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "content-security-policy" in answer.headers


def test_the_address_at_which_a_request_arrives_is_its_own(tmp_path):
    with client_of(tmp_path) as client:
        client.base_url = "http://192.168.1.5:8000"
        assert client.get("/healthz").status_code == 200
        assert client.get("/healthz", headers={"Host": "192.168.1.6:8000"}).status_code == 421


def test_allowed_hosts_are_names_or_addresses(tmp_path):
    with serve(create_app(tmp_path), ["box.lan", "10.0.0.5:8000"]) as port:
        assert [ask(port, host=h)[0] for h in ("box.lan", "10.0.0.5", "other.lan")] == [200, 200, 421]


def test_a_proxy_with_a_certificate_may_stand_in_front_of_the_page(tmp_path):
    """Its browsers' requests carry the name and an origin of https, as docs/publishing.md sets it up."""
    with serve(create_app(tmp_path), ["cpb.example.org"]) as port:
        for origin, status in (("https://cpb.example.org", 200), ("https://evil.example", 403)):
            assert ask(port, "/healthz", "cpb.example.org", Origin=origin)[0] == status


@pytest.mark.parametrize("host", ["*", "*.example.com", "http://x", "a b", ""])
def test_an_allowed_host_that_is_none_is_refused_at_the_start(tmp_path, host):
    with pytest.raises(UsageError) as caught:
        Guard(create_app(tmp_path), PAGE, [host])
    assert (caught.value.code, caught.value.field) == ("host", "allowed_hosts")


def test_pages_hold_no_inline_script_or_style_and_nothing_foreign():
    static = Path(webapp_app.__file__).parent / "static"
    for file in static.glob("*.html"):
        text = file.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", text), file.name
    for file in static.iterdir():
        text = file.read_text()
        assert "eval(" not in text
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == [], file.name
