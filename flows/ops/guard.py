"""The guard before every server of cpb: checks of Host, Origin and password, and the headers of each response.

Any page in a browser on this machine can reach a local port, but the origin of its requests is visible: a name that was
rebound to this machine appears in `Host`, another site in `Origin`. Other users and programs on the machine can reach
the port too, so they need the password unless everything is public. The rules of each server: `flows.ops.listeners`.
"""

import base64
import hmac
import ipaddress
import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from flows.ops.listeners import PAGE, Listener
from schemas.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(:[0-9]{1,5})?")


class Guard:
    """ASGI middleware that responds 403 or 421 to foreign requests, and 401 without the password.

    Args:
        hosts: allowed host names, in addition to loopback and the address at which a request arrived.
        origins: origins of the server's own page, in addition to the Host of a request.
        auth: `USER:PASSWORD`, which every request must carry as HTTP Basic; empty if the guard asks for none.

    Raises:
        UsageError: a host name is invalid.
    """

    def __init__(
        self,
        app: "ASGIApp",
        listener: Listener,
        hosts: Iterable[str] = (),
        origins: Sequence[str] = (),
        auth: str = "",
    ) -> None:
        self._app, self._listener, self._auth = app, listener, base64.b64encode(auth.encode())
        self._hosts, self._origins = {"localhost", *map(_checked, hosts)}, tuple(origins)
        sources = "".join(f" {origin} {origin.replace('http', 'ws', 1)}" for origin in origins)
        self._headers = {
            "content-security-policy": listener.policy.replace("{sources}", sources),
            "x-content-type-options": "nosniff",
            "x-frame-options": "DENY" if "frame-ancestors 'none'" in listener.policy else "SAMEORIGIN",
            "referrer-policy": "no-referrer",
        }

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Respond to the request, or forward it."""

        async def with_headers(message: "Message") -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif refusal := self._refusal(scope, Headers(scope=scope)):
            await _answer(scope, with_headers, *refusal, asks=bool(self._auth))
        elif scope["type"] == "websocket" and self._listener.own_login:
            await self._app(scope, _after_login(receive, send), with_headers)
        else:
            await self._app(scope, receive, with_headers)

    def _refusal(self, scope: "Scope", headers: Headers) -> tuple[int, str] | None:
        """Return status and reason for a request that is not forwarded."""
        # Lists: of two headers of a name a proxy may believe one, and the application the other.
        hosts, given = headers.getlist("host"), headers.getlist("authorization")
        name = host_name(hosts[0]) if len(hosts) == 1 else None
        if not self._is_this_server(name, scope.get("server")):
            option = ", or --allowed-hosts" if self._listener is PAGE else ""
            return self._listener.wrong_host, f"host {name} is not this server's: use its address{option}"
        # https: behind a proxy with TLS
        allowed = (f"http://{hosts[0]}", f"https://{hosts[0]}", *self._origins)
        if not all(origin in allowed for origin in headers.getlist("origin")):
            return 403, "Origin is another site"
        kind, _, shown = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        is_basic, shown = kind.lower() == "basic", shown.strip()
        # Compared in constant time: how long `==` takes tells how much of a password is right.
        if self._auth and not (is_basic and hmac.compare_digest(shown.encode(), self._auth)):
            return 401, "this server requires its user and password"
        if self._listener.own_login and given and not (is_basic and _is_ascii_base64(shown)):
            return 401, "Authorization is not one header of HTTP Basic with a user and password in ASCII"
        return None

    def _is_this_server(self, name: str | None, server: tuple[str, int | None] | None) -> bool:
        """Whether to accept a request for a host that arrived at `server` (ASGI's).

        A page of another origin can point its own name to this machine's address (DNS rebinding), and the browser would
        then let it read the responses. Such a request has the foreign name as its Host. Addresses cannot be rebound.
        """
        # An address cannot be re-bound, so all of loopback is this machine; a name must be known.
        address = _address(name or "")
        if address is None:
            return name in self._hosts
        return address.is_loopback or name in self._hosts or bool(server and address == _address(server[0]))


def _after_login(receive: "Receive", send: "Send") -> "Receive":
    """Return a `receive` that ends a websocket whose first message is not a login, as if the client had left."""
    is_first = True

    async def checked() -> "Message":
        nonlocal is_first
        message = await receive()
        if message["type"] == "websocket.receive" and is_first:
            is_first = False
            if not _is_login(message.get("text")):
                await send(
                    {"type": "websocket.close", "code": 1008, "reason": "the first message is no login"}
                )
                return {"type": "websocket.disconnect", "code": 1008}
        return message

    return checked


def _is_login(text: str | None) -> bool:
    """Whether a message is a login with a token in ASCII, right or wrong: `{"type": "auth", "token": …}`."""
    try:
        login = json.loads(text or "")
    except (ValueError, RecursionError):
        return False
    token = login.get("token") if isinstance(login, dict) and login.get("type") == "auth" else None
    return isinstance(token, str) and token.isascii()


def _is_ascii_base64(text: str) -> bool:
    try:
        return bool(text) and base64.b64decode(text, validate=True).isascii()
    except ValueError:
        return False


def host_name(host: str) -> str | None:
    """Return the name or address in a Host header: in lower case, no port, brackets or final dot; None if malformed."""
    match = _HOST.fullmatch(host.strip().lower())
    return match["name"].strip("[]").removesuffix(".") if match else None


def _checked(host: str) -> str:
    name = host_name(host)
    if not name or "*" in name or "," in name:
        raise UsageError(
            f"allowed_hosts {host!r} is not a host: name hosts without wildcards, as in forecasts.example.com,10.0.0.5",
            code="host",
            field="allowed_hosts",
        )
    return name


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    # A dual-stack listener sees 192.168.1.5 as ::ffff:192.168.1.5.
    return getattr(address, "ipv4_mapped", None) or address


async def _answer(scope: "Scope", send: "Send", status: int, reason: str, *, asks: bool) -> None:
    # Refused before its handshake: no message of it is read.
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": reason})
        return
    body = json.dumps({"detail": reason}).encode()
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        head.append((b"cache-control", b"no-store"))
        if asks:
            head.append((b"www-authenticate", b'Basic realm="cpb", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
