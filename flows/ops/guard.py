"""The guard before every server of cpb: checks of Host, Origin and password, and the headers of each response.

Any page in a browser on this machine can reach a local port, but the origin of its requests is visible: a name that was
rebound to this machine appears in `Host`, another site in `Origin`. Other users and programs on the machine can reach
the port too, so they need the password unless everything is public.
"""

import asyncio
import base64
import binascii
import hmac
import ipaddress
import json
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser

from flows.ops.listeners import Listener
from schemas.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(:[0-9]{1,5})?")

CODE_S = 60.0
PATH = "/sign-in"

MAX_UNSIGNED = 20
SIGN_IN_S = 5.0
"""Websockets that have not signed in: their maximum number, and the maximum time for signing in."""
_TRY_AGAIN_LATER, _POLICY = 1013, 1008  # RFC 6455's close codes

_NO_STORE = {"cache-control": "no-store"}


@dataclass(frozen=True)
class Hosts:
    """Allowed host names, in addition to loopback and the address at which a request arrived.

    A page of another origin can point its own name to this machine's address (DNS rebinding), and the browser would
    then let it read the responses. Such a request still has the foreign name as its Host, and is therefore rejected.
    Only names can be rebound, so addresses are safe. Other names, such as a proxy's, must be allowed explicitly.
    """

    names: frozenset[str]

    @classmethod
    def of(cls, allowed: Iterable[str] = ()) -> "Hosts":
        """Return the allowed names; raises `UsageError` for an invalid name."""
        return cls(frozenset({"localhost", *map(_checked, allowed)}))

    def answer_to(self, name: str | None, server: tuple[str, int | None] | None) -> bool:
        """Whether to accept a request for a host's name (`host_name`) that arrived at `server` (ASGI's)."""
        if name is None:
            return False
        address = _address(name)
        if address is None:
            return name in self.names
        arrived_at = _address(server[0]) if server else None
        return address.is_loopback or address == arrived_at or name in self.names


def host_name(host: str) -> str | None:
    """Return the name or address in a Host header: in lower case, no port, brackets or final dot; None if malformed."""
    found = _HOST.fullmatch(host.strip().lower())
    return found["name"].strip("[]").removesuffix(".") if found else None


def _checked(host: str) -> str:
    name = host_name(host)
    if not name or "*" in name or "," in name:
        raise UsageError(
            f"allowed_hosts {host!r} is not a host: name hosts without wildcards, as in forecasts.example.com,10.0.0.5",
            code="host", field="allowed_hosts",
        )  # fmt: skip
    return name


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        return None
    # A dual-stack listener sees 192.168.1.5 as ::ffff:192.168.1.5.
    return getattr(found, "ipv4_mapped", None) or found


@dataclass
class SignIn:
    """The password of a server, and the codes and cookies accepted instead of it while the server runs.

    A program sends the password as HTTP Basic. A browser opens a link with a code that is valid once and for a minute,
    and receives a cookie, so that no password appears in a URL, a history or on a command line.

    Args:
        auth: `USER:PASSWORD`.
        cookie: the cookie's name, which distinguishes the ports of a host. Empty: no codes and no cookie.
        landing: path to which a browser is sent once it is signed in.
    """

    auth: str
    cookie: str = ""
    landing: str = "/"
    _session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _codes: dict[str, float] = field(default_factory=dict)

    def new_link(self, url: str) -> str:
        """Return a URL below `url` that signs a browser in, once and within `CODE_S` seconds."""
        code = secrets.token_urlsafe(32)
        self._codes[code] = time.monotonic() + CODE_S
        return f"{url}{PATH}?code={code}"

    def redeem(self, code: str) -> str | None:
        """Return the Set-Cookie header for a code and invalidate the code; None for an invalid code."""
        # A dict lookup is not constant-time, but guessing 256 bits gains nothing from the timing.
        if time.monotonic() > self._codes.pop(code, 0.0):
            return None
        return f"{self.cookie}={self._session}; HttpOnly; SameSite=Strict; Path=/"

    def is_known(self, headers: Headers) -> bool:
        """Whether a request carries the password or the cookie."""
        cookies = cookie_parser("; ".join(headers.getlist("cookie"))) if self.cookie else {}
        if hmac.compare_digest(cookies.get(self.cookie, "").encode(), self._session.encode()):
            return True
        given = headers.getlist("authorization")
        kind, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        try:
            shown = base64.b64decode(text.strip(), validate=True)
        except (binascii.Error, ValueError):
            return False
        return kind.lower() == "basic" and hmac.compare_digest(shown, self.auth.encode())


