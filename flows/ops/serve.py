"""`run_server`: run an application in this process, behind the guard, until a signal ends it.

The foreground command is the server itself, so kill -9 ends both. uvicorn's messages go to stderr, like a command's
warnings; a service's stderr is its log file.
"""

import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from flows.ops.guard import Guard
from flows.ops.half_sent import HalfSentEnds
from flows.ops.listeners import LISTENERS, Listener
from flows.ops.logs import log_once_per_minute
from flows.ops.ports import EVERY_ADDRESS, bind_shared, check_port, network_address
from schemas.errors import CpbError

if TYPE_CHECKING:
    from starlette.types import ASGIApp


_GRACE_S = 10  # for requests in progress at the end
_LOG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"cpb": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"cpb": {"class": "flows.console.ConsoleHandler", "formatter": "cpb"}},
    "loggers": {
        name: {"handlers": ["cpb"], "level": "WARNING", "propagate": False} for name in ("uvicorn", "asyncio")
    },
}


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


def run_server(
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
    end_as_by_ctrl_c()
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


def end_as_by_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does, and SIGINT too, which shells ignore for `command &`."""

    def interrupt(*_signal: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, interrupt)


def url_of(host: str, port: int) -> str:
    """Return the URL at which a server on this host and port is reached; of all addresses the one in the network."""
    name = network_address(host) if host in EVERY_ADDRESS else host
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"
