"""Leases on the configured Prefect server, shared by all machines of an installation.

Each lease is a global concurrency limit with a single slot (under Concurrency on Prefect's page); a thread renews it.
The slot of a process that was killed, disconnected or suspended becomes free after a minute. `prefect.concurrency` is
not used because its waiting cannot be interrupted by Ctrl-C, and losing the lease raises at an arbitrary instruction.
Here the holder checks the lease before each write, with a clock that also advances while the machine sleeps.
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
from tasks.storage.locks import pause, use
from tasks.storage.urls import public_url

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import ConcurrencyLeaseHolder

LEASE_S = 60.0
"""Seconds that a lease is valid without renewal: the shortest time that the server grants."""
_RENEW_S = 15.0
_MARGIN_S = 10.0
"""Seconds before the end of the lease at which the holder stops, to leave time for its last request."""
_POLL_S = 1.0
_TIMEOUT_S = 10.0
_LOCKED = 423

log = logging.getLogger("cpb")


def share_leases() -> None:
    """Let this process use leases of the Prefect server, if a server is configured when a lease is first requested."""
    use(lambda name: hold(name) if server_in_use() else None)


class PrefectLease:
    """A lease: its name and id on the server, and the time until which it is certainly valid."""

    def __init__(self, name: str, lease_id: "UUID", asked_at: float, url: str) -> None:
        self.name, self.id = name, lease_id
        self._until, self._url = asked_at + LEASE_S, url

    def renewed(self, asked_at: float) -> None:
        """Extend the lease, counted from the time at which the renewal was requested."""
        self._until = asked_at + LEASE_S

    def lost(self) -> None:
        """Record that the server no longer has the lease."""
        self._until = 0.0

    def check(self) -> None:
        """Raise `CpbError` if another process may hold the lease by now."""
        if clock() > self._until - _MARGIN_S:
            raise CpbError(
                f"the lease {self.name} of the Prefect server {public_url(self._url)} could not be renewed in time, so "
                "another machine may hold it: nothing more was written; run the same command again",
                code="lease-lost", field=self.name,
            )  # fmt: skip


def clock() -> float:
    """Return a clock in seconds that also advances while the machine sleeps, if the system provides it."""
    kind = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if kind is None else time.clock_gettime(kind)


@contextmanager
def hold(name: str) -> Iterator[PrefectLease]:
    """Wait for the lease of a name, hold it in the block, and release it.

    Raises:
        CpbError: the server cannot be reached, or rejects the credentials.
    """
    with client_of_settings(_TIMEOUT_S) as client:
        lease = _wait_for(client, name)
        ended = threading.Event()
        # a copy of the context, which holds Prefect's settings
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
    """Return the lease, or None if another process holds it."""
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
        with suppress(ObjectAlreadyExists):  # another machine has just created it
            client.upsert_global_concurrency_limit_by_name(name, 1)


def _holder() -> "ConcurrencyLeaseHolder | None":
    """Return the current flow run, if any, so that `cpb deploy` can free the lease of a killed run at once."""
    from prefect.client.schemas.objects import ConcurrencyLeaseHolder
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    run = context.flow_run if context else None
    return ConcurrencyLeaseHolder(type="flow_run", id=run.id) if run else None


def _renew(lease: PrefectLease, ended: threading.Event) -> None:
    """Renew the lease until the holder has ended or the server has given the lease to another process."""
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
            wait = _POLL_S  # until the holder notices the end of the lease
        else:
            lease.renewed(asked_at)
            wait = _RENEW_S


def _give_back(client: "SyncPrefectClient", lease: PrefectLease) -> None:
    import httpx

    try:
        client.release_concurrency_slots_with_lease(lease.id)
    except httpx.HTTPError as error:  # the work is complete, and the lease expires anyway
        log.info("the lease %s was not given back (%s); it ends within a minute", lease.name, error)
