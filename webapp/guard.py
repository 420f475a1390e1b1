"""What stands before every request: the names that the service answers to, and the headers of each answer.

A page of another origin can give its own name the address of this machine (DNS rebinding); the browser would then
let it read the answers. Such a request still carries the foreign name as its Host, and is refused by it.
"""

import ipaddress
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

from schemas.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    # No script, style, font or image of anyone else's, no inline script, no eval, and no page may frame this one.
    # plotly sets styles inline, and saves a figure by drawing it as an image of its own.
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(:[0-9]{1,5})?")


class Guard:
    """An ASGI application before another one: refuses foreign hosts with 421, adds `HEADERS` to every answer.

    HEAD is answered as GET is, without the body: FastAPI's routes for GET would refuse it.

    Loopback names and addresses are always answered to, and so is the address by which a request arrived: only
    names can be rebound. Other names, such as a proxy's, must be in `allowed_hosts`.
    """

    def __init__(self, app: "ASGIApp", allowed_hosts: Iterable[str] = ()) -> None:
        self.app = app
        self.allowed = {"localhost", *map(_checked, allowed_hosts)}

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:  # noqa: D102 - ASGI's
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        head = scope["method"] == "HEAD"
        if head:
            scope = {**scope, "method": "GET"}

        async def send_with_headers(message: "Message") -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            elif head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        given = Headers(scope=scope).getlist("host")
        if len(given) == 1 and self._answers_to(host_name(given[0]), scope.get("server")):
            await self.app(scope, receive, send_with_headers)
        else:
            await _refusal(given)(scope, receive, send_with_headers)

    def _answers_to(self, name: str | None, server: tuple[str, int | None] | None) -> bool:
        if name is None:
            return False
        address = _address(name)
        if address is None:
            return name in self.allowed
        arrived_at = _address(server[0]) if server else None
        return address.is_loopback or address == arrived_at or name in self.allowed


def host_name(host: str) -> str | None:
    """Return the name or address in a Host header: in lower case, no port, brackets or final dot; None if malformed."""
    found = _HOST.fullmatch(host.strip().lower())
    return found["name"].strip("[]").removesuffix(".") if found else None


def _checked(host: str) -> str:
    name = host_name(host)
    if not name or "*" in name:
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
    # A listener for both protocols sees 192.168.1.5 as ::ffff:192.168.1.5.
    return getattr(found, "ipv4_mapped", None) or found


def _refusal(given: list[str]) -> JSONResponse:
    name = host_name(given[0]) if len(given) == 1 else None
    if name is None:
        return JSONResponse(
            {"detail": "the request needs one Host header that names this service"}, status_code=400
        )
    name = name[:100]
    text = f"host {name} is not this service's: use its address, or start it with --allowed-hosts {name}"
    return JSONResponse({"detail": text}, status_code=421)
