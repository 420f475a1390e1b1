"""`serve`: run an application in this process, behind the guard, until a signal ends it; `serve_ui`: MLflow's.

The foreground command is the server itself, so kill -9 ends both. uvicorn's messages go to stderr, like a command's
warnings; a service's stderr is its log file.
"""

import asyncio
import os
import secrets
import signal
import socket
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from flows.ops.guard import LISTENERS, UI, USER, Guard, Listener
from flows.ops.logs import log_once_per_minute
from flows.ops.ports import bind_shared, check_port
from schemas.errors import CpbError
from tasks.storage.urls import public_url

if TYPE_CHECKING:
    from starlette.types import ASGIApp


_GRACE_S = 10  # for requests in progress at the end
REQUEST_S = 10
"""Time from a request's first byte, or from the connection before the first request, to its last byte."""
_BODY_BYTES_S = 16_384
"""Bytes of a body for which a request gets another second: uploads may be long, but not trickle."""
_LOG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"cpb": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"cpb": {"class": "flows.console.ConsoleHandler", "formatter": "cpb"}},
    "loggers": {
        name: {"handlers": ["cpb"], "level": "WARNING", "propagate": False} for name in ("uvicorn", "asyncio")
    },
}


class HalfSentEnds(H11Protocol):
    """HTTP/1.1 that ends connections whose request is not complete in time, which uvicorn would hold for ever.

    uvicorn's only time limit is that of idle connections after an answer, and a single further byte lifts it. A request
    that is complete is never ended, however long its answer takes.
    """

    _deadline: asyncio.TimerHandle | None = None
    _begun = _received = 0.0
    """When the request began (the loop's clock), and how many bytes have come since."""

    def connection_made(self, transport: Any) -> None:
        """Await the first request."""
        super().connection_made(transport)
        self._begin()

    def data_received(self, data: bytes) -> None:
        """Handle bytes of a request; the first after an answer begin another."""
        if self.timeout_keep_alive_task is not None and self.conn.their_state is h11.IDLE:
            self._begin()
        self._received += len(data)
        super().data_received(data)
        self._look()

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request, or end its connection if it is being answered, as only its body is malformed.

        uvicorn would let the answer follow the refusal, or the refusal the answer: h11 raises, with a traceback.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # to the application, the client has left
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        """Await the rest of the request, or the next, parts of which may have come already."""
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Await nothing more."""
        self._stop()
        super().connection_lost(exc)

    def _begin(self) -> None:
        self._stop()
        self._begun, self._received = self.loop.time(), 0.0
        self._deadline = self.loop.call_later(REQUEST_S, self._expire)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _look(self) -> None:
        """Stop the clock of a complete request, and start it for one of which something is still to come."""
        is_open = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        # the connection of a WebSocket has another protocol from its handshake on
        if not is_open or self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._stop()
        elif self._deadline is None:
            self._begin()

    def _expire(self) -> None:
        left = self._begun + REQUEST_S - self.loop.time()
        # after the answer nobody reads the rest of a body
        if self.conn.their_state is h11.SEND_BODY and not self.cycle.response_complete:
            left += self._received / _BODY_BYTES_S
        if self.flow.read_paused:  # by the application, which has not taken what came before
            left = REQUEST_S
        if left > 0:
            self._deadline = self.loop.call_later(left, self._expire)
        elif self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            why = h11.Response(status_code=408, headers=[("connection", "close")], reason=b"Request Timeout")
            for event in (why, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()
        else:
            self.transport.abort()


class _Server(uvicorn.Server):
    """A server that calls `ready` once it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        log_once_per_minute()  # once the application, too, has configured its logging
        if self.started:
            self._ready()


