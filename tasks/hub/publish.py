"""An atomic, idempotent commit to a Hub repository.

All champions are published or nothing changes: there is a single commit, on the parent commit read before. If another
commit was made in between (412), or the Hub fails temporarily (429, 5xx), the parent is read again and the commit is
repeated; files already uploaded are recognised by their hash and not sent again.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from cpbmodels.errors import ModelError
from cpbmodels.files import read_regular
from cpbmodels.hub import Hub, hub_api, hub_of_environment, quiet_client
from schemas.errors import CpbError
from tasks.forecasting.published import CHAIN
from tasks.hub.page import ABOUT, about_page, check_about, foreign_file, with_sums
from tasks.hub.tree import SUMS, read_sums
from tasks.storage.files import read_json_or_none

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_RETRIED_STATUS = {409, 412, 429, 500, 502, 503, 504}
_MESSAGE, _PAGE_MESSAGE = "Publish champions", "Publish the page"
_TEMPLATE = {".gitattributes", "README.md", "index.html", "style.css"}
"""What the Hub puts into a new static Space."""


@dataclass(frozen=True)
class Published:
    """A published tree: the commit that contains it, and whether this call created the commit."""

    repo: str
    oid: str
    url: str
    sent: bool

    def __str__(self) -> str:
        return f"{self.url} ({'new commit' if self.sent else 'nothing had changed'})"


def publish_tree(
    tree: Path, repo: str, attempts: int = 5, pause: float = 1.0, *, private: bool = False
) -> Published:
    """Publish the tree's files to the Hub's `repo` in a single commit; no commit is made if nothing changed.

    Nothing is ever deleted: the library of an earlier publish stays too, for those who installed it by its URL.

    Args:
        tree: folder written by `build_tree`.
        repo: `USER/NAME`; created if missing, with the visibility that the Hub gives new ones unless `private`.
        attempts: maximum number of attempts, with pauses of `pause` seconds, doubling, in between.
        private: create it as private; one that exists must be private already.

    Raises:
        CpbError: `HF_ENDPOINT` is malformed, there is no token, or the repository is not permitted, not found or not
            reachable; (code `other-record`) the chain published there does not begin the tree's chain; (code
            `public`) it is public, although `private` is asked for.
    """
    return _patiently(partial(_commit, tree=tree, repo=repo, private=private), repo, attempts, pause)


def publish_page(
    files: Mapping[str, bytes],
    space: str,
    market: str,
    *,
    nightly: bool = False,
    private: bool = False,
    attempts: int = 5,
    pause: float = 1.0,
) -> Published:
    """Bring a Space of the Hub up to date with a page, in a single commit of what changed; none if nothing did.

    Args:
        files, market, nightly: as `tasks.hub.page.write_page` takes them.
        space: `USER/NAME`; created (static) if missing.
        private, attempts, pause: as for `publish_tree`.

    Raises:
        CpbError: as in `publish_tree`; (code `foreign-folder`) the Space has other files than a page's.
    """
    about = about_page(market, nightly=nightly)
    commit = partial(
        _commit_page, files=with_sums(files), about=about, space=space, market=market, private=private
    )
    return _patiently(commit, space, attempts, pause)


def _patiently(commit: "Callable[[HfApi], Published]", repo: str, attempts: int, pause: float) -> Published:
    api, secret = hub_client()
    import httpx2  # the HTTP client of huggingface_hub 2
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    patiently = Retrying(
        retry=retry_if_exception(_worth_repeating),
        stop=stop_after_attempt(attempts),
        wait=wait_exponential(pause),
        reraise=True,
    )
    try:
        with quiet_client():
            return patiently(commit, api)
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, httpx2.HTTPError) as error:
        # `from None`: the cause contains the request and therefore the token.
        status = _status(error)
        code = "hub-down" if status is None or status >= 500 or status == 429 else f"hub-{status}"
        sentence = _sentence(error, repo, hub_of_environment()).replace(secret, "***")
        raise CpbError(sentence, code=code) from None


def hub_client() -> "tuple[HfApi, str]":
    """Return the client, and its token (`HF_TOKEN` or the Hub login), which appears in no log or message."""
    # Read by the client on import.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    api = _api()
    from huggingface_hub import constants, get_token
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    # Xet requests a token from a separate service and retries for minutes on failure; LFS does the same work.
    constants.HF_HUB_DISABLE_XET = True
    disable_progress_bars()
    secret = (get_token() or "").strip()
    if not secret:
        raise CpbError(
            "no Hub token: set HF_TOKEN or run `hf auth login`, or use --dry-run for a folder only",
            code="no-token",
        )
    # such a token is invalid in an HTTP header, and the client's error would show it
    if not re.fullmatch(r"[\x21-\x7e]+", secret):
        raise CpbError(
            "the Hub token contains blanks or line breaks; copy it again into HF_TOKEN", code="token"
        )
    api.token = secret
    return api, secret


def _api() -> "HfApi":
    """Return the client without a token of its own."""
    try:
        return hub_api()  # type: ignore[no-any-return]
    except ModelError as error:
        raise CpbError(str(error).rstrip("."), code="hub-endpoint", field="HF_ENDPOINT") from None


def check_private(*repositories: tuple[str, str]) -> None:
    """Raise `CpbError` (code `public`) if one of these, each with its `repo_type`, exists on the Hub and is public.

    What else the Hub answers, or that it does not, says the commit.
    """
    api, _ = hub_client()
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    for repo, kind in repositories:
        with suppress(HfHubHTTPError, OfflineModeIsEnabled, httpx2.HTTPError), quiet_client():
            _check_private(api.repo_info(repo, repo_type=kind), repo)


def _check_private(found: Any, repo: str) -> None:
    if not found.private:
        raise CpbError(
            f"{repo} exists and is public, although private was asked for, so nothing was published: make it private "
            "on its settings page of the Hub, name another USER/NAME, or leave private out",
            code="public",
            field="repo",
        )


def opened_repository(api: "HfApi", repo: str, *, private: bool, **kind: Any) -> Any:
    """Create a repository on the Hub unless it exists, and return what the Hub says of it (`ModelInfo`, `SpaceInfo`).

    Args:
        private: create it as private, and refuse one that the Hub does not call private.
        kind: `repo_type` and what belongs to it, as `HfApi.create_repo` takes them; a model's by default.
    """
    # Passes where a token may only write.
    api.create_repo(repo, private=private or None, exist_ok=True, **kind)
    found = api.repo_info(repo, repo_type=kind.get("repo_type"))
    # The Hub ignores the visibility that is asked for where the repository exists.
    if private:
        _check_private(found, repo)
    return found


def _commit(api: "HfApi", tree: Path, repo: str, *, private: bool) -> Published:
    from huggingface_hub import CommitOperationAdd

    # The parent is read in each attempt: a commit in between makes it stale, and the chain is compared
    # anew.
    repository = opened_repository(api, repo, private=private)
    parent, there = repository.sha, [file.rfilename for file in repository.siblings or ()]
    with TemporaryDirectory() as folder:
        is_other = (
            CHAIN in there
            and (tree / CHAIN).is_file()
            and not (tree / CHAIN)
            .read_bytes()
            .startswith(
                read_regular(Path(api.hf_hub_download(repo, CHAIN, revision=parent, local_dir=folder)))
            )
        )
    if is_other:
        raise CpbError(
            f"{repo} holds the record of another chain, so nothing was published; fetch it with `hf download {repo} "
            "--local-dir copy` and go back to it with `cpb restore --record copy` (with its --market), name another "
            f"USER/NAME, or move the repository's {CHAIN} away",
            code="other-record",
            field="repo",
        )
    additions = [
        CommitOperationAdd(path.relative_to(tree).as_posix(), path)
        for path in sorted(tree.rglob("*"))
        if path.is_file()
    ]
    # All files in one commit: a reader never finds a card without its models. Unchanged files are
    # recognised by the Hub.
    done = api.create_commit(repo, additions, commit_message=_MESSAGE, parent_commit=parent)
    return Published(repo, done.oid, done.commit_url, sent=done.oid != parent)


def _commit_page(
    api: "HfApi", files: Mapping[str, bytes], about: bytes, space: str, market: str, *, private: bool
) -> Published:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from huggingface_hub.hf_api import RepoFile
    from huggingface_hub.utils.sha import git_hash

    parent = opened_repository(api, space, private=private, repo_type="space", space_sdk="static").sha
    listed = api.list_repo_tree(space, recursive=True, revision=parent, repo_type="space")
    there = {file.path: file for file in listed if isinstance(file, RepoFile)}
    own, commits = set[str](), api.list_repo_commits
    with TemporaryDirectory() as folder:

        def fetched(name: str) -> Path:
            return Path(
                api.hf_hub_download(space, name, repo_type="space", revision=parent, local_dir=folder)
            )

        # A person's own site may well have the names of the template, but with a second commit.
        is_new = not there.keys() - _TEMPLATE and len(commits(space, repo_type="space", revision=parent)) < 2
        if not is_new:
            check_about(read_json_or_none(fetched(ABOUT)) if ABOUT in there else None, market, space)
        if SUMS in there:
            own = set(read_sums(fetched(SUMS).parent))

    def is_there(name: str, data: bytes) -> bool:
        file = there.get(name)
        if file and file.lfs:
            return file.lfs.sha256 == hashlib.sha256(data).hexdigest()
        return file is not None and file.blob_id == git_hash(data)

    changed = {name: data for name, data in files.items() if not is_there(name, data)}
    removed = sorted((own & there.keys()) - files.keys())
    for name in changed if not is_new else ():
        if name in there and name not in (*own, SUMS, ABOUT):
            raise foreign_file(f"{name} in {space}", space)
    if not changed and not removed:
        return Published(space, parent, f"{api.endpoint}/spaces/{space}", sent=False)
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        *(CommitOperationAdd(name, data) for name, data in (changed | {ABOUT: about}).items()),
        *(CommitOperationDelete(name) for name in removed),
    ]
    done = api.create_commit(
        space, operations, commit_message=_PAGE_MESSAGE, repo_type="space", parent_commit=parent
    )
    return Published(space, done.oid, done.commit_url, sent=True)


def _status(error: Any) -> int | None:
    response = getattr(error, "response", None)
    return response.status_code if response is not None else None


def _worth_repeating(error: BaseException) -> bool:
    import httpx2

    interrupted = isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.ConnectError)
    return interrupted or _status(error) in _RETRIED_STATUS


def _sentence(error: Exception, repo: str, hub: Hub) -> str:
    status = _status(error)
    if status is None:
        # The client's sentence may hold the address with all of its path.
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}".replace(hub.url, hub.host)
        return f"the Hub at {hub.host} cannot be reached ({reason}); check the network or HF_ENDPOINT"
    remedy = (
        "check that USER/NAME is right and the token may write to it" if status < 409 else "try again later"
    )
    return f"nothing was published to {repo}: the Hub at {hub.host} answered {status}; {remedy}"
