"""Published models: one model folder of a Hugging Face Hub repository, fetched alone and checked.

huggingface_hub (the extra `hub`) does the fetching, with its cache, its token (`HF_TOKEN` or `hf auth login`) and
`HF_ENDPOINT`. A model is two files; nothing of the repository is run.
"""

from __future__ import annotations

import base64
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from cpbmodels.errors import ModelError, pip_install, unknown_choice
from cpbmodels.fleet.config import CONFIG, WEIGHTS

if TYPE_CHECKING:
    from cpbmodels.fleet.member import Member

_MODEL = re.compile(r"([^/]+)/([^/]+)/model\.safetensors")
_PART = re.compile(r"[\w-]+")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

PUBLIC_HUB = "https://huggingface.co"


def from_hub(
    repo: str, symbol: str, timeframe: str, revision: str | None = None, market: str = "spot"
) -> Member:
    """The published model of one series. Both its files are of the same commit; the weights' sha256 is checked.

    Without a network it is read from huggingface_hub's cache, once it has been fetched.

    Args:
        repo: `USER/NAME` on the Hub.
        symbol: as in `BTCUSDT`.
        timeframe: as in `1h`.
        revision: branch, tag or whole commit hash; None: the newest commit.
        market: "spot", "um", "cm", "own" for models of the publisher's own candles, or "sim" for simulated candles.

    Raises:
        ModelError: huggingface_hub is not installed; the Hub cannot be reached; there is no such repository, revision
            or model (the sentence names the available ones); or the files are damaged.
    """
    from cpbmodels.fleet.load import load

    model = f"{symbol if market == 'spot' else f'{market}-{symbol}'}/{timeframe}"
    return load(fetch(repo, model, revision))


def list_models(repo: str, revision: str | None = None) -> list[str]:
    """The folders of a repository's models, as in `BTCUSDT/1h`, sorted, in one request; errors as in `from_hub`."""
    api = hub_api()
    with _explained(repo, revision):
        info = api.model_info(repo, revision=revision)
    models = (_MODEL.fullmatch(file.rfilename) for file in info.siblings or ())
    return sorted(f"{model[1]}/{model[2]}" for model in models if model)


def fetch(repo: str, model: str, revision: str | None = None) -> Path:
    """The folder, in the cache, of one model such as `BTCUSDT/1h`; errors as in `from_hub`."""
    if not all(_PART.fullmatch(part) for part in model.split("/")):
        raise ModelError(f"{model!r} names no model: give a symbol and a timeframe, as in BTCUSDT and 1h.")
    if not _REPO.fullmatch(repo):
        raise ModelError(f"repo {repo!r} is not USER/NAME, as in alice/cpb-models.")
    api, place = hub_api(), revision
    with _explained(repo, revision, model):
        for name in (CONFIG, WEIGHTS):
            path = api.hf_hub_download(repo, f"{model}/{name}", revision=place)
            place = commit_of(Path(path).parent)  # should someone publish meanwhile, both are of one commit
    return Path(path).parent


def commit_of(folder: Path) -> str:
    """The commit that a fetched model is of: the cache is `snapshots/COMMIT/SYMBOL/INTERVAL`."""
    return folder.parents[1].name


@dataclass(frozen=True)
class Hub:
    """Where the Hub is: `url` without user and password, the headers that hold both, and the host for messages."""

    url: str
    headers: dict[str, str] = field(repr=False)
    host: str


def hub_of_environment() -> Hub:
    """The Hub of `HF_ENDPOINT`, by default the public one.

    A user and password become a header: in an address, huggingface_hub's warnings and errors would show them.

    Raises:
        ModelError: it is not the address of a server; the sentence shows none of it, which may hold a password.
    """
    text = os.environ.get("HF_ENDPOINT") or PUBLIC_HUB
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # no port is a number, or a bracket is open
        raise _no_endpoint() from None
    host = parts.hostname or ""
    is_host = re.fullmatch(r"[a-z0-9._-]+|[0-9a-f:.]+", host)
    if (
        parts.scheme not in ("http", "https")
        or not is_host
        or not re.fullmatch(r"[!-~]+", text)
        or "@" in parts.path  # of a password that holds a /
        or parts.query
        or parts.fragment
    ):
        raise _no_endpoint()
    bracketed = f"[{host}]" if ":" in host else host
    server = f"{parts.scheme}://{bracketed}{f':{port}' if port is not None else ''}"
    headers = {}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Hub(f"{server}{parts.path}".rstrip("/"), headers, server)


def _no_endpoint() -> ModelError:
    return ModelError(
        f"HF_ENDPOINT is not the address of a Hub, as {PUBLIC_HUB} is: correct it, with @, :, / and ? of a user or "
        "password as %40, %3A, %2F and %3F, or unset it."
    )


def hub_api(token: str | None = None) -> Any:
    """`HfApi` of the Hub of `HF_ENDPOINT`; None: with the token of the environment or the login, if there is any.

    Raises:
        ModelError: huggingface_hub is not installed, or errors as in `hub_of_environment`.
    """
    hub = hub_of_environment()  # before the import, which ends in a traceback where it is malformed
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise ModelError(
            "Published models are fetched with huggingface_hub, which is not installed: "
            f"{pip_install('huggingface_hub')}."
        ) from None
    return HfApi(endpoint=hub.url, token=token, headers=hub.headers or None)


@contextmanager
def quiet_client() -> Iterator[None]:
    """Keep huggingface_hub's warnings of each try, which name the whole address, out of the log; the error is told."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _explained(repo: str, revision: str | None, model: str = "") -> Iterator[None]:
    """Turn the client's errors into one sentence each; without their cause, which holds the request and its token."""
    from huggingface_hub import errors

    hub = hub_of_environment().host
    try:
        with quiet_client():
            yield
    except Exception as error:  # noqa: BLE001 - of requests or httpx, by the client's version
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = (
            f"The Hub at {hub} cannot be reached or refuses {repo} {model} ({type(error).__name__}, status {status}): "
            "check the network, HF_ENDPOINT, HF_HUB_OFFLINE and HF_TOKEN."
        )
        if isinstance(error, errors.RevisionNotFoundError):
            why = f"{repo} has no revision {revision!r}: give a branch, a tag or a whole commit hash."
        elif isinstance(error, errors.RepositoryNotFoundError):
            why = f"There is no {repo} on {hub} that this machine may read: check the name, or set HF_TOKEN."
        # without a status it is only missing in this machine's cache
        elif isinstance(error, errors.EntryNotFoundError) and status:
            why = f"{repo}: {unknown_choice('model', model, list_models(repo, revision))}"
        raise ModelError(why) from None
