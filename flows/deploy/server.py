"""Entry point of the server process: `python -m flows.deploy.server --port 4200`.

Prefect's own application, on loopback alone, with a password, and behind the guard (`flows/ops`). Starting it here
rather than by `prefect server start` is what puts the guard in front of it.
"""

import os
from functools import partial

from flows.deploy.services import announce, entry_port, settings
from flows.ops.listeners import PREFECT
from flows.ops.serving import serve
from flows.prefect_server import password_file, prefect_home


def main() -> None:
    """Serve until a signal arrives."""
    port = entry_port("server", __doc__)
    # Prefect reads its settings on import. Set here, the password does not appear in /proc/PID/environ.
    os.environ |= settings(port, prefect_home()) | server_settings(port)
    announce("server", port)

    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    api = get_current_settings().server.api
    serve(
        PREFECT, partial(create_app, final=True), "127.0.0.1", port, lambda url: None,
        origins=origins(port), timeout_keep_alive=api.keepalive_timeout,
        ws_ping_interval=api.websocket_ping_interval, ws_ping_timeout=api.websocket_ping_timeout,
    )  # fmt: skip


def origins(port: int) -> list[str]:
    """Return the origins of the server's own page, which calls the API by address even if it was opened by name."""
    return [f"http://127.0.0.1:{port}", f"http://localhost:{port}"]


def server_settings(port: int) -> dict[str, str]:
    """Return the additional Prefect settings of the server."""
    auth = password_file().make()
    return {
        "PREFECT_API_AUTH_STRING": auth,
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins(port)),
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),
        # The default storage is memory: after a restart, the slot of a killed holder would stay taken.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }


if __name__ == "__main__":
    main()
