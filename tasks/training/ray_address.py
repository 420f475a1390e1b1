"""Checks `RAY_ADDRESS` and Ray's token before anything is fetched, and whether a cluster's head still responds.

Ray itself waits minutes for a missing cluster, and kills a process 60 s after its head was lost. Anyone with the token
can run code on every machine of the cluster, so its file must be readable by its owner only.
"""

import os
import re
import secrets
import socket
import threading
import time
from pathlib import Path

from schemas.errors import CpbError, UsageError
from tasks.storage.files import write_secret

ADDRESS = "RAY_ADDRESS"
"""Ray's variable, HOST:PORT of a cluster's head: if set, runs without a named engine train there.

Ray's `auto` is not used: it tries every cluster on the machine, including those of other users and dead clusters.
"""

AUTH_MODE, TOKEN, TOKEN_FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"

HERE = ("", "local")
"""Addresses for a cluster started on this machine for one command."""

_PLACE = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+):(?P<port>[0-9]{1,5})", re.IGNORECASE)
_ANSWER_WITHIN_S = 5.0
_OTHERS = 0o077

ASK_S, SILENT_S = 2.0, 20.0
"""Seconds between two checks of a head, and seconds without a response after which it counts as lost."""


def check_cluster() -> None:
    """Check the cluster's address and token, and whether something listens there.

    Raises:
        UsageError: the address is invalid.
        CpbError: nothing responds at the address, or other users can read the token.
    """
    address = os.environ.get(ADDRESS, "")
    if address not in HERE:
        host, port = _place(address)
        try:
            socket.create_connection((host, port), _ANSWER_WITHIN_S).close()
        except OSError as error:
            raise unreachable(address, error.strerror or "no answer") from error
    if os.environ.get(AUTH_MODE, "token") == "token" and not os.environ.get(TOKEN):
        _check_token(address)


def unreachable(address: str, reason: str) -> CpbError:
    """Return the error for a cluster that cannot be used."""
    return CpbError(
        f"the Ray cluster {address} cannot be used ({reason}); start it as docs/cluster.md says, with the same Ray, "
        "Python and token on every machine, or train with --engine local",
        code="ray-unreachable", field=ADDRESS,
    )  # fmt: skip


def _place(address: str) -> tuple[str, int]:
    found = _PLACE.fullmatch(address)
    if not found or not 0 < int(found["port"]) < 65536:
        shown = "(not shown, it may hold a password)" if "@" in address else repr(address)
        raise UsageError(
            f"{ADDRESS} {shown} is not HOST:PORT of a cluster's head, as in 10.0.0.5:6379; cpb runs on a machine of "
            "the cluster itself, so Ray's client addresses are not used",
            code="ray-address", field=ADDRESS,
        )  # fmt: skip
    return found["host"].strip("[]"), int(found["port"])


def _check_token(address: str) -> None:
    """Refuse a token readable by others, or a missing token of a remote cluster; create a missing local token."""
    path = Path(os.environ.get(TOKEN_FILE) or "~/.ray/auth_token").expanduser()
    if not path.exists():
        if address not in HERE:
            raise CpbError(
                f"Ray's token {path} is missing: copy it from the head of the cluster {address}, for its owner alone "
                "(mode 600)",
                code="ray-token", field=str(path),
            )  # fmt: skip
        write_secret(path, secrets.token_hex(32))  # Ray would make it readable by all users
        return
    if path.stat().st_mode & _OTHERS:
        raise CpbError(
            f"Ray's token {path} can be read by others, who could run code on the cluster; make a new one, or, where "
            f"nobody else uses this machine, run `chmod 600 {path}`",
            code="ray-token", field=str(path),
        )  # fmt: skip


class Head:
    """A cluster's head. `address`: HOST:PORT of its control service (GCS)."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._place = host.strip("[]"), int(port)
        self._lock, self._asked = threading.Lock(), 0.0
        self._silent_since: float | None = None

    def is_lost(self) -> bool:
        """Whether it has not responded for `SILENT_S`; may be called often, from any thread."""
        with self._lock:
            now = time.monotonic()
            if now - self._asked >= ASK_S:
                self._asked = now
                if self._answers():
                    self._silent_since = None
                elif self._silent_since is None:
                    self._silent_since = now
            return self._silent_since is not None and now - self._silent_since >= SILENT_S

    def _answers(self) -> bool:
        try:
            socket.create_connection(self._place, ASK_S).close()
        except OSError:
            return False
        return True
