"""What stands before MLflow's server: Host, Origin, then the password.

MLflow keeps foreign pages from writing, but answers reads of anyone who reaches the port, and lets every page of
localhost write. Here a request has to name this server, come from its own page or from no page, and know the password;
only `/health` answers without it.
"""

import base64
import binascii
import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING

from schemas.hosts import Hosts, host_name

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_OPEN = "/health"
_ASK = (b"www-authenticate", b'Basic realm="cpb tracking server", charset="UTF-8"')


class Guard:
    """An ASGI application before another one: answers 403 to foreign requests and 401 without the password.

    Args:
        auth: `USER:PASSWORD`.
        hosts: names that it answers to, as `Hosts.of` takes them.
    """

    def __init__(self, app: "ASGIApp", auth: str, hosts: Iterable[str] = ()) -> None:
        self.app, self._auth = app, auth.encode()
        self._hosts = Hosts.of(hosts)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer, or hand the request on without its Origin, which has been judged."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif reason := self._refusal(scope):
            await _answer(scope, send, 403, reason)
        elif scope["path"] != _OPEN and not self._knows_password(scope):
            await _answer(scope, send, 401, "this server asks for its user and password", _ASK)
        else:
            # MLflow knows no name of its own, and would refuse its own page's requests under any but localhost.
            headers = [(name, value) for name, value in scope["headers"] if name != b"origin"]
            await self.app({**scope, "headers": headers}, receive, send)

    def _refusal(self, scope: "Scope") -> str:
        hosts, sources = _values(scope, b"host"), _values(scope, b"origin")
        name = host_name(hosts[0]) if len(hosts) == 1 else None
        if not self._hosts.answer_to(name, scope.get("server")):
            return "Host is not this server's: use its address, or start it with --allowed-hosts"
        own = (f"http://{hosts[0]}", f"https://{hosts[0]}")
        return "" if all(source in own for source in sources) else "Origin is another site"

    def _knows_password(self, scope: "Scope") -> bool:
        given = _values(scope, b"authorization")
        kind, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        try:
            told = base64.b64decode(text.strip(), validate=True)
        except (binascii.Error, ValueError):
            return False
        return kind.lower() == "basic" and hmac.compare_digest(told, self._auth)


def _values(scope: "Scope", name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


async def _answer(scope: "Scope", send: "Send", status: int, reason: str, *more: tuple[bytes, bytes]) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": reason})
        return
    body = f"{reason}\n".encode()
    head = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()),
            (b"x-content-type-options", b"nosniff"), (b"x-frame-options", b"DENY"), *more]  # fmt: skip
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
