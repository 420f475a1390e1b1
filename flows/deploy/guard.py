"""Refuses what a web page of another site can send to the Prefect server, before Prefect sees it.

The API itself asks for the password, also on its websockets. What it leaves open is for anyone who reaches the
port: the page's files, `/ui-settings`, `/api/health`, and connections that never send their password (100 of them
fill Prefect's request limit). A browser on this machine reaches the port for any page it shows, but cannot hide
where it comes from: a name that was re-bound to 127.0.0.1 stands in `Host`, another site in `Origin`.
"""

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LOCAL = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_FOREIGN_SCRIPTS = ("/docs", "/redoc", "/api/docs", "/api/redoc")
_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"x-frame-options", b"DENY")]


def origins(port: int) -> list[str]:
    """Return the origins of the server's own page."""
    return [f"http://127.0.0.1:{port}", f"http://localhost:{port}"]


class Guard:
    """An ASGI application before another one."""

    def __init__(self, app: App, port: int) -> None:
        self.app = app
        self.origins = origins(port)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403 (404 for pages that load scripts of another site), or hand the request on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif reason := self.refusal(scope):
            await _refuse(scope, send, 403, reason)
        elif scope["type"] == "http" and scope["path"].rstrip("/") in _FOREIGN_SCRIPTS:
            await _refuse(scope, send, 404, "not served: these pages load scripts of another site")
        else:
            await self.app(scope, receive, _with_headers(send))

    def refusal(self, scope: Scope) -> str | None:
        """Return why a request is refused, or None."""
        hosts, sources = _values(scope, b"host"), _values(scope, b"origin")
        if len(hosts) != 1 or not _LOCAL.fullmatch(hosts[0]):
            return "Host is not this machine's loopback address"
        own = [*self.origins, f"http://{hosts[0]}"]  # the last: through a tunnel, under another port
        return None if all(source in own for source in sources) else "Origin is another site"


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_HEADERS]
        await send(message)

    return sending


async def _refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": reason})
        return
    body = f"{reason}\n".encode()
    head = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        *_HEADERS,
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
