"""Atomic file writes, the home's version, and URLs without credentials.

A reader, or the next run after a kill, never sees a partial file. A home (the files below `CPB_HOME`) of another
version is refused, never migrated. Kept forever, whatever the version: forecast rows with their chain (`forecasts/`),
and published model folders.
"""

import errno
import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from cpbmodels.files import read_regular
from schemas.errors import CpbError, UsageError
from schemas.scope import home_folder
from tasks.storage.locks import locked, temporary_lock

T = TypeVar("T")

_STALE_S = 24 * 3600.0
DRAFT = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{12}")
"""Name of a draft: the final name, hidden, plus 12 hex digits; no reader's `*.parquet` matches it."""


NOTIFY_FILE = "notify"
"""File of a home with the URLs of services that messages are sent to. They hold passwords: it is copied nowhere."""

_AT_CWD, _EXCHANGE = -100, 2  # of fcntl.h and stdio.h
_READINGS, _BETWEEN_READINGS_S = 10, 0.02
VERSION = "2"
VERSION_FILE = "cpb-version"
_SECRET = re.compile(
    r"pass|pwd|token|secret|signature|credential|api_?key|access_?key|private|auth|jwt|cookie|session|odbc_connect"
    r"|conn\w*str|^dsn$|^(sig|key|code)$",
    re.IGNORECASE,
)
"""Names of parameters whose values are secrets, or hold some, as ODBC's connection string does."""

_NAME = re.compile(r"[\w.\[\]-]+")
_NO_HOST = ("databricks", "databricks-uc", "uc")
"""Schemes of MLflow behind which stands a profile, or a token, instead of a host."""

_NO_PORT = re.compile(r":(?!\d+$)(?![^\[]*\])")
"""A colon not followed by a port, outside IPv6 brackets: a `/` or `?` in a password ends the host part early."""

_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?<![\w-])(?P<name>[\w-]*(?:pass|pwd|token|secret|signature|credential|api_?key|access_?key|odbc_connect)[\w-]*"
    r"(?:=|%3d))(?P<value>\{[^}]*\}|\"[^\"]*\"|'[^']*'|[^\s;,&'\"<>]+)",
    re.IGNORECASE,
)
"""`PWD=…` of a connection string, `password=…` of a driver's message, `token=…` of a query; also percent-encoded."""

_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{8,}|\bdapi[0-9a-f]{8,}|(?<=\bBearer )[\w.~+/=-]+", re.IGNORECASE)
"""Tokens of the Hub, of Databricks, and of a header."""


