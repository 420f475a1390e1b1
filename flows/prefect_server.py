"""The configured Prefect server: whether it is reachable, checked before a command becomes a flow run, and leases.

Prefect's own settings are used, so that environment variables, profiles, `prefect.toml` and `.env` are respected.

Also leases on that server, shared by all machines of an installation. Each lease is a global concurrency limit with a
single slot (under Concurrency on Prefect's page); a thread renews it. The slot of a process that was killed,
disconnected or suspended becomes free after a minute. `prefect.concurrency` is not used because its waiting cannot be
interrupted by Ctrl-C, and losing the lease raises at an arbitrary instruction. Here the holder checks the lease before
each write, with a clock that also advances while the machine sleeps.
"""

import contextvars
import logging
import os
import shlex
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flows.ops.password_file import PasswordFile
from schemas.errors import CpbError
from tasks.storage.locks import pause, use
from tasks.storage.urls import public_url

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient


ANSWER_WITHIN_S = 9.0


def server_in_use() -> bool:
    """Whether Prefect is configured to use a server; without one, flows run directly."""
    return bool(_api_url())


def check_server() -> None:
    """Send the configured server a request that needs credentials.

    Raises:
        CpbError: within 10 s, if the server cannot be reached (`server-unreachable`) or rejects the credentials
            (`server-auth`).
    """
    url = _api_url()
    failures: list[BaseException] = []
    # in a thread, because neither name resolution nor Prefect's retries respect a time limit
    request = threading.Thread(
        target=contextvars.copy_context().run, args=(_ask, failures), daemon=True, name="check-server"
    )
    request.start()
    request.join(ANSWER_WITHIN_S)
    if request.is_alive():
        raise unreachable(url, f"no answer within {ANSWER_WITHIN_S:.0f} s")
    if failures:
        raise failures[0]


@contextmanager
def api_errors(url: str) -> Iterator[None]:
    """Convert HTTP errors of Prefect's client to `CpbError`."""
    import httpx

    try:
        yield
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise refused(url, status) from error
        raise CpbError(
            f"the Prefect server at {public_url(url)} answered {status} to {error.request.method} "
            f"{error.request.url.path}: {error.response.text[:300]}",
            code="server-error",
        ) from error
    except httpx.TransportError as error:
        raise unreachable(url, str(error) or type(error).__name__) from error


@contextmanager
def client_of_settings(timeout_s: float = 30) -> Iterator["SyncPrefectClient"]:
    """Yield a client of the server in Prefect's settings; HTTP errors are converted as in `api_errors`."""
    from prefect.client.orchestration import get_client

    with (
        api_errors(_api_url()),
        get_client(sync_client=True, httpx_settings={"timeout": timeout_s}) as client,
    ):
        yield client


def prefect_home() -> Path:
    """Return Prefect's folder: `PREFECT_HOME`, or `~/.prefect`."""
    return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser().absolute()


def password_file(home: Path | None = None) -> PasswordFile:
    """Return the file of the API's password in Prefect's folder. The password allows running commands as this user."""
    return PasswordFile(
        (home or prefect_home()) / "cpb-api-auth",
        missing="no server of `cpb deploy` has run with this PREFECT_HOME, or the file was deleted; run "
        "`cpb deploy down`, then `cpb deploy up`",
        remedy="run `cpb deploy down`, delete it, and run `cpb deploy up`, which makes a new one",
    )


def unreachable(url: str, reason: str) -> CpbError:
    """Return the error for a server that does not answer."""
    return CpbError(
        f"no Prefect server answers at PREFECT_API_URL={public_url(url)} ({reason}); start it, as with "
        "`cpb deploy up`, or take PREFECT_API_URL out of the environment or the Prefect profile to run without one",
        code="server-unreachable", field="PREFECT_API_URL",
    )  # fmt: skip


def refused(url: str, status: int) -> CpbError:
    """Return the error for a server that does not accept the credentials."""
    return CpbError(
        f"the Prefect server at PREFECT_API_URL={public_url(url)} refuses the credentials ({status}); set them, "
        "for the server of `cpb deploy up` with: "
        f'export PREFECT_API_AUTH_STRING="$(cat {shlex.quote(str(password_file().path))})"',
        code="server-auth", field="PREFECT_API_AUTH_STRING",
    )  # fmt: skip


def _api_url() -> str:
    from prefect.settings import get_current_settings

    return get_current_settings().api.url or ""


def _ask(failures: list[BaseException]) -> None:
    try:
        with client_of_settings(5) as client:
            client.request("POST", "/flows/filter", json={"limit": 1})
    except Exception as error:  # noqa: BLE001 - raised in the caller's thread
        failures.append(error)


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
        self.until, self._url = asked_at + LEASE_S, url

    def check(self) -> None:
        """Raise `CpbError` if another process may hold the lease by now."""
        if clock() > self.until - _MARGIN_S:
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
    reported = False
    while (lease := _acquire(client, name)) is None:
        if not reported:
            log.info("waiting for the lease %s, which another process or machine holds", name)
            reported = True
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
            answer = client.increment_concurrency_slots_with_lease([name], 1, "concurrency", LEASE_S)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != _LOCKED:
                raise
            return None
        granted = ConcurrencyLimitWithLeaseResponse.model_validate(answer.json())
        if granted.limits:
            return PrefectLease(name, granted.lease_id, asked_at, str(client.api_url))
        with suppress(ObjectAlreadyExists):  # another machine has just created it
            client.upsert_global_concurrency_limit_by_name(name, 1)


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
                lease.until = 0.0
                return
            log.debug("the lease %s was not renewed: %s", lease.name, error)
            wait = _POLL_S  # until the holder notices the end of the lease
        else:
            lease.until = asked_at + LEASE_S  # counted from the time at which it was requested
            wait = _RENEW_S


def _give_back(client: "SyncPrefectClient", lease: PrefectLease) -> None:
    import httpx

    try:
        client.release_concurrency_slots_with_lease(lease.id)
    except httpx.HTTPError as error:  # the work is complete, and the lease expires anyway
        log.info("the lease %s was not given back (%s); it ends within a minute", lease.name, error)
