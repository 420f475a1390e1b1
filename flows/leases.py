"""Leases of the Prefect server in use, which all machines of an installation share.

Each is a global concurrency limit of one slot (on Prefect's page under Concurrency), taken with a lease that a thread
renews. The slot of a process that was killed, cut off or put to sleep is free again after a minute. Not
`prefect.concurrency`: it waits where Ctrl-C does not reach it, and a lost lease ends the holder between any two
instructions. Here the holder is asked before each write, by a clock that runs on while the machine sleeps.
"""

import contextvars
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from flows.prefect_server import client_of_settings, server_in_use
from schemas.errors import CpbError
from tasks.storage.leases import use
from tasks.storage.urls import public_url
from tasks.storage.waiting import pause

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import ConcurrencyLeaseHolder

LEASE_S = 60.0
"""Seconds that a lease holds without renewal: the shortest that the server grants."""
_RENEW_S = 15.0
_MARGIN_S = 10.0
"""The holder stops so long before the lease ends: the request that it makes last takes a while."""
_POLL_S = 1.0
_TIMEOUT_S = 10.0
_LOCKED = 423

log = logging.getLogger("cpb")


def share_leases() -> None:
    """Let this process hold leases of the Prefect server in use, if there is one when the first is asked for."""
    use(lambda name: hold(name) if server_in_use() else None)


class PrefectLease:
    """One lease: what the server calls it, and until when it surely holds."""

    def __init__(self, name: str, lease_id: "UUID", asked_at: float, url: str) -> None:
        self.name, self.id = name, lease_id
        self._until, self._url = asked_at + LEASE_S, url

    def renewed(self, asked_at: float) -> None:
        """Count from the moment at which a renewal was asked for."""
        self._until = asked_at + LEASE_S

    def lost(self) -> None:
        """Say that the server does not know it any more."""
        self._until = 0.0

    def check(self) -> None:
        """Raise `CpbError` where another may hold it by now."""
        if clock() > self._until - _MARGIN_S:
            raise CpbError(
                f"the lease {self.name} of the Prefect server {public_url(self._url)} could not be renewed in time, so "
                "another machine may hold it: nothing more was written; run the same command again",
                code="lease-lost", field=self.name,
            )  # fmt: skip


def clock() -> float:
    """Return seconds that also pass while the machine sleeps, where the system counts them."""
    kind = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if kind is None else time.clock_gettime(kind)


@contextmanager
def hold(name: str) -> Iterator[PrefectLease]:
    """Wait for the lease of a name, hold it and give it back.

    Raises:
        CpbError: the server cannot be reached, or refuses the credentials.
    """
    with client_of_settings(_TIMEOUT_S) as client:
        lease = _wait_for(client, name)
        ended = threading.Event()
        # a copy: Prefect's settings are the context's
        renewing = threading.Thread(
            target=contextvars.copy_context().run,
            args=(_renew, lease, ended),
            name=f"lease-{name}",
            daemon=True,
        )
        renewing.start()
        try:
            yield lease
        finally:
            ended.set()
            renewing.join(_TIMEOUT_S)
            _give_back(client, lease)


def _wait_for(client: "SyncPrefectClient", name: str) -> PrefectLease:
    told = False
    while (lease := _acquire(client, name)) is None:
        if not told:
            log.info("waiting for the lease %s, which another process or machine holds", name)
            told = True
        pause(_POLL_S)
    return lease


def _acquire(client: "SyncPrefectClient", name: str) -> PrefectLease | None:
    """Return the lease, or None where another holds it now."""
    import httpx
    from prefect.client.schemas.responses import ConcurrencyLimitWithLeaseResponse
    from prefect.exceptions import ObjectAlreadyExists

    while True:
        asked_at = clock()
        try:
            answer = client.increment_concurrency_slots_with_lease(
                [name], 1, "concurrency", LEASE_S, _holder()
            )
        except httpx.HTTPStatusError as error:
            if error.response.status_code != _LOCKED:
                raise
            return None
        granted = ConcurrencyLimitWithLeaseResponse.model_validate(answer.json())
        if granted.limits:
            return PrefectLease(name, granted.lease_id, asked_at, str(client.api_url))
        with suppress(ObjectAlreadyExists):  # made by another machine a moment ago
            client.upsert_global_concurrency_limit_by_name(name, 1)


def _holder() -> "ConcurrencyLeaseHolder | None":
    """Return the flow run that asks, if one does: then `cpb deploy` frees the lease of a killed one at once."""
    from prefect.client.schemas.objects import ConcurrencyLeaseHolder
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    run = context.flow_run if context else None
    return ConcurrencyLeaseHolder(type="flow_run", id=run.id) if run else None


def _renew(lease: PrefectLease, ended: threading.Event) -> None:
    """Renew the lease until the holder has ended, or the server has given it to another."""
    import httpx
    from prefect.exceptions import ObjectNotFound

    wait = _RENEW_S
    while not ended.wait(wait):
        asked_at = clock()
        try:
            with client_of_settings(_TIMEOUT_S) as client:
                client.renew_concurrency_lease(lease.id, LEASE_S)
        except CpbError as error:
            cause = error.__cause__
            gone = isinstance(cause, httpx.HTTPStatusError) and cause.response.status_code in (404, 410)
            if gone or isinstance(cause, ObjectNotFound):
                lease.lost()
                return
            log.debug("the lease %s was not renewed: %s", lease.name, error)
            wait = _POLL_S  # until the holder sees that it has ended
        else:
            lease.renewed(asked_at)
            wait = _RENEW_S


def _give_back(client: "SyncPrefectClient", lease: PrefectLease) -> None:
    import httpx

    try:
        client.release_concurrency_slots_with_lease(lease.id)
    except httpx.HTTPError as error:  # what was done under it is done; it ends by itself
        log.info("the lease %s was not given back (%s); it ends within a minute", lease.name, error)
