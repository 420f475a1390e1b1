"""Where messages go: apprise URLs from `CPB_NOTIFY` and from a file. The URLs hold passwords and are never shown.

https://appriseit.com/services/ lists the forms: `mailto://…`, `tgram://…`, `slack://…`, `discord://…`, `json://…`.
"""

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from schemas.errors import CpbError

VARIABLE, FILE_VARIABLE, FILE_NAME = "CPB_NOTIFY", "CPB_NOTIFY_FILE", "notify"
HEARTBEAT_VARIABLE = "CPB_HEARTBEAT_URL"

_OTHERS = 0o077
_MAX_BYTES = 100_000
# A comma separates only before another URL: some URLs hold commas, as in ?to=a@x.org,b@x.org
_BETWEEN = re.compile(r"\s+|,+(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://.+")


@dataclass(frozen=True)
class Service:
    """One apprise URL. `name`, its scheme with its number, is all that may be shown of it."""

    name: str
    url: str = field(repr=False)


def services(home: Path) -> list[Service]:
    """Return the services of `CPB_NOTIFY`, then those of the file, each once; none where neither is there.

    Raises:
        CpbError: the file is not for its owner alone, or a part of the text is no URL.
    """
    texts = [(VARIABLE, os.environ.get(VARIABLE, "")), *_file_text(home)]
    urls = dict.fromkeys(url for where, text in texts for url in _urls(where, text))
    return [Service(f"{url.partition('://')[0].lower()} (service {n})", url) for n, url in enumerate(urls, 1)]


def heartbeat_url(flow: str) -> str:
    """Return the URL that is called after a complete run, with `{flow}` replaced by the flow's name; "" without one."""
    return os.environ.get(HEARTBEAT_VARIABLE, "").strip().replace("{flow}", flow)


def _urls(where: str, text: str) -> list[str]:
    found = [part.strip(",") for part in _BETWEEN.split(text)]
    for number, part in enumerate(filter(None, found), 1):
        if not _SCHEME.fullmatch(part):  # not shown: it may be half of a password
            raise CpbError(
                f"entry {number} in {where} is no URL of apprise; write SERVICE://…, separated by blanks or lines, "
                "as https://appriseit.com/services/ lists them",
                code="notify-url", field=where,
            )  # fmt: skip
    return [part for part in found if part]


def _file_text(home: Path) -> list[tuple[str, str]]:
    """Return the file's path and text, without lines that begin with `#`; nothing where there is no file."""
    named = os.environ.get(FILE_VARIABLE)
    path = Path(named) if named else home / FILE_NAME
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (
        FileNotFoundError,
        NotADirectoryError,
    ) as error:  # the second: a home that is no folder, as others say
        if named:
            raise _refused(path, "it does not exist", f"make it, or unset {FILE_VARIABLE}") from error
        return []
    except OSError as error:
        raise _refused(path, error.strerror or "it cannot be opened", "make it readable for you") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _refused(path, "it is no plain file", "put the URLs into a file")
        if status.st_uid != os.getuid():
            raise _refused(path, "it belongs to another user", "make one of your own")
        if status.st_mode & _OTHERS:
            mode = f"{stat.S_IMODE(status.st_mode):o}"
            raise _refused(
                path, f"its mode is {mode}, so that others may know its passwords", f"chmod 600 {path}"
            )
        text = os.read(handle, _MAX_BYTES).decode(errors="replace")
    finally:
        os.close(handle)
    return [(str(path), "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))]


def _refused(path: Path, why: str, remedy: str) -> CpbError:
    return CpbError(
        f"the file of notification URLs {path} is not read: {why}; {remedy}",
        code="notify-file", field=str(path),
    )  # fmt: skip
