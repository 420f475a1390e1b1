"""`serve`: an application in this process, behind the guard, until a signal ends it.

The foreground command is the server itself, so kill -9 ends both. Where more processes answer, they end with the one
that started them. uvicorn's messages go to stderr, as warnings of a command do; a service's stderr is its log file.
"""

import contextlib
import errno
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from flows.ops.guard import Guard, Hosts, SignIn
from flows.ops.listeners import LISTENERS, Listener
from schemas.errors import CpbError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_START_FAILED = 3  # uvicorn's exit code: the supervisor does not start such a worker again
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
    hosts: Sequence[str] = (), origins: Sequence[str] = (), sign_in: SignIn | None = None, workers: int = 1,
    **options: Any,
) -> None:  # fmt: skip
    """Serve an application until Ctrl-C, SIGTERM or SIGHUP.

    Args:
        make_app: makes the application, in each process that serves; with several workers it must be picklable.
        ready: called with the server's address once it can be asked.
        hosts, origins, sign_in: as `Guard` takes them; the name that it listens on is allowed too.
        options: more settings of uvicorn.

    Raises:
        ValueError: the listener is not in the table, and so not in its test.
        UsageError: a host is none.
        CpbError: the port cannot be used, or the server does not start.
    """
    if listener not in LISTENERS:
        raise ValueError(f"{listener.name} is not in LISTENERS, so that no test would start it")
    check_port(host, port)
    names = [*hosts, f"[{host}]" if ":" in host else host]
    Hosts.of(names)
    config = uvicorn.Config(
        partial(_guarded, listener, make_app, names, tuple(origins), sign_in), factory=True, host=host, port=port,
        workers=workers, log_config=_LOG, access_log=False, proxy_headers=False, server_header=False,
        timeout_graceful_shutdown=_GRACE_S, **options,
    )  # fmt: skip
    with _interruptible():
        announce = partial(ready, url_of(host, port))
        if _run_workers(config, announce) if workers > 1 else _run(config, announce):
            return
        raise CpbError(f"the server on {host}:{port} did not start; the lines above say why", code="server")


def check_port(host: str, port: int) -> None:
    """Raise `CpbError` naming the remedy where the port cannot be listened on."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            # an address of another machine is wrong with every port
            wrong = "host" if error.errno == errno.EADDRNOTAVAIL else "port"
            raise CpbError(
                f"{host}:{port} cannot be used ({error.strerror}); choose another {wrong} with --{wrong}",
                code=wrong,
                field=wrong,
            ) from error


def url_of(host: str, port: int) -> str:
    """Return the address by which this machine asks a server that listens there."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"


def _guarded(
    listener: Listener, make_app: "Callable[[], ASGIApp]", hosts: list[str], origins: tuple[str, ...],
    sign_in: SignIn | None,
) -> "ASGIApp":  # fmt: skip
    parent = multiprocessing.parent_process()
    if parent is None:
        return Guard(make_app(), listener, hosts, origins, sign_in)

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True, name="parent").start()
    try:
        return Guard(make_app(), listener, hosts, origins, sign_in)
    except Exception:
        logging.getLogger("uvicorn.error").exception("the application cannot be made")
        sys.exit(_START_FAILED)


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
        with super().capture_signals(), _handled([signal.SIGHUP], self.handle_exit):
            yield


def _run(config: uvicorn.Config, ready: Callable[[], None]) -> bool:
    """Serve in this process; return whether it started."""
    server = _Server(config, ready)
    try:
        config.load()  # not in the event loop, where Ctrl-C would wait for the seconds that imports take
        server.run()
    except KeyboardInterrupt:  # of `_interruptible`, also after uvicorn's orderly end
        return True
    except SystemExit:  # uvicorn's, which has said why
        return False
    return server.started


class _Workers(Multiprocess):
    """Processes that answer on one socket."""

    def __init__(self, config: uvicorn.Config, listening: socket.socket, ready: Callable[[], None]) -> None:
        super().__init__(config, [listening])
        self._ready = ready
        self.answered = False

    handle_hup = Multiprocess.handle_term  # uvicorn would start new workers

    def keep_subprocess_alive(self) -> None:
        super().keep_subprocess_alive()
        if not self.answered and not self.should_exit.is_set():
            with contextlib.suppress(OSError), socket.create_connection(self.sockets[0].getsockname()[:2], 1):
                self.answered = True  # the socket listens from the first worker's start
                self._ready()


def _run_workers(config: uvicorn.Config, ready: Callable[[], None]) -> bool:
    """Serve in `config.workers` processes; return whether one started."""
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(config.bind_socket()) as listening:
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        workers = _Workers(config, listening, ready)
        if ignored:  # by nohup
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        workers.run()
        return workers.answered or not any(p.exitcode == _START_FAILED for p in workers.processes)
    return True


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Make all signals that ask for an end a KeyboardInterrupt, also SIGINT, which shells ignore for `command &`."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], interrupt):
        yield


@contextlib.contextmanager
def _handled(
    signals: list[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle signals, but not a SIGHUP that nohup ignores."""
    wanted = [s for s in signals if s != signal.SIGHUP or signal.getsignal(s) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in wanted}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
