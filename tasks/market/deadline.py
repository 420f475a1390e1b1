"""Connections whose answers are complete in time, or given up, however slowly they trickle.

urllib3's timeouts bound each read of a socket: a server that sends a byte of its headers every few seconds
would hold a connection for days. Here the socket waits for no longer than the whole answer may still take.
"""

import io
import socket
import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPResponse
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection


def open_pool(read: float, deadline: float, **options: Any) -> urllib3.PoolManager:
    """Return a pool of connections; `read` bounds one wait and `deadline` one answer, both in seconds."""

    class Answer(_Answer):
        limits = (read, deadline)

    class Plain(HTTPConnection):
        response_class = Answer

    class Secure(HTTPSConnection):
        response_class = Answer

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Secure

    pool = urllib3.PoolManager(**options)
    pool.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}
    return pool


class _Answer(HTTPResponse):
    """An answer, headers and body, that is read before its deadline."""

    limits: tuple[float, float]  # seconds: of one read, of the whole

    def __init__(self, sock: socket.socket, **options: Any) -> None:
        super().__init__(sock, **options)
        read, deadline = self.limits
        wait = partial(_wait_at_most, sock, read, time.monotonic() + deadline)
        self.fp = io.BufferedReader(_Timed(self.fp.detach(), wait))  # type: ignore[attr-defined]


def _wait_at_most(sock: socket.socket, read: float, until: float) -> None:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    sock.settimeout(min(read, left))


class _Timed(io.RawIOBase):
    """A socket's bytes; before each read `wait` says how long it may take."""

    def __init__(self, raw: io.RawIOBase, wait: Callable[[], None]) -> None:
        self._raw, self._wait = raw, wait

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._wait()
        return self._raw.readinto(buffer)  # type: ignore[attr-defined]

    def close(self) -> None:
        self._raw.close()
        super().close()
