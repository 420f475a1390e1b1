import asyncio
import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.deploy.services import _origins
from flows.ops.guard import Guard
from flows.ops.listeners import PAGE, PREFECT

OWN = "127.0.0.1:4200"


def answer(kind="http", path="/api/flows/filter", listener=PREFECT, **headers):
    """Return the status that a request gets, or what a websocket is told first."""
    sent = []

    async def app(scope, receive, send):
        if kind == "websocket":
            await send({"type": "websocket.accept"})
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    fields = [
        (name.encode(), value.encode() if isinstance(value, str) else value)
        for name, values in headers.items()
        for value in ([values] if isinstance(values, str | bytes) else values)
    ]
    scope = {"type": kind, "path": path, "headers": fields, "method": "GET"}
    asyncio.run(Guard(app, listener, origins=_origins(4200))(scope, None, send))
    return sent[0].get("status", sent[0]["type"])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (OWN, 200),
        ("localhost:4200", 200),
        ("LOCALHOST", 200),
        ("[::1]:4200", 200),
        ("127.0.0.1:5000", 200),  # a tunnel that ends on another port
        ("evil.example", 403),
        ("evil.example:4200", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:4200", 403),
        ("evil@127.0.0.1:4200", 403),
        ("127.0.0.2", 200),  # this machine too; an address cannot be re-bound
        ("0.0.0.0:4200", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_only_loopback_names_are_served(host, status):
    assert answer(host=host) == status
    assert answer("websocket", host=host) == ("websocket.accept" if status == 200 else "websocket.close")


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("http://127.0.0.1:4200", OWN, 200),
        ("http://localhost:4200", OWN, 200),
        ("http://localhost:5000", "localhost:5000", 200),
        ("http://localhost:3000", OWN, 403),
        ("https://evil.example", OWN, 403),
        ("http://127.0.0.1:4200.evil.example", OWN, 403),
        ("null", OWN, 403),
        ("", OWN, 403),
    ],
)
def test_only_the_servers_own_page_may_ask(origin, host, status):
    assert answer(host=host, origin=origin) == status
    opened = answer("websocket", host=host, origin=origin)
    assert opened == ("websocket.accept" if status == 200 else "websocket.close")


def test_no_host_or_two_are_refused():
    assert answer() == 403
    assert answer(host=[OWN, "evil.example"]) == 403
    assert answer(host=OWN, origin=["http://localhost:4200", "https://evil.example"]) == 403


def basic(text):
    return b"Basic " + base64.b64encode(text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (basic("cpb:right or wrong"), 200),  # Prefect says which
        (b"basic  " + base64.b64encode(b"cpb:x"), 200),
        (basic("cpb:pässwörd"), 401),
        (basic(b"cpb:\xff\xfe"), 401),
        (b"Basic \xe4\xf6", 401),
        ("Basic ä".encode(), 401),
        (b"Basic !!!!", 401),
        (b"Basic abc", 401),
        (b"Bearer abcd", 401),
        (b"\xff", 401),
        ([basic("a:b"), basic("a:b")], 401),
    ],
)
def test_a_header_at_which_prefect_would_fail_does_not_reach_it(header, status):
    assert answer(host=OWN, authorization=header) == status
    opened = answer("websocket", host=OWN, authorization=header)
    assert opened == ("websocket.accept" if status == 200 else "websocket.close")
    assert answer(host=OWN, authorization=header, listener=PAGE) == 200  # which has no password


@given(st.binary(max_size=60))
def test_what_prefect_is_given_is_ascii_within_whatever_a_header_holds(sent):
    for header in (sent, b"Basic " + sent, basic(sent)):
        if answer(host=OWN, authorization=header) == 200:
            assert base64.b64decode(header.split()[1]).isascii()


def first_message(text):
    """Send a message to Prefect's websocket; return what Prefect gets, and what the client is sent."""
    got, sent = [], []
    incoming = [
        {"type": "websocket.connect"},
        {"type": "websocket.receive", **text},
        {"type": "websocket.receive"},
    ]

    async def app(scope, receive, send):
        while len(got) < 3:
            got.append(await receive())
            if got[-1]["type"] == "websocket.disconnect":
                return

    async def receive():
        return incoming.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": "websocket", "path": "/api/events/in", "headers": [(b"host", OWN.encode())]}
    asyncio.run(Guard(app, PREFECT, origins=_origins(4200))(scope, receive, send))
    return got, sent


@pytest.mark.parametrize("token", ["right or wrong", ""])
def test_a_login_and_what_follows_reach_prefects_websocket(token):
    login = {"text": json.dumps({"type": "auth", "token": token})}
    got, sent = first_message(login)
    assert got[1:] == [{"type": "websocket.receive", **login}, {"type": "websocket.receive"}]
    assert sent == []


@pytest.mark.parametrize(
    "text",
    [
        "abc",
        "",
        "null",
        "[1]",
        "5",
        "[" * 100_000,
        '{"type": "auth"}',
        '{"type": "auth", "token": 5}',
        '{"type": "auth", "token": "ä"}',
        '{"type": "x", "token": "y"}',
        '{"token": "y"}',
    ],
)
def test_a_first_message_that_is_no_login_ends_the_websocket_before_prefect_fails_at_it(text):
    for message in ({"text": text}, {"bytes": text.encode()}, {"text": None, "bytes": b"\xff"}):
        got, sent = first_message(message)
        assert [m["type"] for m in got] == ["websocket.connect", "websocket.disconnect"]
        assert [(m["type"], m["code"]) for m in sent] == [("websocket.close", 1008)]