class SocketLimit:
    """ASGI middleware that limits the websockets that have not signed in.

    Prefect asks for the password in a socket's first message and waits for it without limit. Each waiting socket takes
    one of the 100 requests that Prefect handles at a time, so 100 silent sockets would block its API.

    A socket has signed in when the application sends `{"type": "auth_success"}` (Prefect 3.8,
    `server/utilities/subscriptions.py`).
    """

    def __init__(self, app: "ASGIApp") -> None:
        self._app = app
        self._unsigned = 0

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Forward the socket, and close it if it has not signed in in time."""
        if self._unsigned >= MAX_UNSIGNED:
            await send(
                {"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": "too many connections"}
            )
            return
        self._unsigned += 1
        signed_in = False

        async def sending(message: "Message") -> None:
            nonlocal signed_in
            if not signed_in and _is_success(message):
                signed_in = True
                self._unsigned -= 1
                limit.reschedule(None)
            await send(message)

        try:
            async with asyncio.timeout(SIGN_IN_S) as limit:
                await self._app(scope, receive, sending)
        except TimeoutError:
            if not limit.expired():  # raised by the application
                raise
            await send({"type": "websocket.close", "code": _POLICY, "reason": "not signed in in time"})
        finally:
            if not signed_in:
                self._unsigned -= 1


def _is_success(message: "Message") -> bool:
    if message["type"] != "websocket.send" or not message.get("text"):
        return False
    try:
        return json.loads(message["text"]) == {"type": "auth_success"}
    except ValueError:
        return False


class Guard:
    """ASGI middleware that responds 403 or 421 to foreign requests, and 401 without the password.

    Args:
        hosts: allowed host names, as `Hosts.of` takes them.
        origins: origins of the server's own page, in addition to the Host of a request.
        sign_in: the password, if the guard checks it.
    """

    def __init__(
        self, app: "ASGIApp", listener: Listener, hosts: Iterable[str] = (), origins: Sequence[str] = (),
        sign_in: SignIn | None = None,
    ) -> None:  # fmt: skip
        if (listener.asks == "guard") != (sign_in is not None):
            raise ValueError(
                f"{listener.name}: the guard asks for a password where the table says so, and only there"
            )
        self._app, self._listener, self._sign_in = app, listener, sign_in
        self._hosts, self._origins = Hosts.of(hosts), tuple(origins)
        self._sockets: ASGIApp = SocketLimit(app) if listener.asks == "application" else app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Respond to the request, or forward it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        send = self._with_headers(headers.get("host", ""), send)
        if refusal := self._foreign(scope, headers):
            await _answer(scope, send, *refusal)
        elif scope["path"].rstrip("/") in self._listener.hidden_paths:
            await _answer(scope, send, 404, "not served: this page loads scripts of another site")
        elif self._sign_in and scope["path"] == PATH and self._sign_in.cookie:
            await self._redeem(self._sign_in, headers, scope, send)
        elif self._sign_in and not (
            scope["path"] in self._listener.open_paths or self._sign_in.is_known(headers)
        ):
            ask = {"www-authenticate": 'Basic realm="cpb", charset="UTF-8"'} | _NO_STORE
            await _answer(scope, send, 401, "this server requires its user and password", ask)
        else:
            await (self._sockets if scope["type"] == "websocket" else self._app)(scope, receive, send)

    def _foreign(self, scope: "Scope", headers: Headers) -> tuple[int, str] | None:
        """Return status and reason for a request with a foreign Host or Origin; None if it is accepted."""
        hosts = headers.getlist("host")
        name = host_name(hosts[0]) if len(hosts) == 1 else None
        if not self._hosts.answer_to(name, scope.get("server")):
            shown = f"host {name[:100]}" if name else "Host"
            return (
                self._listener.wrong_host,
                f"{shown} is not this server's: use its address, or --allowed-hosts",
            )
        own = (f"http://{hosts[0]}", f"https://{hosts[0]}", *self._origins)  # https: behind a proxy with TLS
        if not all(source in own for source in headers.getlist("origin")):
            return 403, "Origin is another site"
        return None

    async def _redeem(self, sign_in: SignIn, headers: Headers, scope: "Scope", send: "Send") -> None:
        codes = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("code", [""])
        cookie = sign_in.redeem(codes[0]) if scope.get("method") == "GET" else None
        if cookie or sign_in.is_known(headers):
            cookies = {"set-cookie": cookie} if cookie else {}
            await _answer(scope, send, 303, "signed in", cookies | {"location": sign_in.landing} | _NO_STORE)
        else:
            text = (
                "This link was used before, or is older than a minute. For a new one stop `cpb ui` with Ctrl-C and "
                f"start it again, or open http://{headers.get('host')}/ and give the user and the password that are "
                "in the file named by `cpb ui`.\n"
            )
            await _answer(scope, send, 403, text, _NO_STORE | {"content-type": "text/plain; charset=utf-8"})

    def _with_headers(self, host: str, send: "Send") -> "Send":
        """Add the security headers to a response; `host` is only used for accepted requests."""

        async def sending(message: "Message") -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers(host))
            await send(message)

        return sending

    def _headers(self, host: str) -> dict[str, str]:
        policy = self._listener.policy
        if "{sources}" in policy:
            # Older browsers do not treat a websocket of the same host as 'self'.
            hosts = [host] * (host_name(host) is not None) + [o.partition("://")[2] for o in self._origins]
            sources = [*self._origins, *(f"{kind}://{name}" for name in hosts for kind in ("ws", "wss"))]
            policy = policy.replace("{sources}", "".join(f" {source}" for source in sources))
        return {
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "x-frame-options": "DENY" if "frame-ancestors 'none'" in policy else "SAMEORIGIN",
            "referrer-policy": "no-referrer",
        }


async def _answer(
    scope: "Scope", send: "Send", status: int, reason: str, more: dict[str, str] | None = None
) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": reason})
        return
    plain = "content-type" in (more or {})
    body = (reason if plain else json.dumps({"detail": reason})).encode()
    head = {"content-type": "application/json", "content-length": str(len(body))} | (more or {})
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
