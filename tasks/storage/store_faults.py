"""What can go wrong with the shared store, what of it may pass, and the one sentence in which it is said.

Drivers (s3fs, gcsfs) raise errors of several libraries: they are told apart by the library's name, because none of them
may be imported where the store is a folder.
"""

import errno
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import tenacity

from schemas.errors import CpbError
from tasks.storage.files import DiskFull, is_disk_full
from tasks.storage.urls import is_secret_name, without_credentials
from tasks.storage.waiting import pause

log = logging.getLogger("cpb")

T = TypeVar("T")

MAX_TRIES = 6
WAIT_S, MAX_WAIT_S = 0.5, 8.0
"""Waits between tries: .5, 1, 2, 4 and 8 s with a jitter, so that nodes do not all return at once."""

_LIBRARIES = {"botocore", "aiobotocore", "aiohttp", "s3fs", "gcsfs", "google"}
_PERMANENT = {errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOSYS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR,
              getattr(errno, "EREMCHG", errno.EPERM)}  # fmt: skip
"""The last one: s3fs gives it for a bucket of another region."""
_MAX_REASON = 200
_SHORTEST_SECRET = 8


class StoreFault(CpbError):
    """The shared store cannot be read or written; what lies in the home is whole."""

    default_code = "store"


class StoreFull(StoreFault):
    """Nothing more fits into the shared store."""

    default_code = "store-full"


class FolderGone(OSError):
    """The store's folder, which was there, is not: a mount that is lost, perhaps for a moment."""


def is_fault(error: BaseException) -> bool:
    """Whether an error is one of the store or of the way to it, and not of this program."""
    return isinstance(error, OSError | TimeoutError) or _library(error) in _LIBRARIES


def may_pass(error: BaseException) -> bool:
    """Whether another try may succeed: the server is busy, slow or cut its answer; not where it refuses."""
    if not is_fault(error) or isinstance(error, FileNotFoundError | PermissionError) or is_disk_full(error):
        return False
    names = {kind.__name__ for kind in type(error).__mro__}
    if "BotoCoreError" in names:  # no credentials, no region: only what the network does passes
        return bool(
            names & {"HTTPClientError", "ConnectionError", "IncompleteReadError", "ResponseParserError"}
        )
    return getattr(error, "errno", None) not in _PERMANENT


@contextmanager
def naming(url: str, doing: str, into: Path | None = None) -> Iterator[None]:
    """Turn faults of the block into a `StoreFault`; a missing object stays a `FileNotFoundError`.

    Args:
        url: the store's, without credentials.
        doing: what was tried, as in `reading fleets/…`.
        into: the folder of this machine that is written to, where one is.

    Raises:
        DiskFull: no space left in `into`.
        StoreFault: the store refuses, or did not answer in all tries.
        StoreFull: no space left there.
    """
    try:
        yield
    except (CpbError, FileNotFoundError):
        raise
    except Exception as error:
        if not is_fault(error):
            raise
        if is_disk_full(error) and into:
            raise DiskFull(
                f"no space left in {into}: free some, or set CPB_HOME (on a node: CPB_CACHE_HOME) to another disk",
                field=str(into),
            ) from error
        if is_disk_full(error):
            raise StoreFull(
                f"no space left in the store {url} ({doing}): free some, then run the same command again",
                field="CPB_STORE",
            ) from None
        raise StoreFault(
            f"the store {url} failed {doing}: {reason_of(error)}; {_remedy(error, url)}", field="CPB_STORE"
        ) from None  # the driver's error may hold the request with its headers


def retrying(call: Callable[[], T], doing: str) -> T:
    """Return what `call` returns, tried again while its error may pass; the last error is raised as it is."""

    def tell(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        log.debug("the store is tried again (%s): %s", doing, reason_of(error) if error else "")

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(may_pass),
        stop=tenacity.stop_after_attempt(MAX_TRIES),
        wait=tenacity.wait_exponential(multiplier=WAIT_S, max=MAX_WAIT_S) + tenacity.wait_random(0, WAIT_S),
        sleep=pause,  # which an interrupt ends
        before_sleep=tell,
        reraise=True,
    )(call)


def reason_of(error: BaseException) -> str:
    """Return an error as part of a sentence: one line, without URLs' credentials or values of secret variables."""
    text = " ".join(without_credentials(str(error)).split())
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and is_secret_name(name):
            text = text.replace(value, "***")
    text = re.sub(r"\.$", "", text[:_MAX_REASON])
    kind = type(error).__name__
    if isinstance(error, FolderGone):
        return text
    if isinstance(error, TimeoutError):
        return f"no answer in time{f' ({text})' if text else ''}"
    return f"{text} ({kind})" if text else kind


def _remedy(error: BaseException, url: str) -> str:
    if url.startswith("file:") and not may_pass(error):
        return "give this user the right to read and write there, or name another folder"
    if isinstance(error, PermissionError) or getattr(error, "errno", None) in _PERMANENT:
        return (
            "give this user the right to read, write and list there, and check the credentials and the region"
        )
    if not may_pass(error):
        return "check the credentials of the environment and CPB_STORE"
    return "check the network and the server, then run the same command again"


def _library(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]