def serve(
    listener: Listener,
    make_app: "Callable[[], ASGIApp]",
    host: str,
    port: int,
    ready: Callable[[str], None],
    *,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    auth: str = "",
    shared: bool = False,
    **options: Any,
) -> None:
    """Serve an application until Ctrl-C, SIGTERM or SIGHUP.

    Args:
        make_app: makes the application, which may take seconds of imports.
        ready: called with the server's URL once it accepts requests.
        hosts, origins, auth: as `Guard` takes them; the host that the server listens on is allowed too.
        shared: clients hold the port too (`flows.ops.ports.hold`).
        options: further settings of uvicorn.

    Raises:
        ValueError: the listener is not in the table, and therefore not tested.
        UsageError: a host name is invalid.
        CpbError: the port cannot be used, or the server does not start.
    """
    if listener not in LISTENERS:
        raise ValueError(f"{listener.name} is not in LISTENERS, so that no test would start it")
    bound = [bind_shared(host, port)] if shared else None
    if bound is None:
        check_port(host, port)
    names = [*hosts, f"[{host}]" if ":" in host else host]

    async def starting(*request: Any) -> None:
        await app(*request)

    # host names are checked before the application is made
    guard = Guard(starting, listener, names, origins, auth)
    _end_as_by_ctrl_c()
    with suppress(KeyboardInterrupt):
        app = make_app()
        config = uvicorn.Config(
            guard,
            host=host,
            port=port,
            http=HalfSentEnds,
            log_config=_LOG,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
            **options,
        )
        server = _Server(config, partial(ready, url_of(host, port)))
        with suppress(SystemExit):  # by uvicorn, which has printed the reason
            server.run(bound)
        if not server.started:
            raise CpbError(
                f"the server on {host}:{port} did not start; the lines above say why", code="server"
            )


def _end_as_by_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does, and SIGINT too, which shells ignore for `command &`."""

    def interrupt(*_signal: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, interrupt)


def url_of(host: str, port: int) -> str:
    """Return the URL at which this machine reaches a server that listens on this host and port."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"


@dataclass(frozen=True)
class Address:
    """Where MLflow's interface is, and how to get in.

    Args:
        url: of the server, for programs.
        runs: page of the experiment's runs.
        views: what a chart shows -> its address (`tasks.tracking.views`); none of them signs in.
        password: of the user `USER` in this run; empty if the store is a server, which has its own users.
    """

    url: str
    runs: str
    views: dict[str, str]
    password: str = ""


def serve_ui(
    host: str = "127.0.0.1", port: int = 5000, ready: Callable[[Address], None] = lambda where: None
) -> None:
    """Run MLflow's own interface over cpb's store, for this user alone, until interrupted.

    MLflow itself requires no password, and anyone with write access can read and write files as its user. So each run
    has a random password (HTTP Basic) in this process alone. A single process without job runner takes 280 MB: MLflow's
    own command starts 15 processes (2.1 GB). A store that is itself a server has its own interface: then only its URL
    is reported.

    Args:
        ready: called once the interface accepts requests.

    Raises:
        CpbError: there is no store yet, the port is in use, or MLflow does not start.
    """
    from tasks.tracking.home_store import is_server
    from tasks.tracking.store import read_store
    from tasks.tracking.views import runs_page, views

    store = read_store()
    shown = views(store)

    def address(url: str, password: str = "") -> Address:
        links = {view.about: view.link(url, store) for view in shown}
        return Address(url, runs_page(url, store), links, password)

    if is_server(store.uri):
        ready(address(public_url(store.uri)))
        return
    password = secrets.token_urlsafe(32)
    # For another --host the guard's check of Host counts alone.
    hosts = "localhost,localhost:*,127.0.0.1,127.0.0.1:*" if host == "127.0.0.1" else "*"
    serve(
        UI,
        partial(_mlflow_app, store.uri, store.artifacts, hosts),
        host,
        port,
        lambda url: ready(address(url, password)),
        auth=f"{USER}:{password}",
    )


def _mlflow_app(uri: str, artifacts: str, hosts: str) -> "ASGIApp":
    """Return the app that `mlflow server` runs, over this store, without job runner.

    Args:
        uri: of the store.
        artifacts: root URI of the artifacts of new experiments.
        hosts: the names that MLflow answers to, as its `--allowed-hosts`.

    `mlflow.server.handlers.initialize_backend_stores` and `mlflow.server.fastapi_app.app`, which reads the
    variables when it is imported.
    """
    os.environ |= {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_SERVER_ALLOWED_HOSTS": hosts}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Starlette's WSGI adapter is deprecated
        from mlflow.server.fastapi_app import app
        from mlflow.server.handlers import initialize_backend_stores

    initialize_backend_stores(uri, uri, artifacts)
    served: ASGIApp = app
    return served
