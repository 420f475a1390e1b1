"""Leases: who may change what several machines share, for as long as the hold is renewed.

A lock file (`locks.py`) holds on one machine. Between machines a server has to grant the hold, and to take it back from
a holder that is gone: the orchestrator's, which all of them ask. This package knows no orchestrator: `use` is told how
to get a lease. A holder that could not renew in time must write no more; `check_held` says so.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol


class Lease(Protocol):
    """A hold that ends by itself."""

    name: str

    def check(self) -> None:
        """Raise `CpbError` (code `lease-lost`) where another may hold it by now."""


Grantor = Callable[[str], AbstractContextManager[Lease] | None]
"""Returns a hold on the lease of a name, which waits for another's to end; None where there is no server to ask."""

_grantor: Grantor | None = None
_held: ContextVar[tuple[Lease, ...]] = ContextVar("cpb_leases", default=())


def use(grantor: Grantor | None) -> None:
    """Say how this process gets leases."""
    global _grantor
    _grantor = grantor


@contextmanager
def leased(name: str) -> Iterator[bool]:
    """Hold the lease of a name; yields whether other machines are kept out by it. Within a hold of it, it holds.

    Raises:
        CpbError: the server that grants leases cannot be asked, or the lease was lost (from `check_held`).
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
    """Raise `CpbError` where a lease that the caller works under was lost; to be called before each write."""
    for lease in _held.get():
        lease.check()
