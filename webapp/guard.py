"""What stands before every request: the names that the service answers to, and the headers of each answer."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

from schemas.hosts import Hosts, host_name

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


class Guard:
    """An ASGI application before another one: refuses foreign hosts with 421, adds `HEADERS` to every answer.

    HEAD is answered as GET is, without the body: FastAPI's routes for GET would refuse it.

    Args:
        allowed_hosts: as `Hosts.of` takes them.
    """

    def __init__(self, app: "ASGIApp", allowed_hosts: Iterable[str] = ()) -> None:
        self.app = app
        self._hosts = Hosts.of(allowed_hosts)

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
        if len(given) == 1 and self._hosts.answer_to(host_name(given[0]), scope.get("server")):
            await self.app(scope, receive, send_with_headers)
        else:
            await _refusal(given)(scope, receive, send_with_headers)


def _refusal(given: list[str]) -> JSONResponse:
    name = host_name(given[0]) if len(given) == 1 else None
    if name is None:
        return JSONResponse(
            {"detail": "the request needs one Host header that names this service"}, status_code=400
        )
    name = name[:100]
    text = f"host {name} is not this service's: use its address, or start it with --allowed-hosts {name}"
    return JSONResponse({"detail": text}, status_code=421)
