"""Prefect's client, with the address and the password of this deployment, or as the user's settings say."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flows.deploy.credentials import read_auth
from flows.deploy.services import Service
from flows.prefect_server import api_errors

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

PAGE = 200
"""Rows that the server returns to one request, at most."""


@contextmanager
def client_of(server: Service, timeout_s: float = 30) -> Iterator["SyncPrefectClient"]:
    """Yield a client of this deployment's server.

    Raises:
        CpbError: the server cannot be reached, refuses the password, or answers with an error.
    """
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES
    from prefect.settings import temporary_settings as settings

    chosen = {
        PREFECT_API_URL: server.api,
        PREFECT_API_AUTH_STRING: read_auth(server.home),
        PREFECT_CLIENT_MAX_RETRIES: 2,
    }
    with settings(chosen), client_of_settings(timeout_s) as client:
        yield client


@contextmanager
def client_of_settings(timeout_s: float = 30) -> Iterator["SyncPrefectClient"]:
    """Yield a client of the server that Prefect's settings name; errors as in `client_of`."""
    from prefect.client.orchestration import get_client
    from prefect.settings import get_current_settings

    url = get_current_settings().api.url or ""
    with api_errors(url), get_client(sync_client=True, httpx_settings={"timeout": timeout_s}) as client:
        yield client


def answers_without_password(server: Service) -> bool:
    """Whether the API serves anyone who reaches its port, as the server of cpb 0.1 did."""
    import httpx

    try:
        answer = httpx.post(f"{server.api}/flows/filter", json={"limit": 1}, timeout=10, trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.is_success
