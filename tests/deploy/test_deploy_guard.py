import asyncio

import pytest

from flows.deploy.services import _origins
from flows.ops.guard import PREFECT, Guard

OWN = "127.0.0.1:4200"


def answer(kind="http", path="/api/flows/filter", **headers):
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
        (name.encode(), value.encode())
        for name, values in headers.items()
        for value in ([values] if isinstance(values, str) else values)
    ]
    scope = {"type": kind, "path": path, "headers": fields, "method": "GET"}
    asyncio.run(Guard(app, PREFECT, origins=_origins(4200))(scope, None, send))
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