class DiskFull(CpbError):
    """The disk or the user's quota is full; stored files are intact."""

    default_code = "disk-full"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name of a draft beside `path`; after the block it is synced and renamed over `path`.

    If the block fails, the draft is deleted and `path` is unchanged. The rename survives a power failure only after a
    `sync` of the folder, which many files can share.

    Raises:
        DiskFull: no space left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_name(path)
    try:
        yield draft
        sync(draft)
        draft.replace(path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if is_disk_full(error):
            raise DiskFull(
                f"no space left in {path.parent}: free some, then run the same command again", field=str(path)
            ) from error
        raise


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write `data` so that `path` has either the old or the new content, never a part; errors as in `replacing`."""
    with replacing(path) as draft:
        draft.write_bytes(data)


def final_path(path: str) -> str:
    """Return a relative path with the final name of every draft in it."""
    matches = ((DRAFT.fullmatch(name), name) for name in path.split("/"))
    return "/".join(match["name"] if match else name for match, name in matches)


def delete_files(folder: Path, is_ours: Callable[[str], bool]) -> bool:
    """Delete the files below a folder that cpb wrote, then all folders that are empty; return whether nothing is left.

    Other files stay, and so do links, which are not followed.

    Args:
        is_ours: whether cpb wrote a file, by its path relative to the folder; that of a draft has its final name.
    """
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_symlink():
            continue
        if path.is_dir():
            remove_empty(path)
        elif is_ours(final_path(path.relative_to(folder).as_posix())):
            path.unlink(missing_ok=True)
    remove_empty(folder)
    return not folder.exists()


def remove_empty(folder: Path) -> None:
    """Remove a folder if it is empty."""
    with suppress(OSError):
        folder.rmdir()


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner may read, atomically; an existing file is kept."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = draft_name(path)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was faster
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)


def read_private(path: Path, max_bytes: int, *, links: bool = False) -> str:
    """Return the text of a file accessible to this user only; `links`: it may be a symbolic link.

    Raises:
        FileNotFoundError: the file is missing.
        OSError: it cannot be read, or is not safe to use; `strerror` is the reason.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW))
    try:
        status = os.fstat(handle)
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISREG(status.st_mode):
            why = "it is not a regular file"
        elif status.st_uid != os.getuid():
            why = "it belongs to another user"
        elif mode & 0o077:
            why = f"its mode is {mode:o}, so other users may have read it"
        else:
            return os.read(handle, max_bytes).decode(errors="replace")
    finally:
        os.close(handle)
    raise PermissionError(errno.EPERM, why)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error means that the disk is full; polars and SQLite report it in their text only."""
    number = getattr(error, "errno", None)
    return (
        number in (errno.ENOSPC, errno.EDQUOT) or "o space left" in str(error) or "disk is full" in str(error)
    )


def check_writable(folder: Path) -> None:
    """Create the folder and test writing to it; raises `UsageError` before hours of work, not after them."""
    probe = draft_name(folder / "probe")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot write in {folder} ({error.strerror}); choose a folder that you own or can create"
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. Paths and dates become strings."""
    write_bytes(path, (json.dumps(value, indent=2, default=str) + "\n").encode())


def read_json_or_none(path: Path) -> Any:
    """Return the JSON value in `path`; None if the file is missing or not JSON."""
    try:
        return json.loads(read_regular(path))
    except (FileNotFoundError, ValueError):
        return None


