"""A transport for `requests` whose answers are complete in time, or given up, however slowly they trickle.

The timeouts of requests and urllib3 bound each read of a socket: a server that sends a byte of its headers every few
seconds would hold a connection for days. Here the socket waits for no longer than the whole answer may still take.
The hooks used are public: connection classes of urllib3's pools, `response_class` of `http.client`.
"""

import io
import socket
import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPResponse
from typing import Any

import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection


class DeadlineExceeded(TimeoutError):
    """An answer, headers and body, was not finished in time."""


class DeadlineAdapter(HTTPAdapter):
    """Connections, direct or through a proxy, that bound one read and one whole answer, both in seconds.

    `on_request` is called for every request sent, those that urllib3 repeats by itself too.
    """

    def __init__(self, read: float, deadline: float, on_request: Callable[[], None], **options: Any) -> None:
        self._pools = _pool_classes(read, deadline, on_request)
        super().__init__(**options)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Make the pools of direct connections."""
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, proxy: str, **options: Any) -> urllib3.ProxyManager:
        """Return the pools of connections through a proxy."""
        manager = super().proxy_manager_for(proxy, **options)
        if isinstance(manager, urllib3.ProxyManager) and not proxy.lower().startswith("socks"):
            manager.pool_classes_by_scheme = self._pools
        return manager


def _pool_classes(read: float, deadline: float, on_request: Callable[[], None]) -> dict[str, Any]:
    class Answer(_Answer):
        limits = (read, deadline)

    class Plain(HTTPConnection):
        response_class = Answer

        def request(self, *args: Any, **options: Any) -> None:
            on_request()
            super().request(*args, **options)

    class Secure(HTTPSConnection):
        response_class = Answer

        def request(self, *args: Any, **options: Any) -> None:
            on_request()
            super().request(*args, **options)

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


class _Answer(HTTPResponse):
    """An answer, headers and body, that is read before its deadline."""

    limits: tuple[float, float]  # seconds: of one read, of the whole

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        read, deadline = self.limits
        wait = partial(_wait_at_most, sock, read, deadline, time.monotonic() + deadline)
        self.fp = io.BufferedReader(_Timed(self.fp.detach(), wait))  # type: ignore[attr-defined]


def _wait_at_most(sock: socket.socket, read: float, deadline: float, until: float) -> None:
    left = until - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded(f"timed out: not finished in {deadline:g} s")
    sock.settimeout(min(read, left))


class _Timed(io.RawIOBase):
    """A socket's bytes; before each read `wait` sets how long it may take."""

    def __init__(self, raw: io.RawIOBase, wait: Callable[[], None]) -> None:
        self._raw, self._wait = raw, wait

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._wait()
        try:
            return self._raw.readinto(buffer)  # type: ignore[attr-defined]
        except TimeoutError:
            self._wait()  # raises if it was the deadline that cut the read short
            raise

    def close(self) -> None:
        self._raw.close()
        super().close()
