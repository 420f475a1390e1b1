"""Ports of this machine: whether a server can have one, and holding one against the programs of other users.

A program that listens on the port of a server that has died receives what the server's clients send next: Prefect's
clients send the password that runs commands, and execute what the answer asks for. So each of them holds the port: it
binds a socket of its own to it, with SO_REUSEPORT and without listening. The kernel then lets nobody else have the
port but a process of the same user (socket(7): "to prevent port hijacking"); while no server listens, connections are
refused.
"""

import errno
import os
import socket
from ipaddress import ip_address

from schemas.errors import CpbError

TAKEN = "port-taken"
"""Code of the error about a port that another program has."""


EVERY_ADDRESS = {"0.0.0.0": ("192.0.2.1", "127.0.0.1"), "::": ("2001:db8::1", "::1")}
"""Host that means every address of this machine -> an address of documentation, to which there is a route; loopback."""


def is_loopback(host: str) -> bool:
    """Whether a server that listens on this host is reached by this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def network_address(every: str) -> str:
    """Return this machine's address in its network, for a host of `EVERY_ADDRESS`; loopback without a network."""
    outside, loopback = EVERY_ADDRESS[every]
    with socket.socket(_family(every), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((outside, 9))  # chooses the address, and sends nothing
        except OSError:
            return loopback
        address: str = probe.getsockname()[0]
        return address


def check_port(host: str, port: int) -> None:
    """Raise `CpbError` naming the remedy if the server cannot listen on the port."""
    with _socket(host) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise _refused(host, port, error) from error


def bind_shared(host: str, port: int) -> socket.socket:
    """Return a socket for a server to listen with, beside those that hold the port for its clients.

    Raises:
        CpbError: another server, or a program of another user, has the port.
    """
    bound = _socket(host)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _refused(host, port, error) from error
    with _socket(host) as probe:
        is_served = probe.connect_ex((host, port)) == 0
    if (
        is_served
    ):  # by another server of the same user, on a shared port: each would get a part of the requests
        bound.close()
        raise _refused(host, port, OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)))
    return bound


def hold(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Return a socket that holds the port against other users until it is closed, or this process ends.

    A server of this user that listens by `bind_shared` may be there, or start later.

    Raises:
        CpbError: (code `TAKEN`) another program has the port.
    """
    held = _socket(host)
    # Without SO_REUSEADDR, which would let others bind beside a socket that does not listen.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise CpbError(
            f"another program has port {port} ({error.strerror}), so nothing is sent there; end that program or choose "
            "another port: `cpb deploy down`, then `cpb deploy up --port PORT`",
            code=TAKEN,
            field="port",
        ) from error
    return held


def _socket(host: str) -> socket.socket:
    return socket.socket(_family(host))


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _refused(host: str, port: int, error: OSError) -> CpbError:
    # a name of nothing, or an address of another machine, is invalid with any port
    wrong = "port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "host"
    return CpbError(
        f"{host}:{port} cannot be used ({error.strerror}); choose another {wrong} with --{wrong}",
        code=wrong,
        field=wrong,
    )
