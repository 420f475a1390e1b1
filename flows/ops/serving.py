"""`serve`: run an application in this process, behind the guard, until a signal ends it.

The foreground command is the server itself, so kill -9 ends both. uvicorn's messages go to stderr, like a command's
warnings; a service's stderr is its log file.
"""

import contextlib
import errno
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from flows.ops.guard import Guard, Hosts
from flows.ops.listeners import LISTENERS, Listener
from schemas.errors import CpbError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_GRACE_S = 10  # for requests in progress at the end
_LOG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"cpb": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"cpb": {"class": "flows.console.ConsoleHandler", "formatter": "cpb"}},
    "loggers": {"uvicorn": {"handlers": ["cpb"], "level": "WARNING", "propagate": False}},
}


def serve(
    listener: Listener, make_app: "Callable[[], ASGIApp]", host: str, port: int, ready: Callable[[str], None], *,
    hosts: Sequence[str] = (), origins: Sequence[str] = (), auth: str = "", **options: Any,
) -> None:  # fmt: skip
    """Serve an application until Ctrl-C, SIGTERM or SIGHUP.

    Args:
        make_app: makes the application, which may take seconds of imports.
        ready: called with the server's URL once it accepts requests.
        hosts, origins, auth: as `Guard` takes them; the host that the server listens on is allowed too.
        options: further settings of uvicorn.

    Raises:
        ValueError: the listener is not in the table, and therefore not tested.
        UsageError: a host name is invalid.
        CpbError: the port cannot be used, or the server does not start.
    """
    if listener not in LISTENERS:
        raise ValueError(f"{listener.name} is not in LISTENERS, so that no test would start it")
    check_port(host, port)
    names = [*hosts, f"[{host}]" if ":" in host else host]
    Hosts.of(names)  # validated before the application is created
    # Also SIGINT, which shells ignore for `command &`. uvicorn raises a signal again after its graceful shutdown.
    with (
        _handled(_interrupt, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        contextlib.suppress(KeyboardInterrupt),
    ):
        config = uvicorn.Config(
            Guard(make_app(), listener, names, origins, auth), host=host, port=port, log_config=_LOG,
            access_log=False, proxy_headers=False, server_header=False, timeout_graceful_shutdown=_GRACE_S, **options,
        )  # fmt: skip
        server = _Server(config, partial(ready, url_of(host, port)))
        with contextlib.suppress(SystemExit):  # by uvicorn, which has printed the reason
            server.run()
        if not server.started:
            raise CpbError(
                f"the server on {host}:{port} did not start; the lines above say why", code="server"
            )


def check_port(host: str, port: int) -> None:
    """Raise `CpbError` naming the remedy if the server cannot listen on the port."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            # an address of another machine is invalid with any port
            wrong = "host" if error.errno == errno.EADDRNOTAVAIL else "port"
            raise CpbError(
                f"{host}:{port} cannot be used ({error.strerror}); choose another {wrong} with --{wrong}",
                code=wrong,
                field=wrong,
            ) from error


def url_of(host: str, port: int) -> str:
    """Return the URL at which this machine reaches a server that listens on this host and port."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"


class _Server(uvicorn.Server):
    """A server that calls `ready` once it listens, and ends on SIGHUP as on SIGTERM."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals(), _handled(self.handle_exit, signal.SIGHUP):
            yield


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], *signals: signal.Signals) -> Iterator[None]:
    """Handle signals, but not a SIGHUP that nohup ignores."""
    with contextlib.ExitStack() as handled:
        for number in signals:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                handled.callback(signal.signal, number, signal.signal(number, handler))
        yield
