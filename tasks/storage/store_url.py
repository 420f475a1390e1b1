"""`CPB_STORE`: which stores there are, what their drivers need, and what is refused before anything is fetched."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from schemas.errors import UsageError
from tasks.storage.urls import public_url

STORE = "CPB_STORE"
"""Environment variable: the URL of the store that machines share; unset, the home is all there is."""

DRIVERS = {"file": "", "s3": "s3fs", "gs": "gcsfs"}
"""Packages that read a store, by its URL's scheme; the extras of cpb bear the schemes' names."""

_CONNECT_S, _READ_S = 10, 30
"""Seconds for a bucket's server to take a connection, and between two parts of its answer."""


@dataclass(frozen=True)
class StorePlace:
    """A store's URL, taken apart. `root`: bucket and prefix, or folder; `url`: as it may be shown."""

    scheme: str
    root: str
    url: str


def parse_store(url: str) -> StorePlace:
    """Return what a store's URL means.

    Raises:
        UsageError: it holds credentials, is of a kind that cpb does not know, or names no place; a folder is missing;
            the driver is not installed.
    """
    scheme, separator, rest = url.strip().partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in DRIVERS:
        raise _refused(
            f"{public_url(url)!r} is no store: give file:///FOLDER, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX"
        )
    if "@" in rest.partition("/")[0] or "?" in rest or "#" in rest:
        raise _refused(
            f"{scheme}://… must hold no user, password or parameter: credentials belong into the driver's own "
            "variables or files, such as AWS_PROFILE"
        )
    root = rest.rstrip("/")
    if scheme == "file":
        root = _folder(unquote(root), url)
    elif not root or root.startswith("/"):
        raise _refused(f"{public_url(url)!r} names no bucket: write {scheme}://BUCKET/PREFIX")
    if (driver := DRIVERS[scheme]) and find_spec(driver) is None:
        raise _refused(
            f'{public_url(url)} needs {driver}, which is not installed: run pip install "cpb[{scheme}]"'
        )
    return StorePlace(scheme, root, public_url(f"{scheme}://{root}"))


def driver_options(scheme: str) -> dict[str, Any]:
    """Return what a driver is opened with: no cache of listings, since other machines write; limits in time."""
    if scheme == "file":
        return {"skip_instance_cache": False}
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme == "s3":
        # Tries are counted in one place, `store_faults.retrying`: botocore's would multiply with them.
        limits = {
            "connect_timeout": _CONNECT_S,
            "read_timeout": _READ_S,
            "retries": {"total_max_attempts": 1},
        }
        options |= {"config_kwargs": limits}
    return options


def _folder(path: str, url: str) -> str:
    host, _, _ = path.partition("/")
    if host not in ("", "localhost"):
        raise _refused(f"{url!r} names a folder of the host {host!r}: mount it, and write file:///FOLDER")
    folder = Path("/" + path.partition("/")[2])
    if (
        not folder.is_dir()
    ):  # never made: below a mount point that is not mounted it would lie on this disk alone
        if folder.exists():
            raise _refused(f"{url!r}: {folder} is no folder; name one")
        raise _refused(f"{url!r}: there is no folder {folder}; mount it, or make it")
    return str(folder)


def _refused(message: str) -> UsageError:
    return UsageError(f"{STORE} {message}", code="store", field=STORE)
