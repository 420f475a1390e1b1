"""The service on a socket of its own, which tells when it can be asked."""

import socket
import sys
from collections.abc import Callable
from contextlib import suppress

import uvicorn


class Announced(uvicorn.Server):
    """A server that calls `ready` once it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then tell so."""
        await super().startup(sockets)
        if self.started:
            self._ready()


def run(host: str, port: int, ready: Callable[[], None]) -> None:
    """Serve `CPB_HOME` until interrupted; exit code 3, as uvicorn's, where it cannot start."""
    config = uvicorn.Config(
        "webapp.app:from_environment", factory=True, host=host, port=port, log_level="warning"
    )
    server = Announced(config, ready)
    with suppress(KeyboardInterrupt):  # raised again by uvicorn after an orderly end
        server.run()
    if not server.started:
        sys.exit(3)
