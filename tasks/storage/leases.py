"""Leases: exclusive access to data shared by several machines, for as long as the lease is renewed.

A lock file (`locks.py`) works on one machine. Between machines a server must grant the lease, and revoke it from a
holder that is gone: the orchestrator's server, used by all machines. This package does not import an orchestrator:
`use` receives a function that returns leases. A holder that could not renew in time must stop writing (`check_held`).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol


class Lease(Protocol):
    """A lease that expires by itself."""

    name: str

    def check(self) -> None:
        """Raise `CpbError` (code `lease-lost`) if another machine may hold it now."""


Grantor = Callable[[str], AbstractContextManager[Lease] | None]
"""Returns a context manager that waits for and holds the named lease; None without a server."""

_grantor: Grantor | None = None
_held: ContextVar[tuple[Lease, ...]] = ContextVar("cpb_leases", default=())


def use(grantor: Grantor | None) -> None:
    """Set the function by which this process gets leases."""
    global _grantor
    _grantor = grantor


@contextmanager
def leased(name: str) -> Iterator[bool]:
    """Hold the named lease; yields whether it excludes other machines. Re-entrant within the same context.

    Raises:
        CpbError: the lease server cannot be reached, or the lease was lost (from `check_held`).
    """
    if any(lease.name == name for lease in _held.get()):
        yield True
        return
    hold = _grantor(name) if _grantor else None
    if hold is None:
        yield False
        return
    with hold as lease:
        token = _held.set((*_held.get(), lease))
        try:
            yield True
        finally:
            _held.reset(token)


def check_held() -> None:
    """Raise `CpbError` if a lease held by the caller was lost; call it before each write."""
    for lease in _held.get():
        lease.check()
