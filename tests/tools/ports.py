"""A port for a server that a test starts."""

import secrets
import socket
from contextlib import suppress


def free_port():
    """A port below those that Linux gives to outgoing connections: it stays free while a server is started again."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)  # also where processes have the same seed
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
