"""MLflow's own user interface over cpb's store, with few processes.

One worker and no job runner: 2 processes and 540 MB instead of 15 and 2.1 GB.
"""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import quote

from schemas.errors import CpbError
from tasks.storage.files import open_log
from tasks.storage.locks import temporary_lock
from tasks.storage.urls import public_url
from tasks.tracking.connection import Store
from tasks.tracking.database import is_server, sqlite_path
from tasks.tracking.mlflow_private import SERVER_ENVIRONMENT
from tasks.tracking.reconcile import reconcile
from tasks.tracking.store import open_store
from tasks.tracking.views import views

FILTER = "tags.timeframe = '1h' and tags.market != 'sim' and metrics.test_crps_ratio < 1"
"""Filter of the 1h members that beat the random walk on real candles."""

_LOOK_S = 60.0
"""How often the interface looks for runs whose process has died, which else stand as running."""
_START_SECONDS = 120.0
_STOP_SECONDS = 15.0


@dataclass(frozen=True)
class Address:
    """Where the interface is: addresses by what they show (`views.py`), and the table with the filter applied."""

    url: str
    views: dict[str, str]
    filtered_url: str


def serve_ui(
    host: str = "127.0.0.1", port: int = 5000, ready: Callable[[Address], None] | None = None
) -> None:
    """Run MLflow's interface until interrupted (Ctrl-C or SIGTERM), and stop it cleanly.

    A store that is itself a server has an interface already: then only its address is given.

    Args:
        ready: called once it answers.

    Raises:
        CpbError: there is no store yet, the port is taken, or MLflow does not start.
    """
    store = open_store(create=False)
    if is_server(store.uri):
        _announce(ready, address(public_url(store.uri), store))
        return
    check_port(host, port)
    url = f"http://{host}:{port}"

    def look() -> None:
        if not store.read_only:
            reconcile(store)

    serve_until_stopped(
        _command(host, port), _environment(store), url, _log_file(store),
        lambda: _announce(ready, address(url, store)), look,
    )  # fmt: skip


def serve_until_stopped(
    command: list[str],
    environment: dict[str, str],
    url: str,
    log: Path,
    ready: Callable[[], None],
    look: Callable[[], None] = lambda: None,
) -> None:
    """Run a server of MLflow's app until interrupted (Ctrl-C or SIGTERM), and stop it cleanly.

    Args:
        log: the file that it writes to, begun anew.
        ready: called once it answers at `url`.
        look: called every minute from then on.

    Raises:
        CpbError: it does not start, or ends by itself.
    """
    with open_log(log) as out:
        out.truncate(0)
        server = subprocess.Popen(command, env=environment, start_new_session=True, stdout=out, stderr=out)
    # SIGINT too: a shell starts background commands with it ignored.
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        _wait_until_up(server, url, log)
        ready()
        looked = -_LOOK_S
        while server.poll() is None:
            if time.monotonic() - looked >= _LOOK_S:
                look()
                looked = time.monotonic()
            # Not `wait()`: a signal that the kernel hands to a library's thread does not wake the main one.
            time.sleep(0.2)
        raise CpbError(
            f"MLflow's server ended by itself with code {server.returncode}; read {log}", code="ui"
        )
    except KeyboardInterrupt:
        return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _stop(server)


def address(url: str, store: Store) -> Address:
    """Return the addresses of the interface at `url`; the views behind them are stored, unless this may only read."""
    found = views(store)
    for view in found if not store.read_only else ():
        view.keep(store)
    runs = f"{url}/#/experiments/{store.experiment_id}/runs"
    members = f"searchFilter={quote(FILTER)}&orderByKey={quote('metrics.`test_crps_ratio`')}&orderByAsc=true"
    return Address(url, {view.about: view.link(url, store) for view in found}, f"{runs}?{members}")


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


def _command(host: str, port: int) -> list[str]:
    options = {"--workers": "1", "--host": host, "--port": str(port)}
    return [sys.executable, "-m", "mlflow", "server", *(part for pair in options.items() for part in pair)]


def _log_file(store: Store) -> Path:
    database = sqlite_path(store.served)
    return database.with_name("ui.log") if database else temporary_lock("ui.log")


def _environment(store: Store) -> dict[str, str]:
    """Return the server's environment. It holds the store's URI, which on a command line would show a password."""
    lean = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    return os.environ | lean | dict.fromkeys(SERVER_ENVIRONMENT, store.served)


def _wait_until_up(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise CpbError(f"MLflow's server did not start (code {server.returncode}); read {log}", code="ui")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise CpbError(
        f"MLflow's server did not answer at {url} within {_START_SECONDS:.0f} s; read {log}", code="ui"
    )


def _announce(ready: Callable[[Address], None] | None, where: Address) -> None:
    if ready:
        ready(where)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _stop(server: "subprocess.Popen[bytes]") -> None:
    """End the server and its worker; its own session keeps a terminal's Ctrl-C from reaching it first."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
