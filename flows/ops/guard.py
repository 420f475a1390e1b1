"""The guard before every server of cpb: checks of Host, Origin and password, and the headers of each response.

Any page in a browser on this machine can reach a local port, but the origin of its requests is visible: a name that was
rebound to this machine appears in `Host`, another site in `Origin`. Other users and programs on the machine can reach
the port too, so they need the password unless everything is public.
"""

import base64
import hmac
import ipaddress
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from flows.ops.listeners import Listener
from schemas.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(:[0-9]{1,5})?")


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


class Guard:
    """ASGI middleware that responds 403 or 421 to foreign requests, and 401 without the password.

    Args:
        hosts: allowed host names, as `Hosts.of` takes them.
        origins: origins of the server's own page, in addition to the Host of a request.
        auth: `USER:PASSWORD`, which every request must carry as HTTP Basic; empty if the guard asks for none.
    """

    def __init__(
        self, app: "ASGIApp", listener: Listener, hosts: Iterable[str] = (), origins: Sequence[str] = (),
        auth: str = "",
    ) -> None:  # fmt: skip
        self._app, self._listener, self._auth = app, listener, base64.b64encode(auth.encode())
        self._hosts, self._origins = Hosts.of(hosts), tuple(origins)

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
        elif self._auth and not self._has_password(headers):
            ask = {"www-authenticate": 'Basic realm="cpb", charset="UTF-8"', "cache-control": "no-store"}
            await _answer(scope, send, 401, "this server requires its user and password", ask)
        else:
            await self._app(scope, receive, send)

    def _has_password(self, headers: Headers) -> bool:
        given = headers.getlist("authorization")
        kind, _, shown = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        return kind.lower() == "basic" and hmac.compare_digest(shown.strip().encode(), self._auth)

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
    body = json.dumps({"detail": reason}).encode()
    head = {"content-type": "application/json", "content-length": str(len(body))} | (more or {})
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
