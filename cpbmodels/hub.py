"""Published models: one model folder of a Hugging Face Hub repository, fetched alone and checked.

huggingface_hub (the extra `hub`) does the fetching, with its cache, its token (`HF_TOKEN` or `hf auth login`) and
`HF_ENDPOINT`. A model is two files; nothing of the repository is run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpbmodels.errors import ModelError, pip_install, unknown_choice
from cpbmodels.fleet.config import CONFIG, WEIGHTS

if TYPE_CHECKING:
    from cpbmodels.fleet.member import Member

_MODEL = re.compile(r"([^/]+)/([^/]+)/model\.safetensors")
_PART = re.compile(r"[\w-]+")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


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
    from cpbmodels.fleet.member import load

    model = f"{symbol if market == 'spot' else f'{market}-{symbol}'}/{timeframe}"
    return load(fetch(repo, model, revision))


def list_models(repo: str, revision: str | None = None) -> list[str]:
    """The folders of a repository's models, as in `BTCUSDT/1h`, sorted, in one request; errors as in `from_hub`."""
    client = _client()
    with _explained(repo, revision):
        info = client.HfApi(endpoint=_endpoint()).model_info(repo, revision=revision)
    models = (_MODEL.fullmatch(file.rfilename) for file in info.siblings or ())
    return sorted(f"{model[1]}/{model[2]}" for model in models if model)


def fetch(repo: str, model: str, revision: str | None = None) -> Path:
    """The folder, in the cache, of one model such as `BTCUSDT/1h`; errors as in `from_hub`."""
    client = _client()
    if not all(_PART.fullmatch(part) for part in model.split("/")):
        raise ModelError(f"{model!r} names no model: give a symbol and a timeframe, as in BTCUSDT and 1h.")
    if not _REPO.fullmatch(repo):
        raise ModelError(f"repo {repo!r} is not USER/NAME, as in alice/cpb-models.")
    place = revision
    with _explained(repo, revision, model):
        for name in (CONFIG, WEIGHTS):
            path = client.hf_hub_download(repo, f"{model}/{name}", revision=place, endpoint=_endpoint())
            place = commit_of(Path(path).parent)  # should someone publish meanwhile, both are of one commit
    return Path(path).parent


def commit_of(folder: Path) -> str:
    """The commit that a fetched model is of: the cache is `snapshots/COMMIT/SYMBOL/INTERVAL`."""
    return folder.parents[1].name


def _client() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise ModelError(
            "Published models are fetched with huggingface_hub, which is not installed: "
            f"{pip_install('huggingface_hub')}."
        ) from None
    return huggingface_hub


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


@contextmanager
def _explained(repo: str, revision: str | None, model: str = "") -> Iterator[None]:
    """Turn the client's errors into one sentence each; without their cause, which holds the request and its token."""
    from huggingface_hub import constants, errors

    hub = re.sub(r"//[^/@]*@", "//", _endpoint() or constants.ENDPOINT)  # a password in it is not shown
    try:
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
