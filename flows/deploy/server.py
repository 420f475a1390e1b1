"""Entry point of the server process: `python -m flows.deploy.server --port 4200`.

Prefect's own application, on loopback alone, with a password, and behind the guard. Starting it here rather than
by `prefect server start` is what puts the guard in front of it.
"""

import argparse
import os
from pathlib import Path

from flows.deploy.credentials import make_auth
from flows.deploy.guard import Guard, origins
from flows.deploy.logfile import cap_log
from flows.deploy.project import QUIET, prefect_home
from flows.deploy.services import announce, api_of


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m flows.deploy.server", description=__doc__)
    parser.add_argument("--port", type=int, default=4200)
    parser.add_argument(
        "--log", type=Path, help="the file that stdout and stderr go to; its length is limited"
    )
    options = parser.parse_args()
    if options.log:
        cap_log(options.log)
    home = prefect_home()
    # Prefect reads its settings when it is imported. Set here, the password is not even in /proc/PID/environ.
    os.environ |= settings(options.port, home)
    announce("server", options.port, home)

    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    api = get_current_settings().server.api
    uvicorn.run(
        Guard(create_app(final=True), options.port),  # type: ignore[arg-type]
        host="127.0.0.1", port=options.port, log_level="warning", access_log=False, proxy_headers=False,
        server_header=False, timeout_keep_alive=api.keepalive_timeout,
        ws_ping_interval=api.websocket_ping_interval, ws_ping_timeout=api.websocket_ping_timeout,
    )  # fmt: skip


def settings(port: int, home: Path) -> dict[str, str]:
    """Return Prefect's settings for the server process."""
    auth = make_auth(home)
    return QUIET | {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": api_of(port),
        "PREFECT_API_AUTH_STRING": auth,
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins(port)),
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),
        # The default keeps leases in memory: a slot whose holder was killed would stay taken over a restart.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }


if __name__ == "__main__":
    main()