def open_log(path: Path) -> IO[bytes]:
    """Open a log file for appending, created if missing, never through a symbolic link."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise CpbError(
            f"the log file {path} cannot be written ({error.strerror}); remove it if it is a link, else check the "
            "folder's owner and the free space there",
            code="log",
            field=str(path),
        ) from error
    return os.fdopen(handle, "ab")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `path` if the block succeeds, and is removed if it fails.

    `path` is either the old or the new folder, never a mix. A second writer waits for the first, so what it reads of
    the folder is what it replaces. If `path` is a link to a folder, possibly on another disk, that folder is replaced
    and the link is kept.
    """
    path = path.resolve()  # a rename cannot move across disks
    path.parent.mkdir(parents=True, exist_ok=True)
    with _folder_lock(path):
        _recover(path)
        _sweep(path)
        draft = draft_name(path)
        draft.mkdir()
        try:
            yield draft
            _swap(draft, path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _swap(draft: Path, path: Path) -> None:
    """Replace `path` by the draft; the old folder is deleted once the new folder is in place, also after a power cut.

    In a single step where the file system can; otherwise the old folder moves aside first, from where `recover_folder`
    brings it back after a kill between the two steps.
    """
    try:
        if not path.exists():
            draft.rename(path)
        elif not _exchange(draft, path):
            path.rename(path.with_name(f".{path.name}.old.{uuid.uuid4().hex[:12]}"))
            draft.rename(path)
    finally:
        _recover(path)  # after an error, or a Ctrl-C, between the two renames
        sync(path.parent)
        for old in folders_aside(path):
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _folder_lock(path: Path) -> Iterator[None]:
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    with locked(temporary_lock(f"folder-{name}.lock")):
        yield


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step (Linux's renameat2); False if system or file system cannot."""
    import ctypes  # `cpb --help` imports this module

    call = getattr(ctypes.CDLL(None), "renameat2", None)
    return call is not None and call(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE) == 0


def folders_aside(path: Path) -> list[Path]:
    """Return the old folders of `path` that a killed writer left aside, oldest first."""
    aside = path.parent.glob(f".{path.name}.old.{'?' * 12}")
    return sorted(aside, key=lambda folder: folder.stat().st_mtime)


def recover_folder(path: Path) -> None:
    """Bring the old folder back if a writer was killed between the two steps of `_swap`; else do nothing."""
    path = path.resolve()
    if not path.exists() and folders_aside(path):
        with _folder_lock(path):
            _recover(path)


def _recover(path: Path) -> None:
    if not path.exists() and (aside := folders_aside(path)):
        aside[-1].rename(path)


def settled(folder: Path, read: Callable[[Path], T], names: Sequence[str] = ()) -> T:
    """Return what `read` gives of a folder that `new_folder` may replace meanwhile: of the old or of the new one.

    It is read again where the folder, or a file in it, was replaced during the reading: an error is then an effect of
    that. Without a folder an error counts only if none appears, as between the two renames of a replacement.

    Args:
        names: the files in it that `read` opens.

    Raises:
        CpbError, OSError: from `read`, or (code `busy`) the folder was replaced each time.
    """
    error: CpbError | OSError | None = None
    for _ in range(_READINGS):
        before, error = _state(folder, names), None
        try:
            found = read(folder)
        except (CpbError, OSError) as raised:
            error = raised
        if _state(folder, names) == before and (error is None or before is not None):
            break
        time.sleep(_BETWEEN_READINGS_S)
    else:
        error = error or CpbError(
            f"{folder} was replaced each time that it was read; run the same command again",
            code="busy",
            field=str(folder),
        )
    if error is not None:
        raise error
    return found


def _state(folder: Path, names: Sequence[str]) -> list[tuple[int, ...] | None] | None:
    """Return what differs after a folder or one of the files in it was replaced or written to; None without it."""
    state: list[tuple[int, ...] | None] = []
    for path in (folder, *(folder / name for name in names)):
        try:
            status = path.stat()
            state.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            state.append(None)
    return state if state[0] else None


def _sweep(path: Path) -> None:
    """Delete drafts of `path` left by killed writers more than a day ago."""
    for old in path.parent.glob(f".{path.name}.{'?' * 12}"):
        with suppress(FileNotFoundError):
            if time.time() - old.stat().st_mtime > _STALE_S:
                shutil.rmtree(old, ignore_errors=True)


def draft_name(path: Path) -> Path:
    """Return a new draft name beside `path`."""
    # Not tempfile's: its files are private to their owner; drafts follow the umask like any other file.
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")


def check_home(folder: Path) -> Path:
    """Return the folder if this version can use it as home, or if it does not exist yet.

    Raises:
        CpbError: another version of cpb wrote there (`home-version`).
    """
    path = folder / VERSION_FILE
    try:
        version = path.read_bytes()[:20]
    except (FileNotFoundError, NotADirectoryError):
        return folder
    except OSError as error:
        raise CpbError(
            f"{path} cannot be read ({error.strerror}), so it is not known whether this version can use {folder}: put "
            f"the file back, as in `{restore_version(path)}`",
            code="home-version",
            field="CPB_HOME",
        ) from error
    if version.strip() == VERSION.encode():
        return folder
    shown = repr(version.decode(errors="replace").strip())
    if re.fullmatch(rb"[0-9]{1,9}\s*", version):
        raise CpbError(
            f"{folder} was written by another version of cpb (its {VERSION_FILE} holds {shown}, this version "
            f"reads {VERSION}): set CPB_HOME to another folder, or use the version that wrote it; if it was this "
            f"version, the file is damaged, and `{restore_version(path)}` restores it",
            code="home-version",
            field="CPB_HOME",
        )
    raise CpbError(
        f"{path} is damaged (it holds {shown}, no number of a version): `{restore_version(path)}` restores it, if "
        "this version wrote the folder",
        code="home-version",
        field="CPB_HOME",
    )


def restore_version(path: Path) -> str:
    """Return the command that makes the file with the home's version again; whatever else is there is moved away."""
    place, aside = shlex.quote(str(path)), shlex.quote(f"{path}.damaged")
    moved = f"mv {place} {aside} && " if path.is_dir() or path.is_symlink() else ""
    return f"{moved}echo {VERSION} > {place}"


def checked_home() -> Path:
    """Return `CPB_HOME`, checked by `check_home`."""
    return check_home(home_folder())


def stored_home() -> Path:
    """Return `CPB_HOME`, for read-only commands.

    Raises:
        CpbError: the folder is missing (`no-home`), or another version of cpb wrote there.
    """
    folder = checked_home()
    if not folder.is_dir():
        raise CpbError(
            f"nothing is stored in {folder}: there is no such folder; correct CPB_HOME, or fill it with `cpb demo`",
            code="no-home",
            field="CPB_HOME",
        )
    return folder


def mark_home(folder: Path) -> None:
    """Write the version to a home without a version, before anything else is stored there."""
    if not (folder / VERSION_FILE).exists():
        write_bytes(folder / VERSION_FILE, f"{VERSION}\n".encode())


def public_url(url: str) -> str:
    """Return a URL (or any text, unchanged) without credentials: user info is cut, secret parameters become `***`.

    A `/`, `?` or `#` in a password ends the host part early. If the rest contains the `@` that may end the password,
    the URL is hidden entirely if it has a user, or a number that may be a port or the start of a password. The same
    where the host part holds such a sign percent-encoded, or the scheme has no host.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    address, query_mark, query = rest.partition("?")
    host, slash, path = address.partition("/")
    query, hash_mark, fragment = query.partition("#")
    cut_short = ("@" in host or ":" in host) and "@" in rest.removeprefix(host)
    bare = host.rpartition("@")[2]
    plain = unquote(unquote(bare))
    is_encoded = plain != bare and ("@" in plain or _NO_PORT.search(plain))
    if cut_short or is_encoded or ("@" not in host and _NO_PORT.search(host)):
        return f"{scheme}://***"
    if scheme.lower().partition("+")[0] in _NO_HOST:
        return f"{scheme}://***"
    public = _public_query(query)
    if public != query and fragment:
        fragment = "***"
    return f"{scheme}://{bare}{slash}{_hide(path)}{query_mark}{public}{hash_mark}{_hide(fragment)}"


def _public_query(query: str) -> str:
    """Return a query without secrets; unchanged if it has none."""
    if not _SECRET.search(unquote(unquote(query))) and not any(
        _SECRET.search(name) for name, _ in parse_qsl(query, keep_blank_values=True)
    ):
        return query
    if re.search(r"odbc_connect|;|\{", unquote(unquote(query)), re.IGNORECASE) or "=" not in query:
        return "***"  # a string of its own syntax
    if any("=" not in part for part in query.split("&")):
        return "***"  # an & in a secret
    pairs = [
        (name, "***" if _SECRET.search(unquote(name)) or _SECRET.search(unquote(unquote(value))) else value)
        for name, value in parse_qsl(query, keep_blank_values=True)
    ]
    return urlencode([(name if _NAME.fullmatch(name) else "***", value) for name, value in pairs], safe="*")


def _hide(text: str) -> str:
    """Return a text without the values of secret assignments, and without tokens."""
    return _TOKEN.sub("***", _ASSIGNED.sub(lambda match: f"{match['name']}***", text))


def without_credentials(text: str) -> str:
    """Return a text, such as a library's error message, with every URL in it replaced by its `public_url`.

    Passwords and tokens that are assigned outside of a URL are hidden, too.
    """
    return _hide(_URL.sub(lambda match: public_url(match[0]), text))


def local_path(uri: str) -> Path | None:
    """Return the path of a `file:` URI, or of a path without scheme (decoded too, as MLflow does); else None."""
    if urlsplit(uri).scheme not in ("", "file"):
        return None
    parts = urlsplit(uri) if uri.startswith("file:") else None
    if parts and parts.hostname not in (None, "localhost", "127.0.0.1"):
        return None
    return Path(unquote(parts.path if parts else uri))
