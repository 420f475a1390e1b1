"""The Prefect server in use: whether one is configured and answers, and its credentials.

Prefect's own settings are used, so that environment variables, profiles, `prefect.toml` and `.env` are respected.
"""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import CpbError
from tasks.storage.files import public_url

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

ANSWER_WITHIN_S = 5.0


def server_in_use() -> bool:
    """Whether Prefect is configured to use a server; without one, flows run directly."""
    return bool(_api_url())


def check_server() -> None:
    """Send the configured server a request that needs credentials; errors as in `client_of_settings`."""
    with client_of_settings(ANSWER_WITHIN_S, retries=0) as client:
        client.request("POST", "/flows/filter", json={"limit": 1})


@contextmanager
def client_of_settings(timeout_s: float = 30, retries: int = 2) -> Iterator["SyncPrefectClient"]:
    """Yield a client of the server in Prefect's settings.

    Raises:
        CpbError: the server cannot be reached (`server-unreachable`), rejects the credentials (`server-auth`), or
            answers with another error (`server-error`).
    """
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    url = public_url(_api_url())
    try:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: retries}),
            get_client(sync_client=True, httpx_settings={"timeout": timeout_s}) as client,
        ):
            yield client
    except httpx.HTTPStatusError as error:
        answer = error.response
        if answer.status_code in (401, 403):
            raise CpbError(
                f"the Prefect server at PREFECT_API_URL={url} refuses the credentials ({answer.status_code}); set "
                "them, for the server of `cpb deploy up` with: "
                f'export PREFECT_API_AUTH_STRING="$(cat {shlex.quote(str(password_file()))})"',
                code="server-auth", field="PREFECT_API_AUTH_STRING",
            ) from error  # fmt: skip
        raise CpbError(
            f"the Prefect server at {url} answered {answer.status_code} to {error.request.url.path}: "
            f"{answer.text[:300]}",
            code="server-error",
        ) from error
    except httpx.TransportError as error:
        raise CpbError(
            f"no Prefect server answers at PREFECT_API_URL={url} ({error or type(error).__name__}); start it, as with "
            "`cpb deploy up`, or take PREFECT_API_URL out of the environment or the Prefect profile to run without one",
            code="server-unreachable", field="PREFECT_API_URL",
        ) from error  # fmt: skip


def prefect_home() -> Path:
    """Return Prefect's folder: `PREFECT_HOME`, or `~/.prefect`."""
    return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser().absolute()


def password_file() -> Path:
    """Return the file of the API's password in Prefect's folder. The password allows running commands as this user."""
    return prefect_home() / "cpb-api-auth"


def _api_url() -> str:
    from prefect.settings import get_current_settings

    return get_current_settings().api.url or ""
