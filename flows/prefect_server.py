"""Whether a Prefect server is configured and reachable, checked before a command becomes a flow run.

Prefect's own settings are used, so that environment variables, profiles, `prefect.toml` and `.env` are respected.
"""

import contextvars
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from schemas.errors import CpbError
from tasks.storage.urls import public_url

if TYPE_CHECKING:
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
    asked = threading.Thread(
        target=contextvars.copy_context().run, args=(_ask, failures), daemon=True, name="check-server"
    )
    asked.start()
    asked.join(ANSWER_WITHIN_S)
    if asked.is_alive():
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


def unreachable(url: str, reason: str) -> CpbError:
    """Return the error for a server that does not answer."""
    return CpbError(
        f"no Prefect server answers at PREFECT_API_URL={public_url(url)} ({reason}); start it, as with "
        "`cpb deploy up`, or take PREFECT_API_URL out of the environment or the Prefect profile to run without one",
        code="server-unreachable", field="PREFECT_API_URL",
    )  # fmt: skip


def refused(url: str, status: int) -> CpbError:
    """Return the error for a server that does not accept the credentials."""
    from flows.deploy.project import password_file

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
